"""Who waits for admission, in which order."""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

from cadenza.engine.core.sequence import Sequence


class FirstCome:
    """In order of arrival; whoever was preempted is first again."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        self._queue.append(sequence)

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """At the head, in the order given."""
        self._queue.extendleft(reversed(list(sequences)))

    def head(self) -> Sequence:
        return self._queue[0]

    def pop(self) -> Sequence:
        return self._queue.popleft()

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)


def urgency(sequence: Sequence) -> tuple[int, int, int]:
    """What the priority policy sorts by: the smallest is served first, the largest preempted first."""
    return (sequence.priority, sequence.arrival_ns, sequence.id)


class MostUrgent:
    """In order of priority, then of arrival; a preempted one waits among its like."""

    def __init__(self) -> None:
        self._queue: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self._queue, sequence, key=urgency)

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.add(sequence)

    def head(self) -> Sequence:
        return self._queue[0]

    def pop(self) -> Sequence:
        return self._queue.pop(0)

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)
