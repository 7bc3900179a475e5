"""An engine whose every token, prompt or output, is computed in a step: what vLLM does, on virtual nanoseconds."""

import random
from collections import deque

from cadenza.engine.core.outbox import Outbox
from cadenza.engine.core.pace import Pace
from cadenza.engine.core.scheduler import Scheduler, Step
from cadenza.engine.core.sequence import Sequence
from cadenza.engine.laws.timing import Deck, TimingLaw
from cadenza.hardware.batch import Batch


class Stepped:
    """One step clock. A step takes what the law says of its batch; at its end its tokens come, all at once.

    Synchronous: the next step is decided at the end of this one. Asynchronous (vLLM's default): the next is decided
    when this one begins, so that an arrival during step k takes part in k + 2. Before that a request spends the law's
    `request_ns` on its way to the scheduler, whatever the pace: that is another process's work.
    """

    def __init__(self, law: TimingLaw, scheduler: Scheduler, outbox: Outbox, seed: str) -> None:
        self._law = law
        self._scheduler = scheduler
        self._outbox = outbox
        self._deck = Deck(seed)
        self._drafts = random.Random(seed)
        self._depth = 2 if scheduler.limits.async_scheduling else 1
        self._request_ns = law.request_ns()
        self._coming: deque[tuple[int, Sequence]] = deque()
        self._under_way: deque[tuple[Step, Batch]] = deque()
        self._pace = Pace()
        self._begun_ns = 0
        self._due_ns = 0
        self._end_ns: int | None = None
        self._wake_ns: int | None = None
        self.now_ns = 0
        self._busy_ns = 0

    @property
    def coming(self) -> int:
        """Requests on their way to the scheduler."""
        return len(self._coming)

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request arrives; what was due before it happens first."""
        if now_ns > self.now_ns:
            self.run(now_ns)
        if self._request_ns:
            self._coming.append((self.now_ns + self._request_ns, sequence))
        else:
            self._arrive(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        self._scheduler.add(sequence)
        if not self._under_way:
            self._wake_ns = self.now_ns

    def abort(self, sequence_id: int, now_ns: int) -> Sequence | None:
        """Take a request out; None: it is not here."""
        if now_ns > self.now_ns:
            self.run(now_ns)
        self._outbox.drop(sequence_id)
        for at, (_, coming) in enumerate(self._coming):
            if coming.id == sequence_id:
                del self._coming[at]
                return coming
        sequence = self._scheduler.abort(sequence_id)
        if self._scheduler.waiting and not self._under_way:
            self._wake_ns = self.now_ns
        return sequence

    def next_ns(self) -> int | None:
        """When something happens next, None: nothing runs."""
        due = self._end_ns if self._wake_ns is None else self._wake_ns
        if self._coming:
            return self._coming[0][0] if due is None else min(due, self._coming[0][0])
        return due

    def busy_ns(self, now_ns: int) -> int:
        """How long steps have run by `now_ns`, the one under way so far included."""
        self.run(now_ns)
        return self._busy_ns + (now_ns - self._begun_ns if self._under_way else 0)

    def set_pace(self, pace: Pace) -> None:
        """It begins at `now_ns`, for the step under way, too."""
        self._pace = pace
        if self._under_way:
            self._end_ns = pace.when_ns(self._due_ns, self.now_ns)

    def run(self, now_ns: int) -> None:
        """Let happen what is due by `now_ns`."""
        while (due := self.next_ns()) is not None and due <= now_ns:
            self.now_ns = due
            while self._coming and self._coming[0][0] <= due:
                self._arrive(self._coming.popleft()[1])
            if due == self._end_ns:
                self._end_step()
                self._fill()
            elif self._wake_ns is not None:
                self._fill()
            self._wake_ns = None
        self.now_ns = max(self.now_ns, now_ns)

    def _end_step(self) -> None:
        step, batch = self._under_way.popleft()
        self._end_ns = None
        outbox, now = self._outbox, self.now_ns
        self._busy_ns += now - self._begun_ns
        for sequence in self._scheduler.update(step, self._accept(step)):
            outbox.stamp(sequence, now)
        outbox.close_step(batch)
        if self._under_way:
            self._begin()

    def _fill(self) -> None:
        """Decide steps until as many are under way as may be; one that only preempted computes nothing."""
        while len(self._under_way) < self._depth and (step := self._scheduler.schedule()) is not None:
            if step.works:
                for sequence in step.admitted:
                    if not sequence.preemptions:
                        sequence.scheduled_ns = self.now_ns
                self._under_way.append((step, step.batch()))
                if len(self._under_way) == 1:
                    self._begin()

    def _begin(self) -> None:
        length_ns = self._law.step_ns(self._under_way[0][1], self._deck.draw())
        self._begun_ns = self.now_ns
        self._due_ns = self._pace.done_ns(self.now_ns) + length_ns
        self._end_ns = self._pace.when_ns(self._due_ns, self.now_ns)

    def _accept(self, step: Step) -> dict[int, int] | None:
        """How many drafts of each sequence are right: the run of successes before the first failure."""
        limits = self._scheduler.limits
        if not limits.num_speculative_tokens:
            return None
        accepted = {}
        at_position = [0] * limits.num_speculative_tokens
        for work in step.works:
            right = 0
            while right < work.drafts and self._drafts.random() < limits.acceptance:
                at_position[right] += 1
                right += 1
            accepted[work.sequence.id] = right
        proposing = [work.drafts for work in step.works if work.drafts]
        self._outbox.metrics.speculated(len(proposing), sum(proposing), at_position)
        return accepted
