"""Why a chip lowers its clock: names for the bits of `gpu_metrics`, and the seconds behind its residency counters.

Bits: Linux `amdgpu_smu.h` (the same for every chip) and the `smu11`/`smu13` `driver_if` headers (one family's own).
"""

from cadenza.telemetry.cards.gpu_metrics import GpuMetrics


def _bits(text: str) -> dict[int, str]:
    """Words in the order of their bits; a number is the bit of the next one."""
    names: dict[int, str] = {}
    bit = 0
    for word in text.split():
        if word.isdigit():
            bit = int(word)
        else:
            names[bit] = word
            bit += 1
    return names


_INDEPENDENT = _bits(
    """0 ppt0 ppt1 ppt2 ppt3 spl fppt sppt sppt_apu
    16 tdc_gfx tdc_soc tdc_mem tdc_vdd tdc_cvip edc_cpu edc_gfx apcc
    32 temp_gpu temp_core temp_mem temp_edge temp_hotspot temp_soc temp_vr_gfx temp_vr_soc temp_vr_mem0 temp_vr_mem1
    temp_liquid0 temp_liquid1 vrhot0 vrhot1 prochot_cpu prochot_gfx
    56 ppm fit"""
)
# Reasons that every discrete card has; the others are reported while they hold, so that a laptop's do not appear as 0.
_DISCRETE = (
    *("ppt0", "ppt1", "ppt2", "ppt3", "tdc_gfx", "tdc_soc", "temp_edge", "temp_hotspot", "temp_mem"),
    *("temp_vr_gfx", "temp_vr_soc", "temp_vr_mem0", "temp_vr_mem1"),
)
_SMU11 = """1 temp_edge temp_hotspot temp_mem temp_vr_gfx temp_vr_mem0 temp_vr_mem1 temp_vr_soc temp_liquid0
    temp_liquid1 temp_plx"""
_SMU11_REST = "tdc_gfx tdc_soc ppt0 ppt1 ppt2 ppt3 fit ppm apcc"
_SIENNA_CICHLID = _bits(f"{_SMU11} {_SMU11_REST}")
_NAVI10 = _bits(f"{_SMU11} temp_skin {_SMU11_REST}")
_ARCTURUS = _bits(
    """1 temp_edge temp_hotspot temp_mem temp_vr_gfx temp_vr_mem0 temp_vr_soc tdc_gfx tdc_soc ppt0 ppt1 ppt2 ppt3
    ppm fit apcc"""
)
_MI300 = _bits("0 prochot ppt thermal_socket thermal_vr thermal_hbm")
# By gfx name. Vega 20 (gfx906) is not among them: what its bits mean has not been verified anywhere.
_DEPENDENT = {
    **dict.fromkeys(("gfx1030", "gfx1031", "gfx1032", "gfx1034"), _SIENNA_CICHLID),
    **dict.fromkeys(("gfx1010", "gfx1011", "gfx1012"), _NAVI10),
    "gfx908": _ARCTURUS,
    "gfx942": _MI300,
}
OTHER = "other"  # a bit that no table names
ANY = "any"  # of a chip whose bits are not known


def decode(metrics: GpuMetrics, gfx: str) -> dict[str, bool]:
    """Reason → whether the clock is lowered for it now; empty where the chip has no throttling bits.

    `gfx` (gfx1030, or empty) selects how to read the chip's own bits, where the kernel's are not present. A chip
    whose bits are not known has the one reason "any".
    """
    if metrics.indep_throttle_status is not None:
        return _read_bits(metrics.indep_throttle_status, _INDEPENDENT, _DISCRETE)
    if metrics.throttle_status is None:
        return {}
    names = _DEPENDENT.get(gfx)
    if names is None:
        return {ANY: metrics.throttle_status != 0}
    return _read_bits(metrics.throttle_status, names, tuple(names.values()))


def _read_bits(mask: int, names: dict[int, str], always: tuple[str, ...]) -> dict[str, bool]:
    reasons = dict.fromkeys(always, False)
    while mask:
        bit = mask.bit_length() - 1
        reasons[names.get(bit, OTHER)] = True
        mask ^= 1 << bit
    return reasons


class Residency:
    """Seconds for which one card was throttled, from the counters of v1_6 and later; starts at 0 with the first file.

    The counters are in cycles of the chip's control loop, whose length no source documents: the kernel gives them
    no unit, and amd-smi shows Δresidency / Δcycles as a percentage. That share of the time between two files (the
    driver's own clock stands in them) is exact whatever a cycle is. An interval in which any of them went backwards
    (a reset, or 32 bits that wrapped) is left out.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.shares: dict[str, float] = {}  # of the last interval; empty until there is one
        self._before: GpuMetrics | None = None

    def add(self, metrics: GpuMetrics) -> None:
        """Take the next file; one that was not filled anew since the last changes nothing."""
        before = self._before
        if metrics.cycles is None or metrics.clock_s is None:
            return
        for reason in metrics.residencies_cycles:
            self.seconds.setdefault(reason, 0.0)
        if before is None or before.cycles is None or before.clock_s is None:
            self._before = metrics
            return
        cycles, elapsed_s = metrics.cycles - before.cycles, metrics.clock_s - before.clock_s
        if cycles == 0 or elapsed_s == 0:
            return
        self._before = metrics
        grown = {
            reason: count - before.residencies_cycles.get(reason, count)
            for reason, count in metrics.residencies_cycles.items()
        }
        if elapsed_s < 0 or not all(0 <= count <= cycles for count in grown.values()):
            self.shares = {}
            return
        self.shares = {reason: count / cycles for reason, count in grown.items()}
        for reason, share in self.shares.items():
            self.seconds[reason] += share * elapsed_s
