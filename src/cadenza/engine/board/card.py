"""Cards a simulated board can hold, as data: `cards/*.toml` beside this file, every number with its source."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from cadenza.errors import UsageError


class Activity(NamedTuple):
    """What one card did over an interval.

    busy             share of the time it computed, 0 to 1
    memory_busy      share of its peak memory bandwidth that was used, 0 to 1
    vram_used_bytes  memory that was allocated
    waiting          share of the time a kernel of it spun for another card: busy to every tool, at little power
    """

    busy: float
    memory_busy: float
    vram_used_bytes: int
    waiting: float = 0.0


IDLE = Activity(busy=0.0, memory_busy=0.0, vram_used_bytes=0)


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """P = idle + core · (busy + spinning · waiting) · (f / load clock)³ + memory · memory_busy, in W, at most `cap_w`.

    The cube is f · V² with V in proportion to f. `memory_idle_w` is the part of `idle_w` that heats the memory.
    """

    idle_w: float
    memory_idle_w: float
    core_w: float
    memory_w: float
    spinning: float
    cap_w: float


class Clock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clocks in MHz and core voltages in mV; a throttled core runs anywhere between its lowest level and `load_mhz`."""

    idle_mhz: int
    load_mhz: int
    levels_mhz: tuple[int, ...]
    memory_levels_mhz: tuple[int, ...]
    idle_mv: int
    load_mv: int
    soc_mhz: int


class Cooler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One heat sink in one stream of air; die and memory follow their own heat quickly, above the sink.

    `still_w_per_k` is what the sink sheds without any stream, which adds a conductance ∝ flow^0.8 (a turbulent stream).
    """

    ambient_c: float
    sink_j_per_k: float
    die_s: float
    memory_s: float
    still_w_per_k: float


class Fan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The card's own fan: `curve` gives PWM (0 to 1) over the edge temperature; RPM = start + slope · PWM."""

    curve: tuple[tuple[float, float], ...]
    start_rpm: float
    rpm_per_pwm: float
    max_rpm: float


class Duct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case fan in front of a card without a fan: its airflow, and the airflow at which `SteadyState` was measured."""

    airflow_m3_h: float
    soak_airflow_m3_h: float


class SteadyState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A steady state that the model passes through exactly: what the card does in it, and how warm it then is."""

    busy: float
    waiting: float
    memory_busy: float
    sink_c: float
    junction_c: float
    memory_c: float
    edge_c: float
    pwm: float | None = None


class Sensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At `crit_c` the clock is lowered; at `shutdown_c` the card switches itself off."""

    crit_c: float
    shutdown_c: float


class PcieLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    width: int
    speed: str
    idle_speed: str
    tenths_gt_s: int
    idle_tenths_gt_s: int


class GpuMetricsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which gpu_metrics the driver gives; `bits` of its chip-dependent throttle mask by reason, none if unknown."""

    version: Literal["v1_0", "v1_3", "v1_5"]
    bits: dict[str, int]


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: int
    size: int
    sharers: int
    sibling_map_length: int


class Kfd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its topology node: the constant lines of `properties`, and what stands in the folders beside them."""

    name: str
    heap_type: int
    memory_width: int
    memory_mhz: int
    peers: Literal["pcie", "xgmi"]
    properties: dict[str, int]
    caches: tuple[Cache, ...] = ()


class Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`device/` of the card: files that never change with their text, and the names of those that follow the model."""

    live: tuple[str, ...]
    live_hwmon: tuple[str, ...]
    fixed: dict[str, str]
    fixed_hwmon: dict[str, str]
    connectors: tuple[str, ...] = ()


class CardModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A card; `throttle_line` is what its driver logs when it throttles for heat, if anything."""

    name: str
    product: str
    vram_bytes: int
    power: Power
    clock: Clock
    cooler: Cooler
    steady: SteadyState = msgspec.field(name="soak")
    sensors: dict[Literal["edge", "junction", "memory"], Sensor]
    link: PcieLink
    metrics: GpuMetricsFile
    kfd: Kfd
    files: Files
    fan: Fan | None = None
    duct: Duct | None = None
    throttle_line: str | None = None

    def __post_init__(self) -> None:
        if (self.fan is None) == (self.duct is None):
            raise ValueError("a card has either a [fan] of its own or stands in a [duct]")
        if self.fan is not None and self.steady.pwm is None:
            raise ValueError("[soak] of a card with a fan needs its pwm")
        if self.steady.sink_c <= self.cooler.ambient_c:
            raise ValueError("[soak] sink_c is not above [cooler] ambient_c: no heat would flow")
        if not 0 < self.clock.idle_mhz < self.clock.load_mhz:
            raise ValueError("[clock] idle_mhz is not between 0 and load_mhz")

    def working(self, share: float, vram_used_bytes: int) -> Activity:
        """The activity in the steady state that this card was calibrated at, for `share` (0 to 1) of an interval."""
        steady = self.steady
        return Activity(share * steady.busy, share * steady.memory_busy, vram_used_bytes, share * steady.waiting)


def names() -> list[str]:
    """Cards that come with the package, sorted."""
    folder = resources.files(__package__) / "cards"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> CardModel:
    """The card called `name`, or described by the file of that name if it ends in .toml.

    UsageError for a name that does not exist and for a file that cannot be used.
    """
    try:
        if name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8")
        elif name in names():
            text = (resources.files(__package__) / "cards" / f"{name}.toml").read_text(encoding="utf-8")
        else:
            known = ", ".join(names())
            raise UsageError(f"no simulated board knows the card '{name}'; there are: {known}, or a .toml file")
        return msgspec.convert(tomllib.loads(text), CardModel)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"the card file {name} cannot be used: {error}") from None
