"""What is true of one card of a board: who it is (`CardIdentity`) and how it is (`CardState`)."""

import random
from typing import Literal, NamedTuple

from cadenza.engine.board.card import Activity, CardModel
from cadenza.engine.board.thermal import Reason, ThermalModel

Texts = dict[str, bytes]  # files: path below the folder `sys` → content
Status = Literal["ok", "resetting", "lost"]

# Bus numbers by place. The first two are those of the sample tree; no machine we know holds more than eight cards.
BUSES = (0x03, 0x43, 0x23, 0x63, 0x83, 0xA3, 0xE3, 0x13)


class CardIdentity(NamedTuple):
    """Identity of a card: its place in the board, and numbers drawn from the board's seed."""

    place: int
    slot: str
    bus: int
    render_minor: int
    gpu_id: int
    unique_id: int
    serial: int


class CardState(NamedTuple):
    """One card at `at_ns`.

    status           "lost" is gone for good; "resetting" computes nothing for the moment
    busy             share of the last interval that tools call busy: computing or waiting; memory_busy beside it
    pwm              of the card's own fan, 0 to 1; fan_rpm is 0 without one
    speed            core clock over its clock under load: what a step's compute slows down by when it throttles
    throttling       why the clock is lowered just now; throttle_events counts how often it began, throttle_s how long
    """

    name: str
    slot: str
    status: Status
    at_ns: int
    busy: float
    memory_busy: float
    vram_used_bytes: int
    edge_c: float
    junction_c: float
    memory_c: float
    pwm: float
    fan_rpm: float
    sclk_mhz: float
    mclk_mhz: int
    core_mv: float
    power_w: float
    energy_j: float
    speed: float
    throttling: tuple[Reason, ...]
    throttle_events: int
    throttle_s: float

    @property
    def at_work(self) -> bool:
        return self.busy > 0


def identify(place: int, seed: int) -> CardIdentity:
    """The card at `place`; the same seed gives the same ids."""
    dice = random.Random(f"board {seed} {place}")
    bus = BUSES[place]
    return CardIdentity(
        place=place,
        slot=f"0000:{bus:02x}:00.0",
        bus=bus,
        render_minor=128 + place,
        gpu_id=dice.randrange(1024, 1 << 16),
        unique_id=dice.randrange(1 << 60, 1 << 63),
        serial=dice.randrange(1 << 44, 1 << 48),
    )


def read(model: ThermalModel, identity: CardIdentity, activity: Activity, status: Status) -> CardState:
    """The state of `model`, which did `activity` until now."""
    clock, draw = model.card.clock, model.draw
    busy = min(1.0, activity.busy + activity.waiting)
    found = model.temperatures
    sclk_mhz = clock.load_mhz * draw.speed if busy > 0 else float(clock.idle_mhz)
    share = max(0.0, (sclk_mhz - clock.idle_mhz) / (clock.load_mhz - clock.idle_mhz))
    return CardState(
        name=model.card.name,
        slot=identity.slot,
        status=status,
        at_ns=model.now_ns,
        busy=busy,
        memory_busy=activity.memory_busy,
        vram_used_bytes=min(activity.vram_used_bytes, model.card.vram_bytes),
        edge_c=found.edge,
        junction_c=found.junction,
        memory_c=found.memory,
        pwm=model.pwm,
        fan_rpm=model.fan_rpm,
        sclk_mhz=sclk_mhz,
        mclk_mhz=clock.memory_levels_mhz[-1 if busy > 0 else 0],
        core_mv=clock.idle_mv + (clock.load_mv - clock.idle_mv) * share,
        power_w=draw.die_w + draw.memory_w,
        energy_j=model.energy_j,
        speed=draw.speed,
        throttling=model.reasons,
        throttle_events=model.throttle_events,
        throttle_s=model.throttle_s,
    )


Member = tuple[CardModel, CardIdentity, CardState]
