"""How warm a card gets and what it does about it: pure, on virtual nanoseconds, exact however often it is asked.

Between two ticks of one virtual second all inputs are held, so each temperature has a closed form; the fan, the clock
ceiling and the limits are looked at on the ticks alone, as a card's own controller samples them.

    sink      C · dT/dt = P − G · (T − ambient)            G = still + forced · flow^0.8
    die       q follows the die's power with a lag         edge, junction = sink + R · q
    memory    q follows the memory's power with a lag      memory = sink + R · q

`forced` and the three R are not free: they follow from the card's `[soak]`, which the model therefore passes through.
"""

import math
from typing import Literal, NamedTuple

from cadenza.engine.board.card import Activity, CardModel, Sensor

Reason = Literal["edge", "junction", "memory", "ppt"]

TICK_NS = 1_000_000_000
# The ceiling falls on each tick that a sensor is too warm, and comes back more slowly once all have cooled.
_FALL, _RISE = 0.95, 1.02
_COOLED_K = 5.0
_TURBULENT = 0.8


class Temperatures(NamedTuple):
    """°C at the three sensors."""

    edge: float
    junction: float
    memory: float


class Draw(NamedTuple):
    """Where the power goes, in W, at which share of the load clock, and whether the power cap decided that share."""

    die_w: float
    memory_w: float
    speed: float
    capped: bool


class ThermalModel:
    """One card from idle equilibrium at `start_ns` on.

    now_ns           how far it has been integrated
    events           what its controller did, (ns, "throttle" | "shutdown"), for the owner to take
    lost             it draws nothing more
    throttle_events  times that throttling began, for heat or for power; throttle_s is how long it lasted, in all
    energy_j         all energy drawn
    """

    def __init__(self, card: CardModel, start_ns: int) -> None:
        self.card = card
        self.now_ns = start_ns
        self.events: list[tuple[int, Literal["throttle", "shutdown"]]] = []
        self._air_fails = False
        self.lost = False
        self.reasons: tuple[Reason, ...] = ()
        self.throttle_events = 0
        self.throttle_s = 0.0
        self.energy_j = 0.0
        self._hot: tuple[Reason, ...] = ()
        self._ceiling = 1.0
        self._floor = card.clock.levels_mhz[0] / card.clock.load_mhz
        self._calibrate()
        self.draw = Draw(card.power.idle_w - card.power.memory_idle_w, card.power.memory_idle_w, 1.0, False)
        self._die_w, self._memory_w = self.draw.die_w, self.draw.memory_w
        self.pwm = card.fan.curve[0][1] if card.fan else 0.0
        self._conductance = self._conduct(self._flow())
        self._sink_c = card.cooler.ambient_c + card.power.idle_w / self._conductance

    def _calibrate(self) -> None:
        power, steady, cooler = self.card.power, self.card.steady, self.card.cooler
        use = steady.busy + power.spinning * steady.waiting
        die_w = power.idle_w - power.memory_idle_w + power.core_w * use
        memory_w = power.memory_idle_w + power.memory_w * steady.memory_busy
        self._edge_k_per_w = (steady.edge_c - steady.sink_c) / die_w
        self._junction_k_per_w = (steady.junction_c - steady.sink_c) / die_w
        self._memory_k_per_w = (steady.memory_c - steady.sink_c) / memory_w
        flow = self._rpm(steady.pwm) / self.card.fan.max_rpm if self.card.fan and steady.pwm is not None else 1.0
        conductance = (die_w + memory_w) / (steady.sink_c - cooler.ambient_c)
        self._forced_w_per_k = (conductance - cooler.still_w_per_k) / math.pow(flow, _TURBULENT)

    @property
    def fan_rpm(self) -> float:
        """Turns of the card's own fan; 0 if it has none or it fails."""
        return 0.0 if self._air_fails or self.lost else self._rpm(self.pwm)

    @property
    def temperatures(self) -> Temperatures:
        return Temperatures(
            self._sink_c + self._edge_k_per_w * self._die_w,
            self._sink_c + self._junction_k_per_w * self._die_w,
            self._sink_c + self._memory_k_per_w * self._memory_w,
        )

    def fail_air(self) -> None:
        """The stream of air stops for good, that of the card's own fan or of the duct's."""
        self._air_fails = True
        self._conductance = self._conduct(self._flow())

    def lose(self) -> None:
        """The card is gone, or has switched itself off: it draws nothing more."""
        self.lost = True
        self.reasons = self._hot = ()
        self.draw = Draw(0.0, 0.0, 0.0, False)

    def advance(self, now_ns: int, activity: Activity) -> None:
        """Integrate to `now_ns`, with `activity` all the time since the last call; a time gone by changes nothing."""
        if self.now_ns >= now_ns:
            return
        self.draw = self._electric(activity)
        while self.now_ns < now_ns:
            tick_ns = (self.now_ns // TICK_NS + 1) * TICK_NS
            until_ns = min(tick_ns, now_ns)
            self._judge()
            self._respond((until_ns - self.now_ns) / 1e9)
            self.now_ns = until_ns
            if until_ns == tick_ns:
                self._control()
                self.draw = self._electric(activity)

    def _electric(self, activity: Activity) -> Draw:
        if self.lost:
            return self.draw
        power = self.card.power
        rest_w = power.idle_w + power.memory_w * activity.memory_busy
        memory_w = power.memory_idle_w + power.memory_w * activity.memory_busy
        full_w = power.core_w * (activity.busy + power.spinning * activity.waiting)
        speed = self._ceiling
        capped = rest_w + full_w * speed**3 > power.cap_w
        if capped:
            speed = max(self._floor, (max(0.0, power.cap_w - rest_w) / full_w) ** (1 / 3)) if full_w else speed
        return Draw(power.idle_w - power.memory_idle_w + full_w * speed**3, memory_w, speed, capped)

    def _judge(self) -> None:
        """Which reasons hold now, and whether throttling has just begun."""
        reasons: tuple[Reason, ...] = (*self._hot, "ppt") if self.draw.capped else self._hot
        if reasons and not self.reasons:
            self.throttle_events += 1
        self.reasons = reasons

    def _respond(self, seconds: float) -> None:
        cooler, draw = self.card.cooler, self.draw
        total_w = draw.die_w + draw.memory_w
        settled_c = cooler.ambient_c + total_w / self._conductance
        fade = math.exp(-seconds * self._conductance / cooler.sink_j_per_k)
        self._sink_c = settled_c + (self._sink_c - settled_c) * fade
        self._die_w = draw.die_w + (self._die_w - draw.die_w) * math.exp(-seconds / cooler.die_s)
        self._memory_w = draw.memory_w + (self._memory_w - draw.memory_w) * math.exp(-seconds / cooler.memory_s)
        self.energy_j += total_w * seconds
        if self.reasons:
            self.throttle_s += seconds

    def _control(self) -> None:
        found = self.temperatures
        if self.card.fan:
            self.pwm = _interpolate(self.card.fan.curve, found.edge)
        self._conductance = self._conduct(self._flow())
        if self.lost:
            return
        margins: list[tuple[Reason, float, Sensor]] = []
        for name, sensor in self.card.sensors.items():
            margins.append((name, getattr(found, name), sensor))
        if any(at_c >= sensor.shutdown_c for _, at_c, sensor in margins):
            self.events.append((self.now_ns, "shutdown"))
            self.lose()
            return
        hot = tuple(name for name, at_c, sensor in margins if at_c >= sensor.crit_c)
        cooled = all(at_c < sensor.crit_c - _COOLED_K for _, at_c, sensor in margins)
        if hot:
            if not self._hot:
                self.events.append((self.now_ns, "throttle"))
            self._hot = hot
            self._ceiling = max(self._floor, self._ceiling * _FALL)
        elif cooled and self._ceiling < 1:
            self._ceiling = min(1.0, self._ceiling * _RISE)
        if self._ceiling == 1.0:
            self._hot = ()

    def _rpm(self, pwm: float) -> float:
        fan = self.card.fan
        return min(fan.max_rpm, fan.start_rpm + fan.rpm_per_pwm * pwm) if fan and pwm > 0 else 0.0

    def _flow(self) -> float:
        """The stream of air, relative to the one that `forced` stands for."""
        if self._air_fails:
            return 0.0
        if self.card.fan:
            return self.fan_rpm / self.card.fan.max_rpm
        assert self.card.duct is not None
        return self.card.duct.airflow_m3_h / self.card.duct.soak_airflow_m3_h

    def _conduct(self, flow: float) -> float:
        return self.card.cooler.still_w_per_k + self._forced_w_per_k * math.pow(flow, _TURBULENT)


def _interpolate(curve: tuple[tuple[float, float], ...], at: float) -> float:
    """Linear between the points, level beyond the first and the last."""
    below_at, below = curve[0]
    if at <= below_at:
        return below
    for here_at, here in curve:
        if at < here_at:
            return below + (here - below) * (at - below_at) / (here_at - below_at)
        below_at, below = here_at, here
    return below
