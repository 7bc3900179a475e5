"""An example for each finding made of a profile's domain, of the engine's page, or of evidence of a bottleneck."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from cadenza.analysis.bottleneck import Bottleneck, find_bottleneck, growth_of
from cadenza.analysis.evidence import Evidence
from cadenza.analysis.extrapolation import Workload, check_extrapolation, find_extrapolation, note_unknown
from cadenza.analysis.finding import Finding
from cadenza.analysis.reconciliation import Count, Reconciliation, Time, check_server
from cadenza.domain import Domain, Lengths
from cadenza.record import LoadLabel
from cadenza.stats.columns import Columns
from support.columns import closed, rec
from support.point_findings import Examples, Numbers

DOMAIN = Domain(
    in_system=(1.0, 16.0),
    peak_in_flight=16,
    loads=("CLOSED",),
    aimed_prompt_tok=Lengths(mean=(490.0, 510.0), range=(200.0, 800.0)),
    output_tok=Lengths(mean=(490.0, 510.0), range=(200.0, 800.0)),
    holdout="blocks",
    holdout_pct={"ttft_mean": 5.0, "tpot_p95": -12.0, "itl_p95": 40.0},
)
RATED = msgspec.structs.replace(DOMAIN, loads=("OPEN",), arrivals=("poisson",), rates_per_s=(0.5, 2.0))
INSIDE = Workload(
    load=LoadLabel.CLOSED,
    arrivals=None,
    rate_per_s=None,
    in_system=8.0,
    level=np.full(100, 8, dtype=np.int64),
    peak=8,
    prompt_tok=np.full(50, 500.0),
    aimed_prompt_tok=np.full(50, 500.0),
    output_tok=np.full(50, 500.0),
)
MIXED = np.array([8] * 94 + [17] * 6, dtype=np.int64)
TWO_LENGTHS = np.array([30.0, 970.0] * 25)


def outside(domain: Domain = DOMAIN, **changes: object) -> Callable[[], list[Finding]]:
    return lambda: find_extrapolation(domain, msgspec.structs.replace(INSIDE, **changes))


def of_profile(**changes: object) -> Callable[[], list[Finding]]:
    """A closed loop of 8 slots on a profile; one prompt of 500 tokens, and 500 tokens of output."""
    point = closed(8, 1)
    point.domain = msgspec.structs.replace(DOMAIN, **changes)
    columns = Columns.of([msgspec.structs.replace(rec(0, 0, [10, 20], tokens=500), aimed_prompt_tokens=500)])
    return lambda: [*check_extrapolation(point, columns), *note_unknown(point, columns)]


OPEN: dict[str, Any] = {"load": LoadLabel.OPEN, "arrivals": "poisson", "rate_per_s": 1.0}
MEANS = {"mean_tok": 440.0, "lowest_mean_tok": 490.0, "highest_mean_tok": 510.0}
RANGE = {"p5_tok": 30.0, "p95_tok": 970.0, "shortest_tok": 200.0, "longest_tok": 800.0}
PROFILES: Examples = {
    "extrapolated-rate": (
        outside(RATED, **(OPEN | {"rate_per_s": 0.45})),
        {"rate_per_s": 0.45, "lowest_rate_per_s": 0.5, "highest_rate_per_s": 2.0},
        "extrapolated: 0.45 requests/s, the profile was measured at 0.5 to 2",
    ),
    "extrapolated-load-above": (
        outside(in_system=33.0),
        {"in_system": 33.0, "lowest_in_system": 1.0, "highest_in_system": 16.0},
        "extrapolated: 33 requests in flight, the profile was measured up to 16",
    ),
    "extrapolated-load-below": (
        outside(in_system=0.4),
        {"in_system": 0.4, "lowest_in_system": 1.0, "highest_in_system": 16.0},
        "extrapolated: 0.4 requests in flight, the profile was measured from 1 on",
    ),
    "extrapolated-peak-above": (
        outside(level=MIXED, peak=17),
        {"peak_in_flight": 17, "measured_peak_in_flight": 16, "share": 0.06},
        "extrapolated: 6 % of the tokens with more than 16 requests in flight (peak 17), the most that the profile was "
        "measured with",
    ),
    "extrapolated-prompt-mean": (
        outside(aimed_prompt_tok=np.full(50, 440.0)),
        MEANS,
        "extrapolated: prompts of 440 tokens on average, the profile was measured with 490 to 510",
    ),
    "extrapolated-prompt-range": (
        outside(aimed_prompt_tok=TWO_LENGTHS),
        RANGE,
        "extrapolated: prompts of 30 to 970 tokens (P5 to P95), the profile was measured with 200 to 800",
    ),
    "extrapolated-output-mean": (
        outside(output_tok=np.full(50, 440.0)),
        MEANS,
        "extrapolated: outputs of 440 tokens on average, the profile was measured with 490 to 510",
    ),
    "extrapolated-output-range": (
        outside(output_tok=TWO_LENGTHS),
        RANGE,
        "extrapolated: outputs of 30 to 970 tokens (P5 to P95), the profile was measured with 200 to 800",
    ),
    "extrapolated-loop": (
        outside(**OPEN),
        {},
        "extrapolated: an open loop, the profile was measured in a closed loop",
    ),
    "extrapolated-arrivals": (
        outside(RATED, **(OPEN | {"arrivals": "gamma:0.25"})),
        {},
        "extrapolated: gamma:0.25 arrivals, the profile was measured with poisson",
    ),
    "domain-unrecorded": (
        of_profile(loads=()),
        {},
        "the profile does not record lengths, loops and arrival law of its run: `cadenza fit` it again",
    ),
    "inside-domain": (of_profile(), {}, "load and lengths are within those the profile was fitted to"),
    "profile-percentiles-unknown": (
        of_profile(holdout_pct={}),
        {},
        "percentiles of TPOT and ITL are not known: the profile records no out-of-sample error",
    ),
    "profile-errors": (
        of_profile(),
        {"tpot_p95_pct": -12.0, "itl_p95_pct": 40.0},
        "not known from this profile, by its errors where it was tested: TPOT P95 -12 %, ITL P95 +40 %",
    ),
    "profile-interpolated": (
        of_profile(),
        {"lowest_in_system": 1.0, "highest_in_system": 16.0},
        "interpolated between rows at 1 and 16 requests in flight: no load in between was measured",
    ),
}


def more_at_server(client: int, server: int) -> tuple[Count, Numbers]:
    share = server / client - 1
    numbers = {"server": server, "client": client, "client_most": client, "difference_share": share}
    return Count(client=client, client_most=client, server=server, difference=share), numbers


REQUESTS, PROMPTS, GENERATED = (more_at_server(*pair) for pair in ((10, 13), (2000, 2600), (500, 490)))
COMPARED = Reconciliation(
    requests=REQUESTS[0],
    prompt_tokens=PROMPTS[0],
    generation_tokens=GENERATED[0],
    ttft=Time(client_ms=100.0, server_ms=90.0, beyond_ms=10.5),
    itl=Time(client_ms=10.0, server_ms=9.9, beyond_ms=0.1),
    queue_ms=30.0,
    prefill_ms=60.0,
)


def at_server() -> list[Finding]:
    return check_server(COMPARED)


SERVER: Examples = {
    "engine-restarted": (
        lambda: check_server(Reconciliation(restarted=True)),
        {},
        "the engine's counters fell back: it was started anew meanwhile",
    ),
    "server-requests": (
        at_server,
        REQUESTS[1],
        "13 requests at the server, 10 at the client (+30.00 %): did others use the server?",
    ),
    "server-prompt-tokens": (
        at_server,
        PROMPTS[1],
        "2,600 prompt tokens at the server, 2,000 at the client (+30.00 %): did others use the server?",
    ),
    "server-generation-tokens": (
        at_server,
        GENERATED[1],
        "490 generation tokens at the server, 500 at the client (-2.00 %): the server counted less",
    ),
    "engine-ttft": (
        at_server,
        {"client_ms": 100.0, "server_ms": 90.0, "beyond_ms": 10.5},
        "TTFT 100.00 ms at the client, 90.00 ms by the engine's own histogram: +10.50 ms outside the engine (> 10 %); "
        "in the engine queue 30.0 ms, prefill 60.0 ms",
    ),
    "engine-itl": (
        at_server,
        {"client_ms": 10.0, "server_ms": 9.9, "beyond_ms": 0.1},
        "ITL 10.00 ms at the client, 9.90 ms by the engine's own histogram: +0.10 ms outside the engine",
    ),
}

# A quiet engine in the middle of long answers, on two cards that do the same.
DECODING = Evidence(
    heat_share={"a": 0.0, "b": 0.0},
    kv_peak=0.4,
    waiting_share=0.0,
    preempted_share=0.0,
    running_share=1.0,
    queue_ms=100.0,
    prefill_ms=900.0,
    decode_ms=9000.0,
    ttft_ms=205.0,
    beyond_ms=4.0,
    busy={"a": 0.97, "b": 0.95},
    memory_busy={"a": 0.8, "b": 0.7},
    cpu_busy=0.3,
    cpu_steal=0.0,
)
RESTED = {"busy": {"a": 0.5, "b": 0.45}}
IDLE = {"running_share": 0.3, "busy": {"a": 0.2, "b": 0.15}}


def bound(**changes: object) -> Callable[[], list[Finding]]:
    return lambda: find_bottleneck(msgspec.structs.replace(DECODING, **changes))[1]


def growing() -> list[Finding]:
    return [one for one in [growth_of(Bottleneck("decode bandwidth", []), 12.5, 1)] if one is not None]


BOTTLENECK: Examples = {
    "client-limited": (bound(client_limited="the client sent late"), {}, "the client sent late"),
    "thermal-throttle": (
        bound(heat_share={"a": 0.42, "b": 0.0}),
        {"share": 0.42},
        "a: clock reduced for heat, 42 % of the time",
    ),
    "preemptions": (
        bound(preempted_share=0.5),
        {"per_request": 0.5},
        "0.50 preemptions a request: running ones lost their KV cache",
    ),
    "kv-cache": (
        bound(waiting_share=0.9),
        {"peak_share": 0.4},
        "the KV cache had room (40 % full at most): the limit is max_num_seqs",
    ),
    "waiting": (bound(waiting_share=0.9), {"share": 0.9}, "requests waited in 90 % of the samples"),
    # Of 9,900 ms without a queue.
    "time-in-queue": (
        bound(queue_ms=9900.0),
        {"mean_ms": 9900.0, "share": 0.5},
        "the queue took 9900 ms of a request, 50 % of its time in the engine",
    ),
    "time-in-prefill": (
        bound(prefill_ms=8900.0, decode_ms=1000.0),
        {"mean_ms": 8900.0, "share": 0.89},
        "prefill took 8900 ms of a request, 89 % of its time in the engine",
    ),
    "time-in-decode": (
        bound(),
        {"mean_ms": 9000.0, "share": 0.9},
        "decode took 9000 ms of a request, 90 % of its time in the engine",
    ),
    "unequal-busy": (
        bound(busy={"a": 0.98, "b": 0.55}),
        {"highest_share": 0.98, "lowest_share": 0.55},
        "a was busy for 98 % of the time, b for 55 %: the others wait for the one that is busy",
    ),
    "unequal-power": (
        bound(twins_w=[{"a": 200.0, "b": 100.0}]),
        {"highest_w": 200.0, "lowest_w": 100.0},
        "a drew 200 W and b, of the same product, 100 W: it waits, or its clock is lower",
    ),
    "cpu-steal": (
        bound(**RESTED, cpu_steal=0.08),
        {"share": 0.08},
        "8 % of the cores' time went to other guests of the hypervisor",
    ),
    "cpu-busy": (
        bound(**RESTED, cpu_busy=0.95),
        {"share": 0.95},
        "the cores of the server's machine were busy for 95 % of the time",
    ),
    "cards-rested": (
        bound(**RESTED, cpu_busy=0.95),
        {"busy_share": 0.5, "work_share": 1.0},
        "the busiest card worked for 50 % of the time, and there was a request to work on for 100 %",
    ),
    "outside-engine": (
        bound(ttft_ms=400.0, beyond_ms=195.0),
        {"beyond_ms": 195.0, "client_ms": 400.0},
        "195.0 of 400.0 ms TTFT at the client were not seen by the engine",
    ),
    "engine-busy": (
        bound(**IDLE),
        {"work_share": 0.3},
        "there was a request to work on for 30 % of the time",
    ),
    "card-busy": (bound(**IDLE), {"busy_share": 0.2}, "the busiest card worked for 20 % of the time"),
    "memory-busy": (bound(), {"highest_share": 0.8}, "card memory busy for 80 %, 70 % of the time"),
    "tpot-growth": (growing, {"drift_pct": 12.5}, "TPOT +12.5 % vs C = 1"),
    "not-ruled-out": (
        bound(busy={}, cpu_busy=None),
        {},
        "not ruled out (no data): straggler card, host CPU",
    ),
    "bottleneck-unknown": (
        lambda: find_bottleneck(Evidence())[1],
        {},
        "no data of the engine's queue, prefill and decode times, its gauge of waiting requests, the cards, the "
        "server's host",
    ),
}
