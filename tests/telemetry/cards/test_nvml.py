"""NVML's answers as readings: a stand-in with pynvml's names, whose every function can fail with every code."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.readings import Collected, Missing, Reading
from cadenza.telemetry.cards.nvml import NvmlCollector
from cadenza.telemetry.families import FAMILIES

GPU = "0000:65:00.0"
GIB = 2**30
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST, UNKNOWN = 3, 4, 9, 10, 15, 999
Card = dict[Any, Any]

# Numbers as nvml.h has them.
NAMES = {
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN": 0,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
    "NVML_TEMPERATURE_THRESHOLD_MEM_MAX": 2,
    "NVML_CLOCK_GRAPHICS": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_CLOCK_VIDEO": 3,
    "NVML_PCIE_UTIL_TX_BYTES": 0,
    "NVML_PCIE_UTIL_RX_BYTES": 1,
    "NVML_FI_DEV_MEMORY_TEMP": 82,
    "NVML_FI_DEV_POWER_AVERAGE": 185,
    "NVML_FI_DEV_POWER_INSTANT": 186,
    "nvmlMemory_v2": 0x02000028,
}


class NVMLError(Exception):
    """As pynvml's: the code is `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Nvml:
    """A card is a table: (a function's name without nvmlDeviceGet, its arguments) → what it gives, or raises.

    What is not in it is not supported; "all" stands for every function.
    """

    NVMLError = NVMLError

    def __init__(self, *cards: Card, **broken: Exception) -> None:
        self.cards = list(cards)
        self.broken = broken
        self.inits = 0

    def __getattr__(self, name: str) -> Any:
        if name in NAMES:
            return NAMES[name]
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def ask(handle: Card, *arguments: Any) -> Any:
            return self.answer(handle, (name.removeprefix("nvmlDeviceGet"), *arguments))

        return ask

    def answer(self, card: Card, question: Any) -> Any:
        answer = card.get("all", card.get(question, NVMLError(NOT_SUPPORTED)))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1
        if "init" in self.broken:
            raise self.broken["init"]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if "count" in self.broken:
            raise self.broken["count"]
        return len(self.cards)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "575.51.03"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        if "handle" in self.broken:
            raise self.broken["handle"]
        return self.cards[index]

    def nvmlDeviceGetPciInfo(self, handle: Card) -> Any:  # noqa: N802
        return SimpleNamespace(busId=handle["busId"])

    def nvmlDeviceGetFieldValues(self, handle: Card, fields: list[int]) -> Any:  # noqa: N802
        try:
            value = self.answer(handle, ("Field", fields[0]))
        except NVMLError as error:
            return [SimpleNamespace(nvmlReturn=error.value)]
        return [SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=value))]


def h200(**changes: Any) -> Card:
    return {
        "busId": "00000000:65:00.0",
        ("Name",): "NVIDIA H200",
        ("UUID",): "GPU-6b5d1a0e",
        ("VbiosVersion",): "96.00.99.00.0A",
        ("UtilizationRates",): SimpleNamespace(gpu=87, memory=41),
        ("MemoryInfo", NAMES["nvmlMemory_v2"]): SimpleNamespace(total=141 * GIB, used=120 * GIB),
        ("Temperature", 0): 61,
        ("TemperatureThreshold", 0): 92,
        ("TemperatureThreshold", 1): 89,
        ("TemperatureThreshold", 2): 95,
        ("Field", 82): 71,
        ("Field", 185): 640_250,
        ("Field", 186): 655_000,
        ("EnforcedPowerLimit",): 700_000,
        ("TotalEnergyConsumption",): 123_456_789,
        ("ClockInfo", 0): 1980,
        ("ClockInfo", 1): 1965,
        ("ClockInfo", 2): 3201,
        ("ClockInfo", 3): 1500,
        ("CurrentClocksEventReasons",): 0x1 | 0x4 | 0x40,
        ("CurrPcieLinkGeneration",): 4,
        ("MaxPcieLinkGeneration",): 5,
        ("CurrPcieLinkWidth",): 8,
        ("MaxPcieLinkWidth",): 16,
        ("PcieReplayCounter",): 3,
        ("PcieThroughput", 0): 250,
        ("PcieThroughput", 1): 1_250_000,
        **changes,
    }


def values(collected: Collected) -> dict[tuple[str, ...], float]:
    return {
        (name.removeprefix("gpu_"), *(text for _, text in labels[2:])): value
        for name, labels, value in collected.readings
        if name != "gpu_info"
    }


def reasons(collected: Collected) -> set[tuple[str, str]]:
    return {(lack.name.removeprefix("gpu_"), lack.reason) for lack in collected.missing}


def down(gpu: str = GPU) -> Reading:
    return Reading("gpu_up", (("gpu", gpu), ("vendor", "nvidia")), 0.0)


def test_a_data_centre_card() -> None:
    collected = NvmlCollector(Nvml(h200())).collect()
    others = (
        *("applications_clocks_setting", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
        *("hw_power_brake_slowdown", "display_clock_setting"),
    )
    expected: dict[tuple[str, ...], float] = {
        ("up",): 1.0,
        ("busy_ratio",): 0.87,
        ("memory_busy_ratio",): 0.41,
        ("memory_size_bytes", "vram"): 141.0 * GIB,
        ("memory_used_bytes", "vram"): 120.0 * GIB,
        ("temperature_celsius", "gpu"): 61.0,
        ("temperature_celsius", "mem"): 71.0,
        ("temperature_limit_celsius", "gpu", "crit"): 89.0,
        ("temperature_limit_celsius", "gpu", "emergency"): 92.0,
        ("temperature_limit_celsius", "mem", "crit"): 95.0,
        ("power_watts", "average"): 640.25,
        ("power_watts", "instant"): 655.0,
        ("power_cap_watts",): 700.0,
        ("energy_joules_total",): 123_456.789,
        ("clock_hertz", "graphics"): 1980e6,
        ("clock_hertz", "sm"): 1965e6,
        ("clock_hertz", "mem"): 3201e6,
        ("clock_hertz", "video"): 1500e6,
        ("throttled", "sw_power_cap"): 1.0,
        ("throttled", "hw_thermal_slowdown"): 1.0,
        **{("throttled", reason): 0.0 for reason in others},
        ("pcie_link_speed_transfers_per_second", "current"): 16e9,
        ("pcie_link_speed_transfers_per_second", "max"): 32e9,
        ("pcie_link_width_lanes", "current"): 8.0,
        ("pcie_link_width_lanes", "max"): 16.0,
        ("pcie_replays_total",): 3.0,
        ("pcie_sent_bytes_per_second",): 250e3,
        ("pcie_received_bytes_per_second",): 1.25e9,
    }
    assert values(collected) == expected
    assert reasons(collected) == {("fan_ratio", "not_supported")}
    facts = {"product": "NVIDIA H200", "driver": "575.51.03", "uuid": "GPU-6b5d1a0e", "vbios": "96.00.99.00.0A"}
    (info,) = (dict(labels) for name, labels, _ in collected.readings if name == "gpu_info")
    assert {name: text for name, text in info.items() if text} == {"gpu": GPU, "vendor": "nvidia", **facts}
    assert {labels[0] for _, labels, _ in collected.readings} == {("gpu", GPU)}


def test_a_card_without_its_functions_is_absent_there_never_zero() -> None:
    collected = NvmlCollector(Nvml({"busId": b"00000000:0A:00.0"})).collect()
    texts = [(name, {label: text for label, text in labels if text}) for name, labels, _ in collected.readings]
    assert texts == [("gpu_info", {"gpu": "0000:0a:00.0", "vendor": "nvidia", "driver": "575.51.03"})]
    assert {lack.reason for lack in collected.missing} == {"not_supported"}
    assert {"gpu_busy_ratio", "gpu_power_watts", "gpu_throttled"} <= {lack.name for lack in collected.missing}


@pytest.mark.parametrize(
    ("question", "code", "family", "reason"),
    [
        (("UtilizationRates",), NOT_SUPPORTED, "busy_ratio", "not_supported"),
        (("EnforcedPowerLimit",), NO_PERMISSION, "power_cap_watts", "denied"),
        (("TotalEnergyConsumption",), TIMEOUT, "energy_joules_total", "timeout"),
        (("PcieReplayCounter",), 13, "pcie_replays_total", "absent"),
        (("CurrentClocksEventReasons",), UNKNOWN, "throttled", "failed"),
        (("Field", 82), NOT_SUPPORTED, "temperature_celsius", "not_supported"),
    ],
)
def test_codes_have_their_reason(question: Any, code: int, family: str, reason: str) -> None:
    collected = NvmlCollector(Nvml({**h200(), question: NVMLError(code)})).collect()
    assert (family, reason) in reasons(collected)
    assert values(collected)["up",] == 1.0


@pytest.mark.parametrize(
    ("question", "answer", "family", "reason"),
    [
        (("UtilizationRates",), SimpleNamespace(gpu=255, memory=41), "busy_ratio", "out_of_range"),
        (("Temperature", 0), 4294967295, "temperature_celsius", "out_of_range"),
        (("CurrPcieLinkWidth",), 0, "pcie_link_width_lanes", "out_of_range"),
        (("CurrPcieLinkGeneration",), 9, "pcie_link_speed_transfers_per_second", "malformed"),
        (("EnforcedPowerLimit",), None, "power_cap_watts", "malformed"),
        (("TotalEnergyConsumption",), float("nan"), "energy_joules_total", "out_of_range"),
    ],
)
def test_answers_that_are_none_have_their_reason(question: Any, answer: Any, family: str, reason: str) -> None:
    collected = NvmlCollector(Nvml({**h200(), question: answer})).collect()
    assert (family, reason) in reasons(collected)
    whole = values(NvmlCollector(Nvml(h200())).collect())
    assert values(collected).items() < whole.items()


def test_an_old_driver_has_one_power_and_other_names() -> None:
    card = h200()
    for question in (("Field", 185), ("Field", 186), ("CurrentClocksEventReasons",)):
        del card[question]
    card[("PowerUsage",)] = 240_000
    card[("CurrentClocksThrottleReasons",)] = 0x8
    del card[("MemoryInfo", NAMES["nvmlMemory_v2"])]
    card[("MemoryInfo",)] = SimpleNamespace(total=80 * GIB, used=GIB)
    told = values(NvmlCollector(Nvml(card)).collect())
    assert {key: value for key, value in told.items() if key[0] == "power_watts"} == {("power_watts", "instant"): 240.0}
    assert told["memory_used_bytes", "vram"] == GIB


def test_a_lost_card_is_down_and_nothing_else_and_comes_back() -> None:
    library = Nvml(h200(), h200(busId="00000000:CA:00.0"))
    collector = NvmlCollector(library)
    before = collector.collect()
    library.cards[0]["all"] = NVMLError(GPU_IS_LOST)
    lost = collector.collect()
    assert [reading for reading in lost.readings if reading.labels[0] == ("gpu", GPU)] == [down()]
    assert values(Collected([r for r in lost.readings if r.labels[0] != ("gpu", GPU)], []))["up",] == 1.0
    assert not any(lack.gpu == GPU for lack in lost.missing)
    del library.cards[0]["all"]
    assert collector.collect() == before


def test_a_card_lost_in_the_middle_of_a_round_leaves_no_half_of_it() -> None:
    for question in h200():
        if question != "busId":
            collected = NvmlCollector(Nvml({**h200(), question: NVMLError(GPU_IS_LOST)})).collect()
            assert collected == Collected([down()], [])


def test_a_card_whose_handle_is_lost_keeps_its_address() -> None:
    library = Nvml(h200())
    collector = NvmlCollector(library)
    collector.collect()
    library.broken["handle"] = NVMLError(GPU_IS_LOST)
    assert collector.collect() == Collected([down()], [])
    assert NvmlCollector(library).collect() == Collected([], [Missing("gpu_up", "", "absent")])


def test_a_card_that_is_not_counted_any_more_is_down() -> None:
    library = Nvml(h200(), h200(busId="00000000:CA:00.0"))
    collector = NvmlCollector(library)
    collector.collect()
    library.cards.pop()
    assert down("0000:ca:00.0") in collector.collect().readings


def test_without_a_driver_it_says_so_once_and_looks_again_later() -> None:
    library = Nvml(h200(), init=NVMLError(DRIVER_NOT_LOADED))
    collector = NvmlCollector(library)
    rounds = [collector.collect() for _ in range(121)]
    assert rounds == [Collected([], [Missing("nvml", "", "absent")]), *[Collected([], [])] * 120]
    assert library.inits == 1
    library.broken.clear()
    assert values(collector.collect())["up",] == 1.0


def test_without_the_library_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    collector = NvmlCollector()
    assert collector.collect() == Collected([], [Missing("nvml", "", "absent")])
    assert collector.collect() == Collected([], [])


def test_no_card_at_all_is_absent_and_an_unloaded_driver_begins_anew() -> None:
    assert NvmlCollector(Nvml()).collect() == Collected([], [Missing("nvml", "", "absent")])
    library = Nvml(h200())
    collector = NvmlCollector(library)
    collector.collect()
    library.broken["count"] = NVMLError(1)
    assert collector.collect() == Collected([], [Missing("nvml", "", "failed")])
    library.broken.clear()
    assert values(collector.collect())["up",] == 1.0
    assert library.inits == 2


def test_a_driver_that_begins_anew_may_count_other_cards_and_have_another_version() -> None:
    library = Nvml(h200(), h200(busId="00000000:17:00.0"))
    collector = NvmlCollector(library)
    collector.collect()
    library.broken["count"] = NVMLError(DRIVER_NOT_LOADED)
    collector.collect()
    del library.broken["count"]
    library.cards = [h200(busId="00000000:17:00.0") | {("VbiosVersion",): "96.00.A0"}]
    readings = collector.collect().readings
    up = {reading.labels[0][1]: reading.value for reading in readings if reading.name == "gpu_up"}
    assert up == {"0000:17:00.0": 1, GPU: 0}
    (info,) = (dict(reading.labels) for reading in readings if reading.name == "gpu_info")
    assert info["vbios"] == "96.00.A0"


def test_throughput_is_asked_for_only_where_wanted() -> None:
    told = values(NvmlCollector(Nvml(h200()), pcie=False).collect())
    assert not any("bytes_per_second" in key[0] for key in told)


QUESTIONS = sorted((question for question in h200() if question != "busId"), key=str)
ANSWERS = st.one_of(
    st.sampled_from([NVMLError(code) for code in (*range(1, 31), UNKNOWN)]),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
    st.builds(SimpleNamespace, gpu=st.integers(), memory=st.floats(), total=st.integers(), used=st.none()),
)


@given(st.dictionaries(st.sampled_from(QUESTIONS), ANSWERS))
def test_any_answers(changes: Card) -> None:
    collected = NvmlCollector(Nvml({**h200(), **changes})).collect()
    keys = [(name, labels) for name, labels, _ in collected.readings]
    assert len(set(keys)) == len(keys)
    for name, labels, value in collected.readings:
        assert tuple(label for label, _ in labels) == FAMILIES[name].labels
        assert all(text.isprintable() for _, text in labels)
        assert math.isfinite(value)
        assert not name.endswith("_ratio") or 0 <= value <= 1
    assert all(lack.name in FAMILIES and lack.gpu == GPU for lack in collected.missing)


def test_the_stand_in_has_the_real_names() -> None:
    pynvml = pytest.importorskip("pynvml", reason="the extra [nvidia] is not installed")
    assert {name: getattr(pynvml, name) for name in NAMES} == NAMES
    for name in ("GpuIsLost", "NotSupported", "DriverNotLoaded", "NoPermission", "Timeout"):
        assert issubclass(getattr(pynvml, f"NVMLError_{name}"), pynvml.NVMLError)
    codes = ("NOT_SUPPORTED", "NO_PERMISSION", "DRIVER_NOT_LOADED", "TIMEOUT", "GPU_IS_LOST", "UNKNOWN")
    assert [getattr(pynvml, f"NVML_ERROR_{code}") for code in codes] == [
        *(NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST, UNKNOWN)
    ]
    assert isinstance(pynvml.NVMLError(GPU_IS_LOST), pynvml.NVMLError_GpuIsLost)
    assert pynvml.NVMLError(GPU_IS_LOST).value == GPU_IS_LOST
    for question in QUESTIONS:
        assert question[0] == "Field" or callable(getattr(pynvml, f"nvmlDeviceGet{question[0]}"))
