"""Live progress, cheap enough for the loop that measures: a counter an answer, a short write four times a second."""

from collections.abc import Callable
from time import monotonic
from typing import Protocol, TextIO

from cadenza.analysis.point_summary import PointSummary
from cadenza.clock import NS_PER_S
from cadenza.load.shard import Tally
from cadenza.record import Point, printable
from cadenza.report.columns import number, ttft_headline

_EVERY_S = 0.25


class Left(Protocol):
    """How long points will take, in seconds of the run's clock, `speed` of them in a real one; None: not known."""

    @property
    def speed(self) -> float: ...

    def point_s(self, point: Point) -> float | None: ...

    def left_s(self, first: int) -> float | None: ...


class Progress:
    """A line that changes on a terminal, and a line for each finished point anywhere; nothing where `quiet`.

    virtual   the run's clock is not the user's: how far it has come is shown, too, and what is left is an estimate
    """

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, virtual: bool = False, now_s: Callable[[], float] = monotonic
    ) -> None:
        self._stream = stream
        self._quiet = quiet
        self._virtual = virtual
        self._live = not quiet and stream.isatty()
        self._now_s = now_s
        self._head = ""
        self._drawn = 0
        self._next_s = 0.0

    def point_started(self, point: Point, position: int, total: int, left: Left | None = None) -> None:
        """A point begins: number `position` of `total`; `left` knows how long it and those after it will take."""
        load = "" if point.concurrency is None else f" C={point.concurrency}"
        load += "" if point.rate_per_s is None else f" {point.rate_per_s:g}/s"
        self._head = f"[{position}/{total}] {printable(point.model, 40)}{load}"
        self._planned = point.planned
        self._tally = Tally(0, 0, 0, 0)
        self._point = point
        self._speed = 1.0 if left is None else left.speed
        self._point_s = point.duration_s if left is None else left.point_s(point)
        self._rest_s = None if left is None else left.left_s(position)
        self._started_s = self._now_s()
        self._draw(f"{self._head}  warming up")

    def point_goes_on(self, tally: Tally) -> None:
        """So much is in by now."""
        self._tally = tally
        now_s = self._now_s()
        if self._live and now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self._draw(self._line(now_s - self._started_s))

    def point_done(self, summary: PointSummary) -> None:
        """The point is over: its line stays."""
        if self._quiet:
            return
        failed = f"  {summary.requests.failed} failed" if summary.requests.failed else ""
        self._draw("")
        self._write(
            f"{self._head}  {number(summary.throughput_tok_per_s, 1)} tok/s  "
            f"TTFT {number(ttft_headline(summary).mean, 1)} ms  TPOT {number(summary.tpot_ms.mean, 2)} ms  "
            f"{summary.requests.ok} ok{failed}  {summary.verdict.value}\n"
        )

    def _line(self, elapsed_s: float) -> str:
        of = f"/{self._planned}" if self._planned is not None else ""
        ended, failed, tokens, last_ns = self._tally
        wrong = f"  {failed} failed" if failed else ""
        # On the run's own clock, which may be faster than real time.
        span_ns = last_ns - self._point.start_ns if self._point.start_ns is not None else 0
        pace = f"  {tokens * NS_PER_S / span_ns:.1f} tok/s" if span_ns > 0 else ""
        span_s = span_ns / NS_PER_S
        at = f"  at {_clock(span_s)} of virtual time" if self._virtual else ""
        return f"{self._head}  {ended}{of}{pace}{wrong}{at}{self._left(elapsed_s, span_s)}"

    def _left(self, elapsed_s: float, span_s: float) -> str:
        """Of this point, and of all of them, in real time; in virtual time only as far as its pace has shown."""
        if self._virtual:
            if not self._point_s or not span_s > 0:
                return ""
            return f"  {_span(elapsed_s * max(0.0, self._point_s / span_s - 1))} left"
        left_s = self._left_s(elapsed_s)
        if left_s is None:
            return ""
        text = f"  {_span(left_s)} left"
        return text if not self._rest_s else f"{text}, {_span(left_s + self._rest_s / self._speed)} in all"

    def _left_s(self, elapsed_s: float) -> float | None:
        """Real seconds; None: not known."""
        if self._planned is not None and (ended := self._tally.ended):
            return elapsed_s / ended * max(0, self._planned - ended)
        seconds = self._point_s
        if seconds is not None and elapsed_s * self._speed > seconds and self._point.budget_s is not None:
            seconds = self._point.budget_s  # more requests are needed than were expected
        return None if seconds is None else max(0.0, seconds / self._speed - elapsed_s)

    def _draw(self, line: str) -> None:
        """Replace the changing line; blanks cover what was longer, so no escape sequence is needed."""
        if self._live:
            self._write(f"\r{line.ljust(self._drawn)}\r{line}")
            self._drawn = len(line)

    def _write(self, text: str) -> None:
        """Nobody may be listening any more; the measurement goes on."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._quiet, self._live = True, False


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
