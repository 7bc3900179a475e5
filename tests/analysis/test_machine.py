"""What the machine did, from samples made by hand: each figure from its definition, and nothing where nothing was."""

import pytest

from cadenza.analysis.machine import Engine, Host, Machine, Stretch, describe_machine
from cadenza.analysis.tracks import growth, pick_model, track
from cadenza.readings import ReadingTable, Sample, Series
from cadenza.record import LoadLabel, Point
from support.telemetry import S, edges, engine, log, sample, series

CARD, OTHER = "0000:43:00.0", "0000:03:00.0"
POINT = Point(index=0, model="m", load=LoadLabel.CLOSED, concurrency=1)
WHOLE = Stretch(0, 10 * S)


def describe(samples: list[Sample], window: Stretch = WHOLE, tok_per_s: float = 50.0, *, here: bool = True) -> Machine:
    return describe_machine(log(samples, here=here), POINT, WHOLE, window, tok_per_s)


def card(at_s: float, gpu: str = CARD, **values: float) -> Sample:
    """`busy_ratio=0.5`; labels other than the card's follow two underscores: `power_watts__type_average`."""
    keyed: dict[str | Series, float] = {}
    for name, value in values.items():
        family, _, rest = name.partition("__")
        label, _, told = rest.partition("_")
        keyed[f"gpu_{family}{{gpu={gpu},vendor=amd{f',{label}={told}' if rest else ''}}}"] = value
    return sample("amdgpu", at_s, keyed)


def test_means_are_over_the_window_and_peaks_over_the_whole_point() -> None:
    busy = [0.0, 0.0, 0.6, 0.8, 0.6, 0.8, 0.0]
    vram = [9, 1, 2, 3, 4, 5, 1]
    seen = [
        card(k, busy_ratio=busy[k], memory_used_bytes__pool_vram=vram[k], temperature_celsius__sensor_edge=90 - k)
        for k in range(7)
    ]
    found = describe(seen, Stretch(2 * S, 5 * S))
    (gpu,) = found.gpus
    assert (found.window, found.samples) == ("window", 7)
    assert gpu.busy_mean == pytest.approx(0.7)
    assert gpu.vram_peak_bytes == 9
    assert gpu.temperature_max_c == {"edge": 90}


def test_a_window_of_fewer_than_four_samples_gives_way_to_the_whole_point() -> None:
    seen = [card(k, busy_ratio=k / 10) for k in range(7)]
    assert describe(seen, Stretch(2 * S, 5 * S)).gpus[0].busy_mean == pytest.approx(0.35)
    found = describe(seen, Stretch(3 * S, 5 * S))
    assert found.window == "whole point"
    assert found.gpus[0].busy_mean == pytest.approx(0.3)


def test_a_source_with_too_few_samples_in_the_window_does_not_take_it_from_the_others() -> None:
    seen = [card(k, busy_ratio=k / 10) for k in (0, 4, 8)]
    seen += [sample("engine", k, engine({"running": 10 * (k >= 5)})) for k in range(10)]
    found = describe(seen, Stretch(5 * S, 10 * S))
    assert found.engine is not None
    assert found.engine.running_mean == 10
    assert found.engine.running_share == 1.0
    assert found.gpus[0].busy_mean == pytest.approx(0.4)
    assert found.window == "window; amdgpu: whole point"


def test_a_card_has_the_name_that_its_driver_gives_it() -> None:
    labels = (("gpu", CARD), ("vendor", "amd"), ("card", "card1"), ("product", "AMD Radeon RX 6900 XT, 16 GB"))
    info: dict[str | Series, float] = {Series("gpu_info", labels): 1.0}
    (gpu,) = describe([sample("amdgpu", 0, info)]).gpus
    assert gpu.product == "AMD Radeon RX 6900 XT, 16 GB"
    nameless = sample("amdgpu", 0, {Series("gpu_info", (("gpu", CARD), ("product", ""))): 1.0})
    assert describe([nameless]).gpus[0].product is None
    assert describe([card(0, busy_ratio=0.5)]).gpus[0].product is None


def test_two_samples_of_one_instant_are_no_stretch_of_time() -> None:
    found = describe([card(5, energy_joules_total=1.0), card(5, energy_joules_total=9.0)])
    assert found.gpus[0].power_mean_w is None


def test_samples_outside_the_point_are_of_another() -> None:
    found = describe([card(-1, busy_ratio=1.0), card(5, busy_ratio=0.5), card(11, busy_ratio=1.0)])
    assert found.gpus[0].busy_mean == 0.5
    assert found.samples == 1


def test_joules_a_token_are_watts_over_tokens_a_second() -> None:
    seen = [card(k, power_watts__type_average=watts) for k, watts in enumerate((190, 210, 190, 210))]
    seen += [card(k, OTHER, power_watts__type_instant=100) for k in range(4)]
    found = describe(seen, tok_per_s=50)
    assert [(gpu.gpu, gpu.power_mean_w, gpu.joules_per_tok) for gpu in found.gpus] == [
        (OTHER, 100, 2),
        (CARD, 200, 4),
    ]
    assert found.joules_per_tok == 6
    assert describe(seen, tok_per_s=0).joules_per_tok is None
    assert describe(seen, tok_per_s=float("nan")).joules_per_tok is None


def test_an_energy_counter_that_moves_is_better_than_the_mean_of_moments() -> None:
    seen = [card(k, power_watts__type_average=999, energy_joules_total=5000 + 150 * k) for k in range(5)]
    assert describe(seen).gpus[0].power_mean_w == pytest.approx(150)
    stuck = [card(k, power_watts__type_average=99, energy_joules_total=5000) for k in range(5)]
    assert describe(stuck).gpus[0].power_mean_w == 99


def test_throttling_is_the_share_of_samples_with_any_reason() -> None:
    heat, power = (1, 1, 0, 0, 0), (0, 1, 1, 0, 0)
    seen = [card(k, throttled__reason_ppt0=power[k], throttled__reason_temp_edge=heat[k]) for k in range(5)]
    (gpu,) = describe(seen).gpus
    assert gpu.throttled_share == pytest.approx(3 / 5)
    assert gpu.throttle_reasons == {"ppt0": pytest.approx(2 / 5), "temp_edge": pytest.approx(2 / 5)}
    counted = [card(k, throttle_seconds_total__reason_thermal=0.25 * k) for k in range(5)]
    assert describe(counted).gpus[0].throttled_share == pytest.approx(0.25)
    late = [card(k, throttle_seconds_total__reason_thermal=1.1 * k) for k in range(5)]  # the clocks differ a little
    assert describe(late).gpus[0].throttled_share == 1
    never = describe([card(k, throttled__reason_ppt0=0) for k in range(5)]).gpus[0]
    assert (never.throttled_share, never.throttle_reasons) == (0, {})
    assert describe([card(k, busy_ratio=0) for k in range(5)]).gpus[0].throttled_share is None


def test_a_card_that_stops_answering_is_lost() -> None:
    assert describe([card(0, up=1), card(1, up=0)]).gpus[0].lost
    assert not describe([card(0, up=1), card(1, up=1)]).gpus[0].lost


def test_pcie_is_the_mean_of_what_passed_and_the_least_of_the_link() -> None:
    seen = [
        card(k, pcie_received_bytes_per_second=1e6 * k, pcie_link_width_lanes__state_current=16 - 8 * (k == 2))
        for k in range(4)
    ]
    (gpu,) = describe(seen).gpus
    assert gpu.pcie_received_bytes_per_s == pytest.approx(1.5e6)
    assert (gpu.pcie_width_lanes, gpu.pcie_sent_bytes_per_s) == (8, None)


def test_a_card_of_another_vendor_has_the_same_series() -> None:
    found = describe([sample("nvml", k, {f"gpu_busy_ratio{{gpu={CARD},vendor=nvidia}}": 0.25}) for k in range(4)])
    assert (found.gpus[0].gpu, found.gpus[0].busy_mean) == (CARD, 0.25)


def test_the_host_is_told_without_its_loopback_device() -> None:
    def host(at_s: int) -> Sample:
        cpu = {"user": 0.5, "system": 0.1, "iowait": 0.1, "steal": 0.05, "idle": 0.25}
        values: dict[str | Series, float] = {f"cadenza_host_cpu_ratio{{mode={m}}}": share for m, share in cpu.items()}
        values["cadenza_host_memory_available_bytes"] = 1000 - at_s
        for device, per_s in (("lo", 1e9), ("eth0", 300), ("eth1", 200)):
            values[f"cadenza_host_network_received_bytes_total{{device={device}}}"] = 7 + per_s * at_s
        return sample("host", at_s, values)

    found = describe([host(k) for k in range(5)]).host
    assert found is not None
    assert found.cpu_busy_mean == pytest.approx(0.65)  # all but idle and waiting for disks
    assert (found.cpu_steal_mean, found.cpu_iowait_mean) == (0.05, 0.1)
    assert found.memory_available_min_bytes == 996
    assert found.network_received_bytes_per_s == pytest.approx(500)
    assert found.network_sent_bytes_per_s is None
    assert Host() != found


def test_gauges_of_several_servers_add_up_and_the_fullest_cache_counts() -> None:
    def page(at_s: int, waiting: int) -> Sample:
        values: dict[str | Series, float] = {}
        for target, kv in ((0, 0.5), (1, 0.7)):
            values |= engine({"running": 4, "waiting": waiting * target, "kv_usage": kv}, target)
        return sample("engine", at_s, values)

    found = describe([page(k, waiting) for k, waiting in enumerate((0, 2, 0, 6))]).engine
    assert found == Engine(
        running_mean=8,
        running_peak=8,
        running_share=1.0,
        waiting_mean=2,
        waiting_peak=6,
        waiting_share=0.5,
        kv_usage_mean=0.7,
        kv_usage_peak=0.7,
    )


def test_counters_are_the_difference_between_the_points_edges() -> None:
    start = {"preemptions_total": 3, "prefix_queries_tok": 100, "prefix_hits_tok": 50}
    end = {"preemptions_total": 5, "prefix_queries_tok": 300, "prefix_hits_tok": 100}
    found = describe(edges(start, end)).engine
    assert found == Engine(preemptions=2, prefix_hit_rate=0.25)
    assert describe(edges(end, start)).engine is None  # started anew: nobody knows


def test_the_models_own_series_are_taken_or_the_only_one_there_is() -> None:
    one, other = (Series("n", (("target", "0"), ("model", model))) for model in ("m", "a,b=c"))
    both = track([sample("edge", 0, {one: 1, other: 2, "up": 3})])
    assert list(pick_model(both, "m")) == [one]
    assert list(pick_model(both, "a,b=c")) == [other]
    assert pick_model(both, "z") == {}
    alone = track([sample("edge", 0, {"n{target=0,model=served}": 1, "up": 3})])
    assert list(pick_model(alone, "m")) == [series("n{target=0,model=served}")]
    assert pick_model(track([sample("edge", 0, {"up": 3})]), "m") == {}


def test_a_series_that_comes_and_goes_is_one_track_in_order_of_time() -> None:
    rows = [sample("x", 2, {"a": 2, "b": 9}), sample("x", 0, {"a": 0}), sample("x", 1, {"b": 8, "a": 1})]
    found = track(rows)
    assert found[Series("a")].values.tolist() == [0, 1, 2]
    assert found[Series("a")].at_ns.tolist() == [0, S, 2 * S]
    assert found[Series("b")].values.tolist() == [8, 9]


def test_growth_needs_two_edges_and_a_counter_that_did_not_fall() -> None:
    first, last = (track([one]) for one in edges({"n": 3}, {"n": 7, "fresh": 2}))
    assert growth([first, last], "m", "n") == 4
    assert growth([first, last], "m", "fresh") == 2
    assert growth([first, last], "m", "none") is None
    assert growth([last, first], "m", "n") is None
    assert growth([first], "m", "n") is None
    # One of two servers was started anew: what the other did is not the sum.
    pages = ((0, engine({"n": 5}) | engine({"n": 0}, 1)), (9, engine({"n": 1}) | engine({"n": 9}, 1)))
    two = [track([sample("edge", at_s, values, 0)]) for at_s, values in pages]
    assert growth(two, "m", "n") is None


def test_the_kernels_log_counts_what_was_added_during_the_point() -> None:
    def lines(at_s: float, count: int) -> Sample:
        return sample("kernel", at_s, {f"cadenza_kernel_events_total{{event=ring_timeout,gpu={CARD}}}": count})

    assert describe([lines(-1, 2), lines(5, 2), lines(9, 3), lines(11, 9)]).kernel == {f"ring_timeout {CARD}": 1}
    assert describe([lines(5, 1)]).kernel == {f"ring_timeout {CARD}": 1}
    assert describe([lines(-1, 2), lines(5, 2)]).kernel == {}
    # A sampler that was started anew counts from 0, before the point or in it.
    assert describe([lines(-9, 5), lines(-1, 0), lines(5, 1), lines(9, 2)]).kernel == {f"ring_timeout {CARD}": 2}
    assert describe([lines(-1, 5), lines(3, 6), lines(5, 0), lines(9, 2)]).kernel == {f"ring_timeout {CARD}": 3}


def test_what_could_not_be_seen_is_said_with_its_reason() -> None:
    gaps = [("amdgpu", "amdgpu", "", "absent"), ("nvml", "nvml", "", "failed"), ("edge", "page", "", "denied")]
    found = describe_machine(log([], gaps), POINT, WHOLE, WHOLE, 1.0)
    assert found.unseen == [
        "a GPU (amdgpu: absent, nvml: failed)",
        "the engine's metrics (denied)",
        "the host",
    ]
    gaps = [("rocm_smi", "rocm_smi", "", "timeout")]
    assert describe_machine(log([], gaps), POINT, WHOLE, WHOLE, 1.0).unseen[0] == "a GPU (rocm_smi: timeout)"
    gaps = [("kernel", "cadenza_kernel_events_total", "", "denied")]
    assert describe_machine(log([], gaps), POINT, WHOLE, WHOLE, 1.0).unseen[-1] == "the kernel's log (denied)"
    read = sample("kernel", 1, {"cadenza_kernel_events_total{event=xid}": 0})
    assert describe_machine(log([read], gaps), POINT, WHOLE, WHOLE, 1.0).unseen[-1] == "the host"
    gaps = [("amdgpu", "gpu_fan_speed_rpm", CARD, "absent")]
    seen = [card(1, busy_ratio=0.0), sample("host", 1, {"cadenza_host_cores": 2}), *edges({"n": 0}, {"n": 1})]
    assert describe_machine(log(seen, gaps), POINT, WHOLE, WHOLE, 1.0).unseen == [f"of {CARD} fan_speed_rpm (absent)"]
    assert not describe(seen, here=False).server_here


def test_virtual_time_has_a_page_at_its_edges_and_no_machine_to_miss() -> None:
    virtual = Point(index=0, model="m", load=LoadLabel.CLOSED, concurrency=1, virtual=True)
    seen = log(edges({"preemptions_total": 0}, {"preemptions_total": 1}))
    found = describe_machine(seen, virtual, WHOLE, WHOLE, 1.0)
    assert (found.virtual, found.unseen, found.gpus, found.host) == (True, [], [], None)
    assert found.engine == Engine(preemptions=1)
    # What a card did until the very start it did before.
    seen = log([card(k, busy_ratio=float(k > 0)) for k in range(5)])
    assert describe_machine(seen, virtual, WHOLE, WHOLE, 1.0).gpus[0].busy_mean == 1
    # Nobody who samples there can be late; and cards that were looked for and not found are told.
    seen = log([card(0, busy_ratio=0.5), card(1, busy_ratio=0.5)])
    assert describe_machine(seen, virtual, WHOLE, WHOLE, 1.0).unwatched_s == {}
    assert describe_machine(seen, POINT, WHOLE, WHOLE, 1.0).unwatched_s == {"amdgpu": 9}
    none = log(edges({"n": 0}, {"n": 1}), [("amdgpu", "amdgpu", "", "absent")])
    assert describe_machine(none, virtual, WHOLE, WHOLE, 1.0).unseen == ["a GPU (amdgpu: absent)"]


def test_an_empty_log_is_no_error() -> None:
    found = describe_machine(ReadingTable(True, [], []), POINT, WHOLE, Stretch(0, -1), float("nan"))
    assert (found.samples, found.gpus, found.engine, found.joules_per_tok) == (0, [], None, None)
    assert engine({"n": 1}) == {series("n{engine=vllm,target=0,model=m}"): 1}
