"""A verdict for each situation, from numbers that define it; and none where the numbers are missing."""

import msgspec
import pytest

from cadenza.stats.bottleneck import Bottleneck, Evidence, add_growth, find_bottleneck, gather
from cadenza.stats.machine import Engine, Gpu, Host, Machine
from cadenza.stats.reconcile import Count, Reconciliation, Time

A, B = "0000:43:00.0", "0000:03:00.0"
# A quiet engine in the middle of long answers, on two cards that do the same: decode is where the time goes.
DECODING = Evidence(
    heat_share={A: 0.0, B: 0.0},
    kv_peak=0.4,
    waiting_share=0.0,
    preempted_share=0.0,
    queue_ms=1.0,
    prefill_ms=200.0,
    decode_ms=9000.0,
    ttft_ms=205.0,
    beyond_ms=4.0,
    itl_ms=20.0,
    itl_beyond_ms=0.1,
    busy={A: 0.97, B: 0.95},
    memory_busy={A: 0.8, B: 0.7},
    cpu_busy=0.3,
    cpu_steal=0.0,
)


def found(**changes: object) -> Bottleneck:
    return find_bottleneck(msgspec.structs.replace(DECODING, **changes))


def test_decode() -> None:
    verdict = found()
    assert verdict.kind == "decode bandwidth"
    assert verdict.evidence == [
        "decode took 9000 ms of a request, 98 % of its time in the engine",
        "requests waited in only 0 % of the samples",
        "the cards' memory was busy for 80 %, 70 % of the time",
    ]
    grown = add_growth(verdict, 12.5, 1)
    assert grown.evidence[-1] == "TPOT is +12.5 % against C = 1"
    assert add_growth(verdict, float("nan"), 1) == verdict
    assert add_growth(Bottleneck("queue", []), 12.5, 1) == Bottleneck("queue", [])


def test_decode_needs_no_card_to_be_seen() -> None:
    verdict = found(busy={}, memory_busy={}, heat_share={}, cpu_busy=None, cpu_steal=None, waiting_share=None)
    assert verdict == Bottleneck(
        "decode bandwidth", ["decode took 9000 ms of a request, 98 % of its time in the engine"]
    )


def test_prefill() -> None:
    verdict = found(prefill_ms=4000.0, decode_ms=1000.0)
    assert verdict == Bottleneck("prefill", ["prefill took 4000 ms of a request, 80 % of its time in the engine"])


def test_a_queue_with_room_in_the_cache() -> None:
    verdict = found(waiting_share=0.9, queue_ms=9200.0)
    assert verdict == Bottleneck(
        "queue",
        [
            "requests waited in 90 % of the samples",
            "the queue took 9200 ms of a request, 50 % of its time in the engine",
            "the KV cache had room (40 % full at most): the limit is max_num_seqs",
        ],
    )
    assert found(waiting_share=None, queue_ms=9200.0, kv_peak=None).kind == "queue"
    assert found(waiting_share=0.49, queue_ms=1000.0).kind == "decode bandwidth"


def test_a_full_cache() -> None:
    verdict = found(kv_peak=0.99, waiting_share=0.9, queue_ms=9000.0)
    assert verdict == Bottleneck(
        "KV capacity", ["requests waited in 90 % of the samples", "the KV cache was 99 % full"]
    )
    # Preemptions say so by themselves: in virtual time there is no gauge between the edges.
    assert found(kv_peak=None, waiting_share=None, preempted_share=0.5).kind == "KV capacity"
    # Full is not short: without a queue and without preemptions nobody lacks anything.
    assert found(kv_peak=0.99).kind == "decode bandwidth"
    assert found(preempted_share=0.009).kind == "decode bandwidth"


def test_the_network() -> None:
    verdict = found(ttft_ms=400.0, beyond_ms=195.0)
    assert verdict == Bottleneck("network", ["195.0 of 400.0 ms TTFT at the client were not seen by the engine"])
    assert found(itl_ms=30.0, itl_beyond_ms=8.0).kind == "network"
    # A quarter of a millisecond is a large share of a TTFT of one, and nothing that anyone waits for.
    assert found(ttft_ms=1.0, beyond_ms=0.25).kind == "decode bandwidth"
    # An engine that says it took longer than the client waited: the difference is of averages, not of a network.
    assert found(ttft_ms=200.0, beyond_ms=-60.0).kind == "decode bandwidth"


def test_a_long_ttft_is_no_network_where_the_answer_takes_a_hundred_times_as_long() -> None:
    # 6.4 of 32 ms TTFT are a fifth of it, and less than a hundredth of the 742 ms that the request took.
    part = {"ttft_ms": 32.0, "beyond_ms": 6.5, "latency_ms": 742.0, "latency_beyond_ms": 6.5}
    assert found(**part).kind == "decode bandwidth"
    verdict = found(latency_ms=12000.0, latency_beyond_ms=2750.0)
    assert verdict == Bottleneck(
        "network", ["2750.0 of 12000.0 ms of a request at the client were not seen by the engine"]
    )


def test_heat() -> None:
    verdict = found(heat_share={A: 0.42, B: 0.0})
    assert verdict == Bottleneck("thermal throttle", [f"{A} lowered its clock against heat for 42 % of the time"])
    assert found(heat_share={A: 0.09, B: 0.0}).kind == "decode bandwidth"


def test_a_reason_without_a_name_is_heat_where_a_sensor_is_near_its_limit() -> None:
    def share(hottest: float, reason: str = "any", limits: tuple[str, ...] = ("junction",)) -> float:
        gpu = Gpu(
            gpu=A,
            throttled_share=0.5,
            throttle_reasons={reason: 0.5},
            temperature_max_c={"edge": 60.0, "junction": hottest},
            temperature_limit_c=dict.fromkeys(limits, 100.0),
        )
        machine = Machine(window="window", samples=9, server_here=True, gpus=[gpu])
        return gather(machine, None, None).heat_share[A]

    assert (share(95.0), share(94.9), share(95.0, limits=())) == (0.5, 0, 0)
    assert (share(40.0, "temp_hotspot"), share(40.0, "thermal_socket"), share(40.0, "prochot")) == (0.5, 0.5, 0.5)
    assert share(99.0, "ppt0") == 0


def test_a_straggler() -> None:
    verdict = found(busy={A: 0.98, B: 0.55})
    assert verdict == Bottleneck("straggler card", [f"{A} was busy for 98 % of the time, {B} for 55 %"])
    assert found(busy={A: 0.98, B: 0.8}).kind == "decode bandwidth"
    assert found(busy={A: 0.1}).kind == "decode bandwidth"


def test_the_host() -> None:
    assert found(cpu_busy=0.95).kind == "host CPU"
    assert found(cpu_steal=0.08) == Bottleneck("host CPU", ["8 % of their time went to other guests of the hypervisor"])


def test_cores_of_a_machine_without_a_card_may_be_what_the_model_runs_on() -> None:
    told = (
        "the cores of the server's machine were busy for 100 % of the time, and no card was seen: the model may run on "
        "them"
    )
    alone: dict[str, object] = {"no_card": True, "busy": {}, "memory_busy": {}, "heat_share": {}, "cpu_busy": 1.0}
    assert found(**alone).kind == "decode bandwidth"
    assert found(**alone).evidence[-1] == told
    assert found(**alone, prefill_ms=20000.0).kind == "prefill"
    assert found(**alone, prefill_ms=20000.0).evidence[-1] == told
    assert found(**alone, queue_ms=None, prefill_ms=None, decode_ms=None) == Bottleneck("host CPU", [told])
    # What other guests took is nobody's model.
    assert found(**alone, cpu_steal=0.08).kind == "host CPU"
    assert found(**(alone | {"cpu_busy": 0.8})).evidence[-1] == "requests waited in only 0 % of the samples"


def test_a_card_is_missing_only_where_the_server_is() -> None:
    machine = Machine(window="window", samples=9, server_here=True, host=Host(cpu_busy_mean=1.0))
    card = msgspec.structs.replace(machine, gpus=[Gpu(gpu=A)])
    elsewhere = msgspec.structs.replace(machine, server_here=False)
    assert [gather(one, None, None).no_card for one in (machine, card, elsewhere)] == [True, False, False]


def test_the_client_comes_before_all() -> None:
    verdict = found(client_limited="the client sent late", waiting_share=1.0, heat_share={A: 1.0})
    assert verdict == Bottleneck("client", ["the client sent late"])


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"heat_share": {A: 0.5}, "waiting_share": 1.0}, "thermal throttle"),  # the queue is the heat's doing
        ({"preempted_share": 0.5, "waiting_share": 1.0}, "KV capacity"),  # and so is this one the cache's
        ({"waiting_share": 1.0, "beyond_ms": 200.0, "ttft_ms": 400.0}, "queue"),
        ({"cpu_busy": 0.95, "beyond_ms": 200.0, "ttft_ms": 400.0}, "host CPU"),
        ({"cpu_busy": 0.95, "waiting_share": 1.0}, "queue"),
    ],
)
def test_what_explains_the_other_comes_first(changes: dict[str, object], kind: str) -> None:
    assert found(**changes).kind == kind


def test_nothing_known_is_unknown_and_says_what_is_missing() -> None:
    verdict = find_bottleneck(Evidence())
    assert verdict.kind == "unknown"
    assert verdict.evidence == [
        "nothing was seen of the engine's queue, prefill and decode times, its gauge of waiting requests, the cards"
    ]
    even = Evidence(queue_ms=10.0, prefill_ms=450.0, decode_ms=440.0, waiting_share=0.0, busy={A: 0.9})
    assert find_bottleneck(even).kind == "prefill"
    third = Evidence(queue_ms=10.0, prefill_ms=450.0, waiting_share=0.0, busy={A: 0.9})
    assert find_bottleneck(third) == Bottleneck(
        "unknown", ["nothing was seen of the engine's queue, prefill and decode times"]
    )


def test_evidence_is_gathered_from_what_was_seen() -> None:
    machine = Machine(
        window="window",
        samples=20,
        server_here=True,
        gpus=[
            Gpu(
                gpu=A,
                busy_mean=0.9,
                memory_busy_mean=0.5,
                throttled_share=0.6,
                throttle_reasons={"temp_edge": 0.3, "ppt0": 0.6},
            ),
            Gpu(gpu=B),
        ],
        host=Host(cpu_busy_mean=0.4, cpu_steal_mean=0.01),
        engine=Engine(kv_usage_peak=0.8, waiting_share=0.1, preemptions=5),
    )
    server = Reconciliation(
        requests=Count(client=50, client_most=50, server=50, difference=0),
        ttft=Time(client_ms=100, server_ms=90, beyond_ms=10),
        itl=Time(client_ms=10, server_ms=9, beyond_ms=1),
        latency=Time(client_ms=500, server_ms=470, beyond_ms=30),
        queue_ms=1,
        prefill_ms=2,
        decode_ms=3,
    )
    seen = gather(machine, server, None)
    assert seen == Evidence(
        heat_share={A: 0.3},  # a power limit is no heat
        kv_peak=0.8,
        waiting_share=0.1,
        preempted_share=0.1,
        queue_ms=1,
        prefill_ms=2,
        decode_ms=3,
        latency_ms=500,
        latency_beyond_ms=30,
        ttft_ms=100,
        beyond_ms=10,
        itl_ms=10,
        itl_beyond_ms=1,
        busy={A: 0.9},
        memory_busy={A: 0.5},
        cpu_busy=0.4,
        cpu_steal=0.01,
    )
    elsewhere = gather(msgspec.structs.replace(machine, server_here=False), server, "late")
    assert (elsewhere.busy, elsewhere.heat_share, elsewhere.cpu_busy) == ({}, {}, None)
    assert (elsewhere.kv_peak, elsewhere.client_limited) == (0.8, "late")
    assert gather(Machine(window="whole point", samples=0, server_here=True), None, None) == Evidence()
