"""What counts as evidence: whose cards and host, which reasons for a lower clock, and means of enough samples."""

import msgspec

from cadenza.analysis.bottleneck import Bottleneck, find_bottleneck, gather
from cadenza.analysis.evidence import Evidence
from cadenza.analysis.machine import Engine, Gpu, Host, Machine
from cadenza.analysis.reconciliation import Count, Reconciliation, Time

A, B = "0000:43:00.0", "0000:03:00.0"


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


def test_a_card_that_takes_no_part_is_no_straggler() -> None:
    def group(*used: float | None) -> list[float]:
        cards = [Gpu(gpu=str(n), busy_mean=n / 10, vram_peak_bytes=one) for n, one in enumerate(used)]
        machine = Machine(window="window", samples=9, server_here=True, gpus=cards)
        return list(gather(machine, None, None).busy.values())

    # One draws the desktop: a gigabyte of sixteen. Ranks of unlike cards hold unlike parts, but not a tenth.
    assert group(16e9, 1e9, 12e9) == [0, 0.2]
    assert group(16e9, 1.6e9) == [0, 0.1]
    assert group(16e9, None) == [0, 0.1]
    assert group(None, None) == [0, 0.1]


def test_a_card_is_missing_only_where_the_server_is() -> None:
    machine = Machine(window="window", samples=9, server_here=True, host=Host(cpu_busy_mean=1.0))
    card = msgspec.structs.replace(machine, gpus=[Gpu(gpu=A)])
    elsewhere = msgspec.structs.replace(machine, server_here=False)
    assert [gather(one, None, None).no_card for one in (machine, card, elsewhere)] == [True, False, False]


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
        engine=Engine(running_share=0.9, kv_usage_peak=0.8, waiting_share=0.1, preemptions=5),
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
        running_share=0.9,
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
    assert gather(Machine(window="window", samples=9, server_here=True, virtual=True), None, None).virtual


def test_few_samples_are_moments_and_no_means() -> None:
    card, engine = Gpu(gpu=A, busy_mean=0.5), Engine(running_share=0.5)

    def seen(window: str) -> tuple[bool, bool]:
        machine = Machine(window=window, samples=9, server_here=True, gpus=[card], engine=engine)
        found = gather(machine, None, None)
        return bool(found.busy), found.running_share is not None

    assert seen("window") == seen("window; pcie: whole point") == (True, True)
    assert seen("whole point") == (False, False)
    assert seen("window; amdgpu: whole point") == (False, True)
    assert seen("window; engine: whole point") == (True, False)


def test_twins_that_draw_unlike_power() -> None:
    def told(*cards: tuple[str | None, float | None]) -> Bottleneck:
        gpus = [
            Gpu(gpu=f"card {n}", product=product, power_mean_w=watts, busy_mean=1.0, throttled_share=0.0)
            for n, (product, watts) in enumerate(cards)
        ]
        return find_bottleneck(gather(Machine(window="window", samples=9, server_here=True, gpus=gpus), None, None))[0]

    # One that waits for the other may look as busy, and draws less.
    verdict = told(("MI50", 200.0), ("MI50", 160.0))
    assert verdict.kind == "straggler card"
    assert verdict.evidence[0] == (
        "card 0 drew 200 W and card 1, of the same product, 160 W: it waits, or its clock is lower"
    )
    for alike in (
        (("MI50", 200.0), ("MI50", 161.0)),
        (("MI50", 200.0), ("RX 6900 XT", 100.0)),
        (("MI50", 200.0), (None, 100.0), ("MI50", None)),
    ):
        assert told(*alike).kind == "unknown"
