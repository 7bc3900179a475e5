"""An engine whose prefill runs beside the steps: what a published table of TTFT and TPOT describes."""

import msgspec

from cadenza.engine.core.outbox import Outbox
from cadenza.engine.core.pace import Pace
from cadenza.engine.core.scheduler import Scheduler
from cadenza.engine.core.sequence import Sequence
from cadenza.engine.laws.timing import Deck, TimingLaw
from cadenza.hardware.batch import Batch


class _Prefill(msgspec.Struct, gc=False):
    """A request before its first token.

    quantile           how slow its prefill is among its like
    due_ns             what the engine has done (`Pace.done_ns`) when its first token comes
    whole_ns           the TTFT that this was reckoned with
    """

    sequence: Sequence
    quantile: float
    due_ns: int
    whole_ns: int


class ParallelPrefill:
    """Admission, KV blocks and preemption are the scheduler's; time is the law's, in two lanes.

    Prefill shares the machine: an admitted request has a remaining fraction of its own TTFT, which falls at the rate
    1 / TTFT(C) as C, the number admitted, changes. Requests that come together all get TTFT(C) of them all.

    Decode is stepped: a step's length is fixed at its start, from C then, and at its end every sequence that has
    joined gets one token. It joins at the first boundary at least half a step after its first token, so that the gap
    to its second is a step on average. With nobody decoding the clock stops; the next first token starts it.

    Both lanes are work, and go at the engine's pace. While it hangs, and there is any work, a pass does not end, and
    nobody else is admitted.
    """

    def __init__(self, law: TimingLaw, scheduler: Scheduler, outbox: Outbox, seed: str) -> None:
        self._law = law
        self._scheduler = scheduler
        self._outbox = outbox
        self._ttft_deck = Deck(f"ttft {seed}")
        self._step_deck = Deck(f"step {seed}")
        self._prefilling: dict[int, _Prefill] = {}
        self._joining: dict[int, tuple[Sequence, int]] = {}
        self._decoding: set[int] = set()
        self.now_ns = 0
        self._stale = False
        self._first_ns: int | None = None
        self._pace = Pace()
        self._step_due_ns: int | None = None
        self._boundary_ns: int | None = None
        self._step_ns = 0
        self._admission_ns: int | None = None
        self._busy_ns = 0
        self.coming = 0

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request arrives; what was due before it happens first."""
        self._catch_up(now_ns)
        self._scheduler.add(sequence)
        self._admit_between_passes()

    def abort(self, sequence_id: int, now_ns: int) -> Sequence | None:
        """Take a request out; None: it is not here."""
        self._catch_up(now_ns)
        self._outbox.drop(sequence_id)
        sequence = self._scheduler.abort(sequence_id)
        if sequence is not None:
            self._forget(sequence)
            self._admit_between_passes()
            self._stop_if_idle()
        return sequence

    def next_ns(self) -> int | None:
        """When something happens next, None: nothing runs."""
        if self._stale:
            self._reprice()
        due = self._boundary_ns
        if self._first_ns is not None and (due is None or self._first_ns < due):
            due = self._first_ns
        if self._admission_ns is not None and (due is None or self._admission_ns < due):
            due = self._admission_ns
        return due

    def busy_ns(self, now_ns: int) -> int:
        """For how long there has been a prefill or a step by `now_ns`."""
        self.run(now_ns)
        return self._busy_ns

    def set_pace(self, pace: Pace) -> None:
        """It begins at `now_ns`, for what is under way, too."""
        self._pace = pace
        self._stale = True
        if self._step_due_ns is not None:
            self._boundary_ns = pace.when_ns(self._step_due_ns, self.now_ns)
        self._admit_between_passes()

    def run(self, now_ns: int) -> None:
        """Let happen what is due by `now_ns`."""
        while (due := self.next_ns()) is not None and due <= now_ns:
            self._move_to(due)
            if due == self._boundary_ns:
                self._end_step()
            elif due == self._first_ns:
                self._end_prefills()
            else:
                self._admit_between_passes()
        self._move_to(max(self.now_ns, now_ns))

    def _move_to(self, now_ns: int) -> None:
        if self._scheduler.running:
            self._busy_ns += now_ns - self.now_ns
        self.now_ns = now_ns

    def _catch_up(self, now_ns: int) -> None:
        # At the same instant there is nothing to catch up with, and a burst is then priced once, not once each.
        if now_ns > self.now_ns:
            self.run(now_ns)

    def _admit_between_passes(self) -> None:
        """Admit now, or, where a pass hangs, as soon as it goes on."""
        self._admission_ns = None
        if self._scheduler.waiting and self._scheduler.running:
            goes_ns = self._pace.goes_ns(self.now_ns)
            if goes_ns != self.now_ns:
                self._admission_ns = goes_ns
                return
        self._admit()

    def _admit(self) -> None:
        if not self._scheduler.waiting:
            return
        for sequence in self._scheduler.admit_beside():
            if not sequence.preemptions:
                sequence.scheduled_ns = self.now_ns
            quantile = self._ttft_deck.draw()
            whole = self._prefill_ns(sequence, quantile)
            due_ns = self._pace.done_ns(self.now_ns) + whole
            self._prefilling[sequence.id] = _Prefill(sequence, quantile, due_ns, whole)
            self._stale = True

    def _prefill_ns(self, sequence: Sequence, quantile: float) -> int:
        whole = self._law.prefill_ns(len(sequence.prompt), len(self._scheduler.running), quantile)
        assert whole is not None
        return whole

    def _reprice(self) -> None:
        self._stale = False
        done_ns = self._pace.done_ns(self.now_ns)
        for prefill in self._prefilling.values():
            whole = self._prefill_ns(prefill.sequence, prefill.quantile)
            prefill.due_ns = done_ns + (prefill.due_ns - done_ns) * whole // prefill.whole_ns
            prefill.whole_ns = whole
        due_ns = min((prefill.due_ns for prefill in self._prefilling.values()), default=None)
        self._first_ns = None if due_ns is None else self._pace.when_ns(due_ns, self.now_ns)

    def _end_prefills(self) -> None:
        now, done_ns = self.now_ns, self._pace.done_ns(self.now_ns)
        for prefill in [prefill for prefill in self._prefilling.values() if prefill.due_ns <= done_ns]:
            sequence = prefill.sequence
            del self._prefilling[sequence.id]
            self._scheduler.produce(sequence, 1)
            self._outbox.stamp(sequence, now)
            computed = sequence.prompt_tokens - sequence.cached
            self._outbox.close_step(Batch(1, 0, computed, sequence.prompt_tokens, 0))
            if not sequence.ended:
                self._joining[sequence.id] = (sequence, done_ns + (self._step_ns + 1) // 2)
                self._decoding.add(sequence.id)
        self._stale = True
        self._admit()
        if self._decoding and self._step_due_ns is None:
            self._begin_step()

    def _end_step(self) -> None:
        now, done_ns = self.now_ns, self._pace.done_ns(self.now_ns)
        for sequence, _ in [pair for pair in self._joining.values() if pair[1] <= done_ns]:
            sequence.held = False
            del self._joining[sequence.id]
        step = self._scheduler.schedule(admit=False)
        if step is not None:
            for sequence in step.preempted:
                self._forget(sequence)
            for sequence in self._scheduler.update(step):
                self._outbox.stamp(sequence, now)
                if sequence.ended:
                    self._decoding.discard(sequence.id)
                    self._stale = True
            self._outbox.close_step(step.batch())
            if self._stale or step.preempted:
                self._admit()
        if not self._stop_if_idle():
            self._begin_step()

    def _forget(self, sequence: Sequence) -> None:
        """It has lost its place, wherever that was."""
        self._stale = True
        self._prefilling.pop(sequence.id, None)
        self._joining.pop(sequence.id, None)
        self._decoding.discard(sequence.id)
        sequence.held = False

    def _begin_step(self) -> None:
        batch = Batch(len(self._scheduler.running), len(self._decoding), 0, 0, 0)
        self._step_ns = self._law.step_ns(batch, self._step_deck.draw())
        self._step_due_ns = self._pace.done_ns(self.now_ns) + self._step_ns
        self._boundary_ns = self._pace.when_ns(self._step_due_ns, self.now_ns)

    def _stop_if_idle(self) -> bool:
        if self._decoding:
            return False
        self._step_due_ns = self._boundary_ns = None
        self._step_ns = 0
        return True
