"""The model against the published steady state, closed forms worked out here, and itself when asked more often."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.engine.board.card import IDLE, Activity, load, names
from cadenza.engine.board.thermal import ThermalModel

SECOND = 10**9
FOUR_HOURS = 4 * 3600 * SECOND
MI50, RX = load("mi50-32gb"), load("rx6900xt")
# What the two cards do when a step of tensor parallelism takes the MI50 all the time and the RX 79 % of it.
MI50_SOAK = Activity(busy=1.0, memory_busy=0.10, vram_used_bytes=0)
RX_SOAK = Activity(busy=0.79, memory_busy=0.18, vram_used_bytes=0, waiting=0.21)

shares = st.floats(0, 1)
activities = st.builds(
    lambda busy, rest, memory: Activity(busy, memory, 0, waiting=(1 - busy) * rest), shares, shares, shares
)


def run(name: str, activity: Activity, ns: int) -> ThermalModel:
    model = ThermalModel(load(name), 0)
    model.advance(ns, activity)
    return model


def test_the_mi50_settles_at_the_temperatures_of_the_published_steady_state() -> None:
    model = run("mi50-32gb", MI50_SOAK, FOUR_HOURS)
    assert model.temperatures == pytest.approx((68.4, 76.1, 64.2), abs=0.05)
    assert (model.throttle_events, model.throttle_s, model.reasons) == (0, 0.0, ())


def test_the_rx_settles_at_the_temperatures_and_the_fan_of_the_published_steady_state() -> None:
    model = run("rx6900xt", RX_SOAK, FOUR_HOURS)
    assert model.temperatures[:2] == pytest.approx((72.1, 88.6), abs=0.05)
    assert model.pwm == pytest.approx(0.68, abs=0.005)
    assert (model.throttle_events, model.throttle_s, model.reasons) == (0, 0.0, ())


@pytest.mark.parametrize(("busy", "memory_busy"), [(0.97, 0.10), (1.0, 0.12), (1.0, 0.08)])
def test_the_soak_holds_for_an_engine_that_is_a_little_less_or_more_busy(busy: float, memory_busy: float) -> None:
    model = run("mi50-32gb", Activity(busy, memory_busy, 0), FOUR_HOURS)
    assert model.temperatures == pytest.approx((68.4, 76.1, 64.2), abs=1.6)


def test_the_mi300x_passes_through_the_published_metrics() -> None:
    model = run("mi300x", Activity(1.0, 0.38, 0), FOUR_HOURS)
    assert model.temperatures[1:] == pytest.approx((63, 55), abs=0.05)
    assert model.draw.die_w + model.draw.memory_w == pytest.approx(612, abs=0.5)
    # the second of them: 748 W, 71 and 60 °C
    hotter = run("mi300x", Activity(0.99, 0.52, 0), FOUR_HOURS)
    assert hotter.temperatures[1:] == pytest.approx((71, 60), abs=8)


@pytest.mark.parametrize(
    ("name", "busy", "memory_busy", "power_w"), [("mi50-32gb", 0.97, 0.31, 187), ("rx6900xt", 1.0, 0.44, 254)]
)
def test_the_power_of_the_sample_tree(name: str, busy: float, memory_busy: float, power_w: float) -> None:
    draw = run(name, Activity(busy, memory_busy, 0), SECOND).draw
    assert draw.die_w + draw.memory_w == pytest.approx(power_w, abs=0.5)


@pytest.mark.parametrize(("name", "power_w"), [("mi50-32gb", 21), ("rx6900xt", 26), ("mi300x", 137)])
def test_an_idle_card_stays_where_it_began(name: str, power_w: float) -> None:
    model = ThermalModel(load(name), 0)
    first = model.temperatures
    model.advance(FOUR_HOURS, IDLE)
    assert model.temperatures == pytest.approx(first, abs=0.1)
    assert 27 < min(first) <= max(first) < 45
    assert model.energy_j == pytest.approx(power_w * 4 * 3600, rel=1e-9)


@pytest.mark.parametrize("seconds", [0.1, 1.0, 7.5, 60.0, 400.0])
def test_a_step_of_load_is_answered_by_the_exponentials_of_the_circuit(seconds: float) -> None:
    """MI50 in a steady stream of air: conductance, and so every time constant, is one number."""
    power, cooler, steady = MI50.power, MI50.cooler, MI50.steady
    idle_die_w, die_w = 21 - 8, 21 - 8 + 155 * 1.0
    idle_memory_w, memory_w = 8, 8 + 50 * 0.10
    assert (power.idle_w, power.memory_idle_w, power.core_w, power.memory_w) == (21, 8, 155, 50)
    conductance = (die_w + memory_w) / (steady.sink_c - cooler.ambient_c)

    def lag(before: float, after: float, tau_s: float) -> float:
        return after + (before - after) * math.exp(-seconds / tau_s)

    cold_c = cooler.ambient_c + 21 / conductance
    sink_c = lag(cold_c, steady.sink_c, cooler.sink_j_per_k / conductance)
    die = lag(idle_die_w, die_w, cooler.die_s) / die_w
    memory = lag(idle_memory_w, memory_w, cooler.memory_s) / memory_w
    expected = (
        sink_c + die * (steady.edge_c - steady.sink_c),
        sink_c + die * (steady.junction_c - steady.sink_c),
        sink_c + memory * (steady.memory_c - steady.sink_c),
    )
    found = run("mi50-32gb", MI50_SOAK, round(seconds * SECOND))
    assert found.temperatures == pytest.approx(expected, abs=1e-6)
    assert found.energy_j == pytest.approx(181 * seconds, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(names()),
    activity=activities,
    start_ns=st.integers(0, 10 * SECOND),
    cuts=st.lists(st.integers(1, 400 * SECOND), max_size=30),
    airless=st.booleans(),
)
def test_it_does_not_matter_how_finely_a_constant_load_is_cut(
    name: str, activity: Activity, start_ns: int, cuts: list[int], airless: bool
) -> None:
    whole, cut = ThermalModel(load(name), start_ns), ThermalModel(load(name), start_ns)
    if airless:
        whole.fail_air()
        cut.fail_air()
    end_ns = start_ns + 401 * SECOND
    whole.advance(end_ns, activity)
    for at in sorted(cuts):
        cut.advance(start_ns + at, activity)
    cut.advance(end_ns, activity)
    assert_alike(cut, whole)


@pytest.mark.parametrize("airless", [False, True])
@pytest.mark.parametrize("name", names())
def test_a_look_every_third_of_a_second_is_as_good_as_one(name: str, airless: bool) -> None:
    """Through a fan that follows, throttling and a shutdown, each of which a look between two ticks could disturb."""
    whole, cut = ThermalModel(load(name), 0), ThermalModel(load(name), 0)
    work = Activity(1.0, 0.3, 0)
    if airless:
        whole.fail_air()
        cut.fail_air()
    for step in range(1, 1501):
        cut.advance(step * SECOND // 3, work)
    whole.advance(500 * SECOND, work)
    assert_alike(cut, whole)
    assert bool(whole.events) == airless


def assert_alike(cut: ThermalModel, whole: ThermalModel) -> None:
    assert tuple(cut.temperatures) == pytest.approx(tuple(whole.temperatures), abs=1e-9)
    assert cut.energy_j == pytest.approx(whole.energy_j, rel=1e-12)
    assert cut.throttle_s == pytest.approx(whole.throttle_s, abs=1e-9)
    assert cut.pwm == pytest.approx(whole.pwm, abs=1e-12)
    assert (cut.draw, cut.events, cut.reasons) == (whole.draw, whole.events, whole.reasons)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(names()), work=st.lists(activities, min_size=1, max_size=20))
def test_no_card_leaves_its_limits_while_its_air_flows(name: str, work: list[Activity]) -> None:
    model = ThermalModel(load(name), 0)
    for step, activity in enumerate(work, 1):
        model.advance(step * 300 * SECOND, activity)
        found = model.temperatures
        assert not model.lost
        assert model.card.cooler.ambient_c < min(found)
        assert found.edge <= found.junction + 1e-9
        assert model.draw.die_w + model.draw.memory_w <= model.card.power.cap_w + 1e-6
        assert model.throttle_s <= step * 300


def test_the_power_cap_lowers_the_clock_by_the_cube_root() -> None:
    model = run("mi50-32gb", Activity(1.0, 1.0, 0), 10 * SECOND)
    assert model.draw.die_w + model.draw.memory_w == pytest.approx(225)
    # 225 = 21 idle + 50 memory + 155 · s³
    assert model.draw.speed == pytest.approx((154 / 155) ** (1 / 3))
    assert (model.reasons, model.throttle_events) == (("ppt",), 1)
    assert model.throttle_s == pytest.approx(10)
    model.advance(20 * SECOND, IDLE)
    assert (model.reasons, model.throttle_events) == ((), 1)


def test_waiting_draws_a_fraction_of_computing() -> None:
    spinning = run("mi50-32gb", Activity(0.0, 0.0, 0, waiting=1.0), SECOND)
    assert spinning.draw.die_w + spinning.draw.memory_w == pytest.approx(21 + 0.15 * 155)


def test_without_air_the_mi50_heats_throttles_and_at_last_switches_itself_off() -> None:
    model = run("mi50-32gb", MI50_SOAK, FOUR_HOURS)
    model.fail_air()
    hottest, speeds, started = 0.0, [], FOUR_HOURS
    while not model.lost and model.now_ns < started + 3600 * SECOND:
        before = model.temperatures.junction
        model.advance(model.now_ns + SECOND, MI50_SOAK)
        hottest = max(hottest, *model.temperatures)
        speeds.append(model.draw.speed)
        assert model.throttle_events > 0 or model.temperatures.junction > before
    assert model.lost
    assert [event for _, event in model.events] == ["throttle", "shutdown"]
    # the slowest clock of its table, 930 of 1725 MHz
    assert min(speeds[:-1]) == pytest.approx(930 / 1725)
    assert 99 <= hottest < 111
    after = model.temperatures
    model.advance(model.now_ns + 600 * SECOND, MI50_SOAK)
    assert max(model.temperatures) < max(after)
    assert (model.draw.die_w, model.draw.memory_w) == (0, 0)


def test_without_its_fan_the_rx_lives_on_at_its_slowest_clock() -> None:
    model = run("rx6900xt", RX_SOAK, FOUR_HOURS)
    model.fail_air()
    model.advance(FOUR_HOURS + 1800 * SECOND, RX_SOAK)
    assert not model.lost
    assert model.fan_rpm == 0
    assert model.pwm > 0.68  # the controller asks for more, in vain
    assert model.throttle_events == 1
    assert model.draw.speed < 0.5


def test_a_clock_lowered_for_heat_comes_back_when_the_card_is_cool() -> None:
    model = run("rx6900xt", RX_SOAK, 600 * SECOND)
    model.fail_air()
    model.advance(1200 * SECOND, RX_SOAK)
    assert model.draw.speed < 1
    model.advance(2 * 3600 * SECOND, IDLE)
    assert (model.draw.speed, model.reasons) == (1.0, ())


def test_time_that_has_gone_by_changes_nothing() -> None:
    model = run("mi50-32gb", MI50_SOAK, 60 * SECOND)
    before = (model.now_ns, model.temperatures, model.energy_j)
    model.advance(60 * SECOND, IDLE)
    model.advance(30 * SECOND, IDLE)
    assert (model.now_ns, model.temperatures, model.energy_j) == before


def test_more_air_in_the_duct_is_cooler_by_the_power_of_the_flow() -> None:
    assert MI50.duct is not None
    doubled = msgspec.structs.replace(MI50, duct=msgspec.structs.replace(MI50.duct, airflow_m3_h=140))
    model = ThermalModel(doubled, 0)
    model.advance(FOUR_HOURS, MI50_SOAK)
    forced = 181 / (60 - 25) - 0.4
    sink_c = 25 + 181 / (0.4 + forced * 2**0.8)
    assert model.temperatures.edge == pytest.approx(sink_c + 8.4, abs=1e-6)
