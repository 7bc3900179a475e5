"""A board: some cards on one virtual clock, their faults, and the folder that shows them."""

import heapq
from collections.abc import Sequence
from pathlib import Path

from cadenza.engine.board import faults
from cadenza.engine.board.card import IDLE, Activity, CardModel, load
from cadenza.engine.board.faults import BoardFault, KernelLine, Message
from cadenza.engine.board.state import BUSES, CardIdentity, CardState, Status, identify, read
from cadenza.engine.board.sysfs import Tree, board_texts
from cadenza.engine.board.thermal import ThermalModel
from cadenza.errors import UsageError

# The driver warns of throttling at most so often.
_WARN_EVERY_NS = 60 * 10**9


class _Slot:
    """One card in its place."""

    def __init__(self, card: CardModel, identity: CardIdentity) -> None:
        self.card = card
        self.identity = identity
        self.model = ThermalModel(card, 0)
        self.activity = IDLE
        self.resetting_until_ns = 0
        self.resets = 0
        self.warned_ns = -_WARN_EVERY_NS

    def status(self, now_ns: int) -> Status:
        if self.model.lost:
            return "lost"
        return "resetting" if now_ns < self.resetting_until_ns else "ok"

    def read(self, now_ns: int) -> CardState:
        return read(self.model, self.identity, self.activity, self.status(now_ns))


class Board:
    """Cards that follow their load. The first `advance` or `inject` sets the time; from there it only goes forward."""

    def __init__(self, cards: Sequence[CardModel], seed: int) -> None:
        """The same cards and seed give the same ids, and the same calls the same files.

        UsageError for no card, for more than eight, and for a card whose files this board does not know.
        """
        if not 1 <= len(cards) <= len(BUSES):
            raise UsageError(f"a board holds 1 to {len(BUSES)} cards, not {len(cards)}")
        self._slots = [_Slot(card, identify(place, seed)) for place, card in enumerate(cards)]
        for slot in self._slots:
            try:
                board_texts([(slot.card, slot.identity, slot.read(0))], 1)
            except KeyError as error:
                raise UsageError(f"card {slot.card.name}: its file tells nothing about {error}") from None
        self._now_ns: int | None = None
        self._due: list[tuple[int, int, BoardFault]] = []
        self._injected = 0
        self._pending: list[tuple[int, KernelLine]] = []  # kernel lines not yet logged, also those of the near future
        self._log: list[Message] = []
        self._sequence = 0
        self._shown = 0
        self._tree: tuple[Path, Tree] | None = None

    @classmethod
    def for_devices(cls, names: Sequence[str], seed: int) -> "Board":
        """A board with these cards, by name or by .toml file, in this order; UsageError for a name it does not know."""
        return cls([load(name) for name in names], seed)

    @property
    def cards(self) -> tuple[CardModel, ...]:
        """The cards, lost ones too, in order."""
        return tuple(slot.card for slot in self._slots)

    @property
    def log(self) -> tuple[str, ...]:
        """Kernel lines so far, oldest first."""
        return tuple(faults.stamp(message.at_ns, message.text) for message in self._log)

    def advance(self, now_ns: int, activities: Sequence[Activity]) -> None:
        """Go to `now_ns`; `activities`, one a card, is what they did since the last call (lost ones: nothing).

        Calls that split an interval of constant activities lead to the same state. The first call starts the clock
        there, from idle; a time that has gone by changes nothing. ValueError if the number of activities is wrong.
        """
        if len(activities) != len(self._slots):
            raise ValueError(f"{len(activities)} activities for {len(self._slots)} cards")
        self._start(now_ns)
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, fault = heapq.heappop(self._due)
            self._integrate(due_ns, activities)
            self._strike(fault, due_ns)
        self._integrate(now_ns, activities)

    def inject(self, fault: BoardFault, now_ns: int) -> None:
        """Let `fault` happen `fault.after_ns` after `now_ns`; UsageError if there is no such card."""
        if not 0 <= fault.card < len(self._slots):
            raise UsageError(f"board fault {fault.kind}: no card {fault.card}; the last one is {len(self._slots) - 1}")
        self._start(now_ns)
        heapq.heappush(self._due, (now_ns + fault.after_ns, self._injected, fault))
        self._injected += 1

    def read(self) -> tuple[CardState, ...]:
        """The state of every card, lost ones too, at the time of the last `advance`."""
        return tuple(slot.read(self._now_ns or 0) for slot in self._slots)

    def write(self, root: Path) -> None:
        """Bring the files below `root` up to date: sys/, dev/kmsg, kernel.log and SIMULATED.

        Only files whose text changed are written, each atomically. UsageError if `root` holds something else or cannot
        be written.
        """
        if self._tree is None or self._tree[0] != root:
            self._tree, self._shown = (root, Tree(root)), 0
        there = [
            (slot.card, slot.identity, slot.read(self._now_ns or 0)) for slot in self._slots if not slot.model.lost
        ]
        generation = 1 + len(self._slots) - len(there)
        self._tree[1].update(board_texts(there, generation), self._log[self._shown :])
        self._shown = len(self._log)

    def _start(self, now_ns: int) -> None:
        if self._now_ns is None:
            self._now_ns = now_ns
            for slot in self._slots:
                slot.model.now_ns = now_ns
            self._say(now_ns, [KernelLine(0, "[drm] amdgpu kernel modesetting enabled.")])

    def _integrate(self, now_ns: int, activities: Sequence[Activity]) -> None:
        assert self._now_ns is not None
        if now_ns > self._now_ns:
            for slot, activity in zip(self._slots, activities, strict=True):
                self._work(slot, activity, now_ns)
            self._now_ns = now_ns
        self._pending.sort(key=lambda line: line[0])
        while self._pending and self._pending[0][0] <= self._now_ns:
            at_ns, line = self._pending.pop(0)
            self._sequence += line.vanished
            self._log.append(Message(at_ns, self._sequence, line.level, line.text))
            self._sequence += 1

    def _work(self, slot: _Slot, activity: Activity, now_ns: int) -> None:
        """Advance one card, which rests while it is being reset."""
        reset_ns = min(now_ns, slot.resetting_until_ns)
        if slot.model.now_ns < reset_ns:
            slot.activity = IDLE
            slot.model.advance(reset_ns, IDLE)
        if slot.model.now_ns < now_ns:
            slot.activity = activity
            slot.model.advance(now_ns, activity)
        for at_ns, event in slot.model.events:
            if event == "shutdown":
                self._say(at_ns, faults.shut_down(slot.identity))
            elif slot.card.throttle_line and at_ns - slot.warned_ns >= _WARN_EVERY_NS:
                slot.warned_ns = at_ns
                self._say(at_ns, faults.throttle(slot.identity, slot.card.throttle_line))
        slot.model.events.clear()
        if slot.model.lost:
            slot.activity = IDLE

    def _strike(self, fault: BoardFault, now_ns: int) -> None:
        if fault.kind == "log-overrun":
            self._say(now_ns, faults.overrun())
            return
        slot = self._slots[fault.card]
        if slot.model.lost:
            return
        if fault.kind == "overheat":
            slot.model.fail_air()
        elif fault.kind == "fallen-off":
            slot.model.lose()
            slot.activity = IDLE
            self._say(now_ns, faults.fall_off(slot.identity, slot.card.kfd.properties["device_id"]))
        elif fault.kind == "ring-timeout":
            slot.resets += 1
            slot.resetting_until_ns = now_ns + faults.RESET_US * 1000
            self._say(now_ns, faults.time_out(slot.identity, slot.resets))
        else:
            self._say(now_ns, faults.run_out())

    def _say(self, now_ns: int, lines: Sequence[KernelLine]) -> None:
        self._pending += [(now_ns + line.after_us * 1000, line) for line in lines]
