"""What a server and its machine do now: its page of metrics, and collectors where the machine is this one.

Each source is polled on a separate thread, so that a snapshot never waits for the server or for hardware.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from cadenza.analysis.snapshot import Snapshot, Stream, Times, cards, host, kernel
from cadenza.analysis.tracks import Tracks, track
from cadenza.clock import NS_PER_S
from cadenza.errors import TargetError, UsageError
from cadenza.load.fetch import Headers, Page, fetch
from cadenza.load.target import Target
from cadenza.load.transport import Transport
from cadenza.readings import Collected, Collector, Sample, Series
from cadenza.record import printable
from cadenza.telemetry.engine_page import mean, quantile, read_page, restarted, subtract
from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.telemetry.engines import MEASURED, is_simulated, metrics_advice
from cadenza.telemetry.sampler import Sampler, State

_SCRAPE_S = 5.0
_FIRST_ROUND_S = 3.0
_KEPT = 32  # states at most in a window, so that a long one costs no more than a short one
_NAME = 120
_QUANTILES = {"p50": 0.5, "p99": 0.99}
_NOT_CARDS = ("host", "kernel", "engine")
_ASK = f"is it the engine itself, and are its metrics on ({metrics_advice()})?"
_NO_PAGE = f"no metrics of {', '.join(engine.name for engine in MEASURED)} there: {_ASK}"
# Statuses of a server without such a page; llama.cpp without its flag returns 501.
_NOT_THERE = (404, 405, 501)
_LATENCIES = ("ttft_s", "tpot_s", "itl_s")

States = dict[str, EngineState]


class _Scrape(NamedTuple):
    at_ns: int
    states: States


class EngineWindow(NamedTuple):
    """The engine at an instant.

    last, base    the newest states, and those of a window earlier, each with its instant; None: not (yet) there
    why           why the last scrape failed; since_ns: time of the last one that succeeded
    restarted_ns  when a restart was seen; None: never
    """

    last: _Scrape | None
    base: _Scrape | None
    why: str | None
    since_ns: int
    restarted_ns: int | None


class EngineScrapes(Collector):
    """A collector whose readings are the engine's states of the last `window_s`, for `window`."""

    name = "engine"

    def __init__(self, transport: Transport, page: Page, window_s: float) -> None:
        self._transport = transport
        self._page = page
        self._window_ns = round(window_s * NS_PER_S)
        self._turn = threading.Lock()
        self._history: deque[_Scrape] = deque()
        self._last: _Scrape | None = None
        self._why: str | None = None
        self._since_ns = transport.clock.now_ns()
        self._restarted_ns: int | None = None

    def collect(self) -> Collected:
        """Ask once. Never raises for what the server does."""
        states, why = self._ask()
        now_ns = self._transport.clock.now_ns()
        with self._turn:
            self._why = why
            if states:
                self._keep(_Scrape(now_ns, states))
                self._since_ns = now_ns
        return Collected([], [])

    def window(self) -> EngineWindow:
        """The states now; never waits for the server."""
        with self._turn:
            base = self._history[0] if self._history and self._history[0] is not self._last else None
            return EngineWindow(self._last, base, self._why, self._since_ns, self._restarted_ns)

    def _ask(self) -> tuple[States, str | None]:
        page = self._page
        try:
            answer = fetch(self._transport, page.target, page.path, page.headers, timeout_s=_SCRAPE_S)
        except TargetError as error:
            return {}, printable(str(error), 200)
        if answer.status != 200:
            hint = ": give the server's API key" if answer.status in (401, 403) else ""
            hint = f": {_ASK}" if answer.status in _NOT_THERE else hint
            return {}, f"{page.target.url}{page.path} gave HTTP {answer.status}{hint}"
        states = read_page(answer.body)
        return states, None if states else f"{page.target.url}{page.path}: {_NO_PAGE}"

    def _keep(self, fresh: _Scrape) -> None:
        before = self._last.states if self._last is not None else {}
        if any(restarted(state, before[model]) for model, state in fresh.states.items() if model in before):
            self._history.clear()
            self._restarted_ns = fresh.at_ns
        if not self._history or fresh.at_ns - self._history[-1].at_ns >= self._window_ns / _KEPT:
            self._history.append(fresh)
        self._last = fresh
        while len(self._history) > 1 and self._history[1].at_ns <= fresh.at_ns - self._window_ns:
            self._history.popleft()


class ServerView:
    """A server, and this machine's cards and host where there are collectors; a context manager.

    why_not   why there are no collectors, a sentence; None: they are of the machine that serves
    now_s     Unix time; simulated: the cards are
    """

    def __init__(
        self,
        transport: Transport,
        target: Target,
        headers: Headers,
        interval_s: float,
        window_s: float,
        make_collectors: Callable[[], Sequence[Collector]] = tuple,
        why_not: str | None = None,
        now_s: Callable[[], float] = time.time,
        *,
        simulated: bool = False,
    ) -> None:
        path = "" if target.prefix.endswith("/metrics") else "/metrics"
        self._target = target
        self._interval_s = interval_s
        self._window_s = window_s
        self._now_s = now_s
        self._why_not = why_not
        self._clock = transport.clock
        self._scrapes = EngineScrapes(transport, Page(target, path, headers), window_s)
        self._scrapes.collect()
        if (why := self._scrapes.window().why) is not None:
            raise TargetError(why)
        self._simulated = simulated or _is_simulated(transport, target, headers)
        self._sampler = Sampler([self._scrapes, *make_collectors()], interval_s)

    def __enter__(self) -> "ServerView":
        """UsageError: two collectors have the same series."""
        self._sampler.start()
        try:
            self._sampler.check(_FIRST_ROUND_S)
        except UsageError:
            self._sampler.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._sampler.stop()

    def wait(self) -> None:
        """Wait until each source has been polled twice, so that there are rates; for some seconds at most."""
        self._sampler.wait(2, _FIRST_ROUND_S + 2 * self._interval_s)

    @property
    def over(self) -> bool:
        """A server has no end."""
        return False

    def snapshot(self) -> Snapshot:
        """What is to be seen now."""
        return self.describe(self._scrapes.window(), self._sampler.states())

    def describe(self, engine: EngineWindow, states: Sequence[State]) -> Snapshot:
        """The engine and the collectors' states as one snapshot."""
        tracks = _tracks(states)
        base = engine.base if engine.why is None else None
        shown = cards(tracks)
        return Snapshot(
            at=self._now_s(),
            source=printable(self._target.url, _NAME),
            status="up" if engine.why is None else "down",
            simulated=self._simulated,
            window_s=None if base is None or engine.last is None else (engine.last.at_ns - base.at_ns) / NS_PER_S,
            streams=list(_streams(engine)),
            local=self._why_not is None,
            cards=shown,
            host=host(tracks),
            kernel=kernel(tracks),
            notes=[*self._engine_notes(engine), *self._machine_notes(states, seen=bool(shown))],
        )

    def _engine_notes(self, engine: EngineWindow) -> list[str]:
        now_ns = self._clock.now_ns()
        notes = []
        if engine.why is not None:
            notes.append(f"No answer for {(now_ns - engine.since_ns) / NS_PER_S:.0f} s, still trying: {engine.why}")
        current = {} if engine.last is None or engine.why is not None else engine.last.states
        silent = sorted({s.engine for s in current.values() if all(getattr(s, name) is None for name in _LATENCIES)})
        if silent:
            notes.append(f"{' and '.join(silent)} has no latencies on its page: a run against it measures them.")
        if engine.restarted_ns is not None and now_ns - engine.restarted_ns < self._window_s * NS_PER_S:
            notes.append("The engine restarted: its counters fell.")
        return notes

    def _machine_notes(self, states: Sequence[State], *, seen: bool) -> list[str]:
        if self._why_not is not None:
            return [self._why_not]
        if seen:
            return []
        gaps = {
            f"{state.collector}: {gap.reason}"
            for state in states
            if state.last_round is not None and state.collector not in _NOT_CARDS
            for gap in state.last_round.collected.missing
        }
        why = f" ({', '.join(sorted(gaps))})" if gaps else ""
        return [f"No GPU is seen here{why}."]


def _is_simulated(transport: Transport, target: Target, headers: Headers) -> bool:
    """Whether its version is the embedded engine's."""
    with contextlib.suppress(TargetError, msgspec.MsgspecError, UnicodeError):
        answer = fetch(transport, target, "/version", headers, timeout_s=3.0)
        version = msgspec.json.decode(answer.body, type=dict[str, object]).get("version")
        return isinstance(version, str) and is_simulated("", version)
    return False


def _tracks(states: Iterable[State]) -> Tracks:
    """The readings of each collector's last round; the texts of labels are made printable."""
    samples = []
    for state in states:
        if state.last_round is not None and state.readings:
            series = tuple(_printable(one.series) for one in state.readings)
            values = [one.value for one in state.readings]
            samples.append(Sample(state.last_round.ended_ns, state.collector, None, series, values))
    return track(samples)


def _printable(series: Series) -> Series:
    return Series(series.name, tuple((label, printable(text, _NAME)) for label, text in series.labels))


def _streams(engine: EngineWindow) -> Iterable[Stream]:
    """A row a model. While the engine does not answer, only the names: its last state is not its present one."""
    if engine.last is None:
        return
    for model, state in sorted(engine.last.states.items()):
        name = printable(model, _NAME)
        if engine.why is not None:
            yield Stream(model=name, engine=state.engine)
            continue
        before = engine.base.states.get(model) if engine.base is not None else None
        if engine.base is None or before is None:
            yield Stream(
                model=name, engine=state.engine, running=state.running, waiting=state.waiting, kv_usage=state.kv_usage
            )
            continue
        yield describe_stream(name, subtract(state, before), (engine.last.at_ns - engine.base.at_ns) / NS_PER_S)


def describe_stream(model: str, grown: EngineState, span_s: float) -> Stream:
    """What `grown` in `span_s`, the difference of two states, as rates and latencies; gauges are the later state's."""

    def per_s(value: float | None) -> float | None:
        return value / span_s if value is not None and span_s > 0 else None

    queries, hits = grown.prefix_queries_tok, grown.prefix_hits_tok
    return Stream(
        model=model,
        engine=grown.engine,
        running=grown.running,
        waiting=grown.waiting,
        kv_usage=grown.kv_usage,
        generation_tok_per_s=per_s(grown.generation_tokens_total),
        prompt_tok_per_s=per_s(grown.prompt_tokens_total),
        requests_per_s=per_s(grown.requests_total),
        rates_from="engine",
        preemptions=grown.preemptions_total,
        prefix_hit_rate=hits / queries if hits is not None and queries else None,
        ttft_ms=_times(grown.ttft_s),
        tpot_ms=_times(grown.tpot_s),
        itl_ms=_times(grown.itl_s),
        queue_ms=_times(grown.queue_s),
    )


def _times(histogram: Histogram | None) -> Times | None:
    """Milliseconds out of a histogram of seconds. A percentile in its last bucket is only known to lie above that one's
    lower bound, and one in its first bucket below that one's upper bound: they are given as the bound."""
    average = None if histogram is None else mean(histogram)
    if histogram is None or average is None:
        return None
    below = histogram.cumulative[-2] if len(histogram.cumulative) > 1 else 0.0
    first = histogram.cumulative[0] if len(histogram.cumulative) > 1 else 0.0
    ms = {name: quantile(histogram, q) for name, q in _QUANTILES.items()}
    at_most = tuple(name for name, q in _QUANTILES.items() if ms[name] is not None and q * histogram.count <= first)
    ms |= dict.fromkeys(at_most, histogram.bounds[0])
    return Times(
        n=math.floor(histogram.count),
        mean=average * 1e3,
        p50=None if ms["p50"] is None else ms["p50"] * 1e3,
        p99=None if ms["p99"] is None else ms["p99"] * 1e3,
        at_least=tuple(name for name, q in _QUANTILES.items() if ms[name] is not None and q * histogram.count > below),
        at_most=at_most,
    )
