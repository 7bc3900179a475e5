"""NVIDIA cards, through the driver's own library (NVML) and its Python binding, nvidia-ml-py: extra `[nvidia]`.

`gpu` is the PCI address as the kernel writes it: 0000:65:00.0. Source: NVML API reference.
"""

import importlib
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any

from cadenza.readings import Collected, Collector, Missing, Reading, Reason
from cadenza.record import printable
from cadenza.telemetry.cards.smi import pci_address
from cadenza.telemetry.findings import RANGES, Findings

_EXPECTED = (
    *("gpu_busy_ratio", "gpu_memory_busy_ratio", "gpu_memory_size_bytes", "gpu_memory_used_bytes"),
    *("gpu_temperature_celsius", "gpu_power_watts", "gpu_power_cap_watts", "gpu_energy_joules_total"),
    *("gpu_clock_hertz", "gpu_fan_ratio", "gpu_throttled"),
    *("gpu_pcie_link_speed_transfers_per_second", "gpu_pcie_link_width_lanes", "gpu_pcie_replays_total"),
)
_CONSTANT = ("gpu_temperature_limit_celsius",)
_PCIE = ("gpu_pcie_received_bytes_per_second", "gpu_pcie_sent_bytes_per_second")
# Of nvmlClocksEventReasons, without GpuIdle: an idle clock is nobody's limit.
_THROTTLING = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# PCI Express, by generation: transfers a second and lane.
_LINK_SPEEDS = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
_FIELD_VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_MILLI = 1000
_MHZ = 1e6
_KB = 1000
_PER_CENT = 100
_RETRY_ROUNDS = 120
_LABEL_CHARS = 128


# NVML's return codes, by their numbers, which the driver's ABI keeps.
_GPU_IS_LOST = 15
_REASONS: dict[int, Reason] = {
    3: "not_supported",
    4: "denied",
    6: "absent",  # not found
    9: "absent",  # driver not loaded
    10: "timeout",
    12: "absent",  # library not found
    13: "absent",  # function not found: the driver is older
    22: "not_supported",
    24: "not_supported",
    28: "absent",  # GPU not found
}


class _LostError(Exception):
    """The card has fallen off the bus."""


class NvmlCollector(Collector):
    """Every card that NVML shows. `library` stands in for the module `pynvml`; None: it is imported by the first round.

    Without the library, or without the driver, the first round has one Missing (absent), and the following ones have
    nothing at all; the driver is looked for again every 120 rounds. `pcie`: throughput too, for which NVML itself waits
    20 ms a direction and card.
    """

    name = "nvml"

    def __init__(self, library: Any = None, pcie: bool = True) -> None:
        self._library = library
        self._pcie = pcie
        self._ready = False
        self._silent_rounds = 0
        self._gpus: dict[int, str] = {}  # by NVML's number, which a lost card keeps until the driver is loaded anew
        self._seen: dict[str, None] = {}
        self._constants: dict[str, Collected] = {}

    def collect(self) -> Collected:
        if not self._ready:
            if self._silent_rounds:
                self._silent_rounds -= 1
                return Collected([], [])
            reason = self._open()
            if reason == "absent":
                self._silent_rounds = _RETRY_ROUNDS
            if reason is not None:
                return Collected([], [Missing(self.name, "", reason)])
        try:
            count = int(self._library.nvmlDeviceGetCount())
        except Exception as error:
            self._ready = False  # the driver was unloaded: begin again
            return Collected([], [Missing(self.name, "", self._reason(error))])
        result = Collected([], [])
        for index in range(count):
            self._read_card(index, result)
        there = {dict(reading.labels)["gpu"] for reading in result.readings} | {lack.gpu for lack in result.missing}
        for gpu in self._seen:
            if gpu not in there:
                result.readings.append(Reading("gpu_up", (("gpu", gpu), ("vendor", "nvidia")), 0.0))
        if not result.readings and not result.missing:
            result.missing.append(Missing(self.name, "", "absent"))
        return result

    def _open(self) -> Reason | None:
        """Load and begin; why not, if not."""
        try:
            if self._library is None:
                self._library = importlib.import_module("pynvml")
            self._library.nvmlInit()
        except ImportError:
            return "absent"
        except Exception as error:
            return self._reason(error)
        self._ready = True
        self._gpus.clear()
        self._constants.clear()
        return None

    def _read_card(self, index: int, result: Collected) -> None:
        """One card, into `result`; one that is lost is down, and has no other reading."""
        gpu = self._gpus.get(index, "")
        try:
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            gpu = pci_address(_text(self._library.nvmlDeviceGetPciInfo(handle).busId)) or ""
            if not gpu:
                result.missing.append(Missing("gpu_up", "", "malformed"))
                return
            self._gpus[index] = gpu
            self._seen[gpu] = None
            card = _Card(self._library, handle, gpu, self._reason)
            if gpu not in self._constants:
                self._constants[gpu] = card.read_constants()
            readings, missing = card.read(self._pcie)
        except Exception as error:
            lost = isinstance(error, _LostError) or self._code(error) == _GPU_IS_LOST
            if lost and gpu:
                result.readings.append(Reading("gpu_up", (("gpu", gpu), ("vendor", "nvidia")), 0.0))
            else:
                result.missing.append(Missing("gpu_up", gpu, "absent" if lost else self._reason(error)))
            return
        if readings:
            result.readings.append(Reading("gpu_up", (("gpu", gpu), ("vendor", "nvidia")), 1.0))
        constants = self._constants[gpu]
        result.readings.extend([*constants.readings, *readings])
        result.missing.extend([*constants.missing, *missing])

    def _code(self, error: Exception) -> int | None:
        known = getattr(self._library, "NVMLError", None)
        return int(getattr(error, "value", 0)) if known is not None and isinstance(error, known) else None

    def _reason(self, error: Exception) -> Reason:
        code = self._code(error)
        if code is None:  # a function that this version of the library does not have, or a value that is none
            return "absent" if isinstance(error, AttributeError) else "malformed"
        return _REASONS.get(code, "failed")


class _Card:
    """One card's answers, as readings."""

    def __init__(self, library: Any, handle: Any, gpu: str, reason: Callable[[Exception], Reason]) -> None:
        self._nvml = library
        self._handle = handle
        self._reason = reason
        self._findings = Findings(gpu, "nvidia")

    def read_constants(self) -> Collected:
        nvml, handle = self._nvml, self._handle
        texts = []
        for read in (
            lambda: nvml.nvmlDeviceGetName(handle),
            nvml.nvmlSystemGetDriverVersion,
            lambda: nvml.nvmlDeviceGetUUID(handle),
            lambda: nvml.nvmlDeviceGetVbiosVersion(handle),
        ):
            try:
                texts.append(printable(_text(read()), _LABEL_CHARS))
            except Exception as error:
                self._stop_if_lost(error)
                texts.append("")
        product, driver, uuid, vbios = texts
        self._findings.give("gpu_info", 1.0, "", "", "", product, driver, "", "", vbios, "", uuid)
        for threshold, sensor, limit in (
            ("SLOWDOWN", "gpu", "crit"),
            ("SHUTDOWN", "gpu", "emergency"),
            ("MEM_MAX", "mem", "crit"),
        ):
            self._read("gpu_temperature_limit_celsius", partial(self._threshold, threshold), sensor, limit)
        collected = self._findings.collect(_CONSTANT)
        self._findings = Findings(self._findings.gpu, "nvidia")
        return collected

    def read(self, pcie: bool) -> Collected:
        self._read_activity()
        self._read_power()
        self._read_clocks()
        self._read_link()
        if pcie:
            for family, way in zip(_PCIE, ("RX", "TX"), strict=True):
                self._read(family, partial(self._throughput, way))
        return self._findings.collect((*_EXPECTED, *(_PCIE if pcie else ())))

    def _read_activity(self) -> None:
        nvml, handle = self._nvml, self._handle
        self._read("gpu_busy_ratio", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / _PER_CENT)
        self._read("gpu_memory_busy_ratio", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory / _PER_CENT)
        self._read("gpu_memory_size_bytes", lambda: self._memory().total, "vram")
        self._read("gpu_memory_used_bytes", lambda: self._memory().used, "vram")
        self._read(
            "gpu_temperature_celsius",
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "gpu",
        )
        self._read("gpu_temperature_celsius", lambda: self._field(nvml.NVML_FI_DEV_MEMORY_TEMP), "mem")
        self._read("gpu_fan_ratio", lambda: nvml.nvmlDeviceGetFanSpeed(handle) / _PER_CENT)

    def _read_power(self) -> None:
        nvml, handle, family = self._nvml, self._handle, "gpu_power_watts"
        average = self._read(family, lambda: self._field(nvml.NVML_FI_DEV_POWER_AVERAGE) / _MILLI, "average")
        instant = self._read(family, lambda: self._field(nvml.NVML_FI_DEV_POWER_INSTANT) / _MILLI, "instant")
        if not (average or instant):
            # Older than the two fields: the power of the moment (of Ampere under a driver before 530, over a second).
            self._read(family, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / _MILLI, "instant")
        self._read("gpu_power_cap_watts", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / _MILLI)
        self._read("gpu_energy_joules_total", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / _MILLI)

    def _read_clocks(self) -> None:
        nvml, handle = self._nvml, self._handle
        for domain in ("graphics", "sm", "mem", "video"):
            self._read("gpu_clock_hertz", partial(self._clock, domain), domain)
        try:
            reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            mask = int((reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))
        except Exception as error:
            self._stop_if_lost(error)
            self._findings.lack("gpu_throttled", self._reason(error))
            return
        for bit, reason in _THROTTLING.items():
            self._findings.give("gpu_throttled", float(bool(mask & bit)), reason)

    def _read_link(self) -> None:
        nvml, handle = self._nvml, self._handle
        speed, width = "gpu_pcie_link_speed_transfers_per_second", "gpu_pcie_link_width_lanes"
        self._read(speed, lambda: _LINK_SPEEDS[nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)], "current")
        self._read(speed, lambda: _LINK_SPEEDS[nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)], "max")
        self._read(width, lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), "current")
        self._read(width, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle), "max")
        self._read("gpu_pcie_replays_total", lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle))

    def _threshold(self, what: str) -> float:
        threshold = getattr(self._nvml, f"NVML_TEMPERATURE_THRESHOLD_{what}")
        return float(self._nvml.nvmlDeviceGetTemperatureThreshold(self._handle, threshold))

    def _clock(self, domain: str) -> float:
        clock = getattr(self._nvml, f"NVML_CLOCK_{domain.upper()}")
        return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, clock)) * _MHZ

    def _throughput(self, way: str) -> float:
        """Bytes a second, over NVML's 20 ms. NVML documents KB: 1000 is assumed, 1024 would be 2.4 % more."""
        counter = getattr(self._nvml, f"NVML_PCIE_UTIL_{way}_BYTES")
        return float(self._nvml.nvmlDeviceGetPcieThroughput(self._handle, counter)) * _KB

    def _memory(self) -> Any:
        """Without what the driver keeps for itself (version 2), as nvidia-smi shows it, where the driver knows that."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        if version is not None:
            try:
                return self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version)
            except Exception as error:
                self._stop_if_lost(error)
        return self._nvml.nvmlDeviceGetMemoryInfo(self._handle)

    def _field(self, field: int) -> float:
        """One of NVML's field values, which fail one by one."""
        value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])[0]
        if value.nvmlReturn:
            raise self._nvml.NVMLError(value.nvmlReturn)
        return float(getattr(value.value, _FIELD_VALUES[value.valueType]))

    def _read(self, family: str, read: Callable[[], float], *labels: str) -> bool:
        """What `read` gives, within the bounds of its family (`RANGES`); or why not. Whether there is a value."""
        try:
            value = float(read())
        except Exception as error:
            self._stop_if_lost(error)
            self._findings.lack(family, self._reason(error), *labels)
            return False
        low, high = RANGES.get(family, (0, 2.0**64))
        fits = isfinite(value) and low <= value <= high
        if fits:
            self._findings.give(family, value, *labels)
        else:
            self._findings.lack(family, "out_of_range", *labels)
        return fits

    def _stop_if_lost(self, error: Exception) -> None:
        if isinstance(error, _LostError):
            raise error
        if isinstance(error, self._nvml.NVMLError) and getattr(error, "value", 0) == _GPU_IS_LOST:
            raise _LostError from error


def _text(value: Any) -> str:
    """NVML's texts are bytes in older versions of the Python binding."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
