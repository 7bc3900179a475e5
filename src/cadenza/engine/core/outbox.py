"""What leaves an engine: tokens, gathered into the events of their streams, and stamped on their sequence."""

from typing import NamedTuple

from cadenza.engine.core.metrics import Metrics
from cadenza.engine.core.sequence import Sequence
from cadenza.hardware.batch import Batch


class Token(NamedTuple):
    """One event of a stream, at `at_ns`: `tokens` of them of a request, the last of them its `n`-th (from 1)."""

    request_id: int
    n: int
    is_last: bool
    at_ns: int
    tokens: int = 1


class Outbox:
    """Events not taken yet, in order of time: one with the first token, one every `interval`, one with the last.

    failing  sequences that die in the pass that would give their last token: its event comes, and nothing else of it
    """

    def __init__(self, interval: int, metrics: Metrics) -> None:
        self.events: list[Token] = []
        self._interval = interval
        self.metrics = metrics
        self.failing: set[int] = set()
        self._gaps_ns: dict[int, int] = {}
        self._generated_tok = 0

    def stamp(self, sequence: Sequence, now_ns: int) -> None:
        """`sequence` has produced what it had not had at its last stamp, all of it at `now_ns`."""
        produced = sequence.produced
        is_last = sequence.ended
        if is_last and sequence.id in self.failing:
            self._fail(sequence, now_ns)
            return
        if sequence.first_token_ns:
            gap = now_ns - sequence.last_token_ns
            self._gaps_ns[gap] = self._gaps_ns.get(gap, 0) + 1
            self._generated_tok += produced - sequence.accounted_tok
        else:
            sequence.first_token_ns = now_ns
            self.metrics.first_token(sequence, now_ns)
        sequence.last_token_ns = now_ns
        sequence.accounted_tok = produced
        fresh = produced - sequence.streamed
        if fresh >= self._interval or is_last or not sequence.streamed:
            sequence.streamed = produced
            self.events.append(Token(sequence.id, produced, is_last, now_ns, fresh))
        if is_last:
            self.metrics.ended(sequence, "length", now_ns)

    def _fail(self, sequence: Sequence, now_ns: int) -> None:
        """To vLLM an output without a token: the gap before it is one more, and with it the request ends."""
        sent_tok = sequence.produced - 1
        self.failing.remove(sequence.id)
        if sequence.first_token_ns:
            gap = now_ns - sequence.last_token_ns
            self._gaps_ns[gap] = self._gaps_ns.get(gap, 0) + 1
            self._generated_tok += sent_tok - sequence.accounted_tok
            sequence.last_token_ns = now_ns
        self.events.append(Token(sequence.id, sequence.produced, True, now_ns, sequence.produced - sequence.streamed))
        self.metrics.ended(sequence, "error", now_ns, sent_tok)

    def close_step(self, batch: Batch) -> None:
        """All tokens of a pass are stamped: what it did goes to the metrics."""
        self.metrics.stepped(batch, self._gaps_ns, self._generated_tok)
        self._gaps_ns = {}
        self._generated_tok = 0

    def drop(self, sequence_id: int) -> None:
        """Forget events of a request that nobody waits for any more."""
        self.failing.discard(sequence_id)
        self.events = [token for token in self.events if token.request_id != sequence_id]

    def take(self) -> list[Token]:
        """The events so far, once."""
        events, self.events = self.events, []
        return events
