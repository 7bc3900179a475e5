"""A verdict for each situation, from numbers that define it; and none where the numbers are missing."""

import msgspec
import pytest

from cadenza.analysis.bottleneck import Bottleneck, find_bottleneck, growth_of
from cadenza.analysis.codes import CODES
from cadenza.analysis.evidence import Evidence

A, B = "0000:43:00.0", "0000:03:00.0"
# A quiet engine in the middle of long answers, on two cards that do the same: decode is where the time goes.
DECODING = Evidence(
    heat_share={A: 0.0, B: 0.0},
    kv_peak=0.4,
    waiting_share=0.0,
    preempted_share=0.0,
    running_share=1.0,
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


def conclude(evidence: Evidence) -> Bottleneck:
    """The bottleneck; its sentences are those of its findings, whose codes and numbers are in the table."""
    bottleneck, findings = find_bottleneck(evidence)
    assert bottleneck.evidence == [one.message for one in findings]
    assert all(set(one.numbers) <= set(CODES[one.code].numbers) for one in findings)
    return bottleneck


def found(**changes: object) -> Bottleneck:
    return conclude(msgspec.structs.replace(DECODING, **changes))


def test_decode() -> None:
    verdict = found()
    assert verdict.kind == "decode bandwidth"
    assert verdict.evidence == [
        "decode took 9000 ms of a request, 98 % of its time in the engine",
        "no request waited",
        "card memory busy for 80 %, 70 % of the time",
    ]
    grown = growth_of(verdict, 12.5, 1)
    assert grown is not None
    assert (grown.code, grown.numbers, grown.message) == ("tpot-growth", {"drift_pct": 12.5}, "TPOT +12.5 % vs C = 1")
    # Ultra-flat is below 5 %.
    messages = [grown.message if (grown := growth_of(verdict, pct, 1)) else None for pct in (4.9, 5.0)]
    assert messages == ["TPOT +4.9 % vs C = 1 (flat, < 5 %)", "TPOT +5.0 % vs C = 1"]
    assert growth_of(verdict, float("nan"), 1) is None
    assert growth_of(Bottleneck("queue", []), 12.5, 1) is None


def test_decode_while_the_memory_rests_is_not_all_bandwidth() -> None:
    # Two cards over PCIe at a tenth of their bandwidth: reading the weights is not what a step mostly waits for.
    doubt = "memory bandwidth is not saturated: a step is bound by kernel launch or interconnect"
    told = f"card memory busy for 10 %, 18 % of the time; {doubt}"
    assert found(memory_busy={A: 0.10, B: 0.18}).evidence[-1] == told
    assert doubt not in found(memory_busy={A: 0.10, B: 0.5}).evidence[-1]


def test_decode_needs_no_card_to_be_seen_and_says_what_it_did_not_see() -> None:
    verdict = found(busy={}, memory_busy={}, heat_share={}, cpu_busy=None, cpu_steal=None, waiting_share=None)
    assert verdict == Bottleneck(
        "decode bandwidth",
        [
            "decode took 9000 ms of a request, 98 % of its time in the engine",
            "not ruled out (no data): thermal throttle, straggler card, host CPU",
        ],
    )
    bare = Evidence(queue_ms=1.0, prefill_ms=200.0, decode_ms=9000.0)
    assert conclude(bare).evidence[-1] == (
        "not ruled out (no data): thermal throttle, KV capacity, straggler card, host CPU, network"
    )
    # In memory there is neither machine nor network.
    assert len(conclude(msgspec.structs.replace(bare, virtual=True)).evidence) == 1


def test_prefill() -> None:
    verdict = found(prefill_ms=4000.0, decode_ms=1000.0)
    assert verdict == Bottleneck("prefill", ["prefill took 4000 ms of a request, 80 % of its time in the engine"])


def test_a_queue_for_prefill_is_no_matter_of_how_many_may_run() -> None:
    # Each prompt waits for those before it: a larger batch would only add to them.
    verdict = found(waiting_share=0.9, queue_ms=6000.0, prefill_ms=3000.0, decode_ms=1000.0)
    assert verdict == Bottleneck(
        "prefill",
        [
            "prefill took 3000 ms of a request, 30 % of its time in the engine",
            "requests waited in 90 % of the samples",
            "the queue took 6000 ms of a request, 60 % of its time in the engine",
        ],
    )
    assert found(waiting_share=0.9, queue_ms=6000.0, prefill_ms=1000.0, decode_ms=3000.0).kind == "queue"


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
    assert found(waiting_share=None, queue_ms=9200.0, kv_peak=0.96).kind == "KV capacity"  # that has no room
    assert found(waiting_share=0.49, queue_ms=1000.0).kind == "decode bandwidth"


def test_a_full_cache() -> None:
    verdict = found(kv_peak=0.99, waiting_share=0.9, queue_ms=9000.0)
    assert verdict == Bottleneck(
        "KV capacity",
        [
            "requests waited in 90 % of the samples",
            "the queue took 9000 ms of a request, 49 % of its time in the engine",
            "KV cache 99 % full",
        ],
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
    assert found(ttft_ms=400.0, beyond_ms=195.0, latency_ms=12000.0, latency_beyond_ms=195.0).kind != "network"
    verdict = found(latency_ms=12000.0, latency_beyond_ms=2750.0)
    assert verdict == Bottleneck(
        "network", ["2750.0 of 12000.0 ms of a request at the client were not seen by the engine"]
    )
    verdict = found(ttft_ms=400.0, beyond_ms=195.0, latency_ms=500.0, latency_beyond_ms=200.0)
    assert verdict.evidence == [
        "200.0 of 500.0 ms of a request at the client were not seen by the engine",
        "195.0 of 400.0 ms TTFT at the client were not seen by the engine",
    ]


def test_heat() -> None:
    verdict = found(heat_share={A: 0.42, B: 0.0})
    assert verdict == Bottleneck("thermal throttle", [f"{A}: clock reduced for heat, 42 % of the time"])
    assert found(heat_share={A: 0.09, B: 0.0}).kind == "decode bandwidth"


def test_a_straggler() -> None:
    verdict = found(busy={A: 0.98, B: 0.55})
    assert verdict == Bottleneck(
        "straggler card",
        [f"{A} was busy for 98 % of the time, {B} for 55 %: the others wait for the one that is busy"],
    )
    assert found(busy={A: 0.98, B: 0.8}).kind == "decode bandwidth"
    assert found(busy={A: 0.98}).kind == "decode bandwidth"


def test_the_host() -> None:
    rest: dict[str, object] = {"busy": {A: 0.5, B: 0.45}}
    rested = "the busiest card worked for 50 % of the time, and there was a request to work on for 100 %"
    told = "the cores of the server's machine were busy for 95 % of the time"
    assert found(**rest, cpu_busy=0.95) == Bottleneck("host CPU", [told, rested])
    stolen = "8 % of the cores' time went to other guests of the hypervisor"
    assert found(**rest, cpu_steal=0.08) == Bottleneck("host CPU", [stolen, rested])
    # Busy cores hold back no card that is busy, too; where that is not known, they may.
    assert found(cpu_busy=0.95).kind == "decode bandwidth"
    assert found(busy={A: 0.79, B: 0.79}, cpu_busy=0.95).kind == "host CPU"
    assert found(busy={A: 0.81, B: 0.81}, cpu_busy=0.95).kind == "decode bandwidth"
    assert found(busy={}, cpu_busy=0.95) == Bottleneck("host CPU", [told, "not ruled out (no data): straggler card"])
    # The cards rest for want of work.
    assert found(busy={A: 0.2, B: 0.2}, running_share=0.3, cpu_busy=0.95).kind == "none"


def test_cards_that_rest_without_a_reason_bound_neither_prefill_nor_decode() -> None:
    verdict = found(busy={A: 0.5, B: 0.45})
    assert verdict.kind == "unknown"
    assert verdict.evidence == [
        "the busiest card worked for 50 % of the time, and there was a request to work on for 100 %: no figure "
        "here shows what kept it from work (an engine thread at its limit, the interconnect)"
    ]
    assert found(busy={A: 0.5, B: 0.45}, running_share=None).kind == "decode bandwidth"
    assert found(busy={A: 0.5, B: 0.45}, latency_ms=500.0, latency_beyond_ms=200.0).kind == "network"


def test_where_nothing_gave_way() -> None:
    verdict = found(running_share=0.4, busy={A: 0.3, B: 0.25})
    assert verdict == Bottleneck(
        "none",
        [
            "there was a request to work on for 40 % of the time",
            "the busiest card worked for 30 % of the time",
            "KV cache 40 % full at most",
        ],
    )
    # Without cards the batch tells it.
    alone: dict[str, object] = {"busy": {}, "memory_busy": {}, "kv_peak": None}
    assert found(**alone, running_share=0.4).kind == "none"
    assert found(**alone, running_share=0.5).kind == "decode bandwidth"
    assert found(busy={A: 0.5, B: 0.5}, running_share=0.4).kind == "decode bandwidth"
    # Rare requests may still be slowed by what is between.
    assert found(running_share=0.4, busy={A: 0.3, B: 0.3}, latency_ms=500.0, latency_beyond_ms=200.0).kind == "network"


def test_two_causes_are_both_told() -> None:
    slow: dict[str, object] = {"latency_ms": 500.0, "latency_beyond_ms": 200.0}
    beside = "also network: 200.0 of 500.0 ms of a request at the client were not seen by the engine"
    for changes, kind in (
        ({"heat_share": {A: 0.5, B: 0.0}}, "thermal throttle"),
        ({"preempted_share": 0.5}, "KV capacity"),
        ({"waiting_share": 0.9}, "queue"),
        ({"busy": {A: 0.98, B: 0.5}}, "straggler card"),
    ):
        verdict = found(**slow, **changes)
        assert (verdict.kind, verdict.evidence[-1]) == (kind, beside)
        assert len(verdict.evidence) == len(found(**changes).evidence) + 1
    # A full cache makes the queue before it, and a client that is late reads late.
    assert not any("beside" in told for told in found(kv_peak=0.99, waiting_share=0.9).evidence)
    assert found(**slow, client_limited="late").evidence == ["late"]
    late = found(kv_peak=0.99, waiting_share=0.9, client_limited="late").evidence
    assert late == ["late", "also KV capacity: requests waited in 90 % of the samples"]


def test_cores_of_a_machine_without_a_card_may_be_what_the_model_runs_on() -> None:
    told = (
        "the cores of the server's machine were busy for 100 % of the time, and no card was seen: the model may run on "
        "them"
    )
    alone: dict[str, object] = {"no_card": True, "busy": {}, "memory_busy": {}, "heat_share": {}, "cpu_busy": 1.0}
    assert found(**alone).kind == "decode bandwidth"
    unseen = "not ruled out (no data): thermal throttle, straggler card"
    assert found(**alone).evidence[-2:] == [told, unseen]
    assert found(**alone, prefill_ms=20000.0).kind == "prefill"
    assert found(**alone, prefill_ms=20000.0).evidence[-2:] == [told, unseen]
    assert found(**alone, queue_ms=None, prefill_ms=None, decode_ms=None) == Bottleneck("host CPU", [told, unseen])
    # What other guests took is nobody's model.
    assert found(**alone, cpu_steal=0.08).kind == "host CPU"
    assert found(**(alone | {"cpu_busy": 0.8})).evidence[-2:] == ["no request waited", unseen]


def test_the_client_comes_before_all() -> None:
    verdict = found(client_limited="the client sent late", waiting_share=1.0, heat_share={A: 1.0})
    assert verdict == Bottleneck(
        "client",
        [
            "the client sent late",
            f"also thermal throttle: {A}: clock reduced for heat, 100 % of the time",
            "also queue: requests waited in 100 % of the samples",
        ],
    )


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"heat_share": {A: 0.5}, "waiting_share": 1.0}, "thermal throttle"),  # the queue is the heat's doing
        ({"preempted_share": 0.5, "waiting_share": 1.0}, "KV capacity"),  # and so is this one the cache's
        ({"waiting_share": 1.0, "beyond_ms": 200.0, "ttft_ms": 400.0}, "queue"),
        ({"cpu_busy": 0.95, "busy": {A: 0.5, B: 0.5}, "beyond_ms": 200.0, "ttft_ms": 400.0}, "host CPU"),
        ({"cpu_busy": 0.95, "waiting_share": 1.0}, "queue"),
    ],
)
def test_what_explains_the_other_comes_first(changes: dict[str, object], kind: str) -> None:
    assert found(**changes).kind == kind


def test_nothing_known_is_unknown_and_says_what_is_missing() -> None:
    verdict = conclude(Evidence())
    assert verdict.kind == "unknown"
    assert verdict.evidence == [
        "no data of the engine's queue, prefill and decode times, its gauge of waiting requests, the cards, "
        "the server's host"
    ]
    even = Evidence(queue_ms=10.0, prefill_ms=450.0, decode_ms=440.0, waiting_share=0.0, busy={A: 0.9}, cpu_busy=0.1)
    assert conclude(even).kind == "prefill"
    third = Evidence(queue_ms=10.0, prefill_ms=450.0, waiting_share=0.0, busy={A: 0.9}, cpu_busy=0.1)
    assert conclude(third) == Bottleneck("unknown", ["no data of the engine's queue, prefill and decode times"])
