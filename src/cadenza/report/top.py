"""The live view: a snapshot as text for a terminal of any width. Rounding happens here and nowhere before."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cadenza.analysis.snapshot import Card, HostNow, Progress, Snapshot, Stream, Times
from cadenza.record import LoadLabel, printable

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

_Row = TypeVar("_Row")

UNDEFINED = "–"
_GIB = 2**30
_MHZ = 1e6
_GAP = 2
_NAME_AT_LEAST, _SOURCE_AT_LEAST = 12, 24
_STREAMS = 12  # models at once; the busiest are kept
_CARDS = 64
_REASONS = 3
_FULL_KV = 0.9
_PLAIN_WIDTH = 120
_STATUS = {
    "up": "green",
    "down": "bold red",
    "running": "green",
    "complete": "green",
    "interrupted": "yellow",
    "failed": "bold red",
}


_GOES_ON = ("up", "down", "running")


class _Cell(NamedTuple):
    text: str
    style: str = ""


class _Column(NamedTuple):
    """Two lines of heading and a cell a row; of columns that do not fit, those of the highest `rank` go first."""

    above: str
    name: str
    cells: list[_Cell]
    rank: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(cell_len(text) for text in (self.above, self.name, *(cell.text for cell in self.cells)))


def render(snapshot: Snapshot, width: int, every_s: float, streams: int = _STREAMS, cards: int = _CARDS) -> "Group":
    """The whole view for a terminal of `width` columns, updated every `every_s` seconds; this many rows at most of
    models, the busiest, and of cards, those in trouble before the busiest."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_title(snapshot, every_s, width)]
    if snapshot.run is not None:
        parts.append(Text(_progress(snapshot.run)))
    parts += [Text(), *_stream_tables(snapshot, width, streams)]
    if snapshot.cards:
        shown = _most(
            snapshot.cards, cards, lambda card: (card.state != "up" or bool(card.throttled), card.busy or 0.0)
        )
        parts += [Text(), _table(_card_columns(shown), width), *_rest(len(snapshot.cards) - len(shown), "card")]
    parts += [Text(), Text(_host(snapshot.host, local=snapshot.local))]
    if snapshot.kernel:
        events = ", ".join(f"{count} × {name}" for name, count in snapshot.kernel.items())
        parts.append(Text(f"Kernel log: {printable(events)}", style="bold red"))
    parts += [Text(printable(note), style="yellow") for note in snapshot.notes]
    return Group(*parts)


def _urgency(card: Card) -> tuple[bool, float]:
    """Cards in trouble before the others, and of those the busiest."""
    return card.state != "up" or bool(card.throttled), card.busy or 0.0


def render_screen(snapshot: Snapshot, console: "Console", every_s: float) -> "Group":
    """The view with as many rows of models and cards as the console's height has room for, and one of each at least."""
    rows = max(_STREAMS, len(snapshot.cards))
    while True:
        view = render(snapshot, console.width, every_s, min(rows, _STREAMS), rows)
        excess = len(console.render_lines(view, console.options, pad=False)) - console.height
        if excess <= 0 or rows == 1:
            return view
        rows = max(1, rows - max(1, excess // 3))  # a row less is three lines less at most: two tables, and the cards


def to_text(snapshot: Snapshot, every_s: float, width: int = _PLAIN_WIDTH) -> str:
    """The view as plain text, lines of at most `width` columns."""
    import io

    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)
    console.print(render(snapshot, width, every_s))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _title(snapshot: Snapshot, every_s: float, width: int) -> "Text":
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    engines = list(dict.fromkeys(stream.engine for stream in snapshot.streams if stream.engine is not None))
    span = UNDEFINED if snapshot.window_s is None else f"{snapshot.window_s:.{0 if snapshot.window_s >= 10 else 1}f} s"
    pace = f"every {every_s:g} s, over the last {span}" if snapshot.status in _GOES_ON else f"its last {span}"
    names = f"  {' '.join(engines)}" if engines else ""
    simulated = "  SIMULATED" if snapshot.simulated else ""
    taken = len(names) + len(simulated) + len(snapshot.status) + 2
    remaining = width - taken - len(pace) - 2
    room = remaining if remaining >= min(len(snapshot.source), _SOURCE_AT_LEAST) else width - taken
    text.append(printable(snapshot.source, max(_NAME_AT_LEAST, room)), style="bold")
    text.append(names)
    text.append(f"  {snapshot.status}", style=_STATUS.get(snapshot.status, ""))
    text.append(simulated, style="bold yellow")
    if room == remaining:
        text.append(" " * (width - text.cell_len - len(pace)) + pace, style="dim")
    return text


def _progress(run: Progress) -> str:
    load = "" if run.concurrency is None else f"  C = {run.concurrency}"
    load += "" if run.rate_per_s is None else f"  {run.rate_per_s:g}/s"
    of = "" if run.planned is None else f" of {run.planned}"
    failed = f", {run.failed} failed" if run.failed else ""
    return f"point {run.point} of {run.points}{load}  {run.ended}{of} answers{failed}  {run.model}"


def _most(rows: Sequence[_Row], limit: int, weight: Callable[[_Row], Any]) -> list[_Row]:
    """The `limit` heaviest of them, in their order."""
    kept = sorted(range(len(rows)), key=lambda n: weight(rows[n]), reverse=True)[:limit]
    return [rows[n] for n in sorted(kept)]


def _rest(left: int, name: str) -> "list[RenderableType]":
    from rich.text import Text

    return [Text(f"and {left} {name}{'' if left == 1 else 's'} more", style="dim")] if left else []


def _stream_tables(snapshot: Snapshot, width: int, most: int) -> "list[RenderableType]":
    from rich.text import Text

    if not snapshot.streams:
        return [Text("no streams yet", style="dim")]
    shown = _most(snapshot.streams, most, lambda stream: (stream.running or 0) + (stream.waiting or 0))
    name = _Column("", "model", [_Cell(stream.model or UNDEFINED) for stream in shown], left=True)
    load, latency = _load_columns(shown), _latency_columns(shown, snapshot.run)
    tables: list[RenderableType]
    if _fits([name, *load, *latency], width):
        tables = [_table([name, *load, *latency], width)]
    else:
        tables = [_table([name, *load], width), Text(), _table([name, *latency], width)]
    tables += _rest(len(snapshot.streams) - len(shown), "model")
    if any(stream.rates_from == "answers" for stream in shown):
        tables.append(Text("tok/s by answers that have ended: the engine's counters are not to be had", style="dim"))
    if any(times.at_least for stream in shown for times in _all_times(stream)):
        tables.append(Text("> beyond the last bound of the engine's histogram", style="dim"))
    if any(times.at_most for stream in shown for times in _all_times(stream)):
        tables.append(Text("< below the first bound of the engine's histogram", style="dim"))
    return tables


def _load_columns(streams: Sequence[Stream]) -> list[_Column]:
    def column(above: str, name: str, cell: Callable[[Stream], _Cell], rank: int = 0) -> _Column:
        return _Column(above, name, [cell(stream) for stream in streams], rank)

    return [
        column("", "run", lambda s: _number(s.running, 0)),
        column("", "wait", lambda s: _number(s.waiting, 0, "yellow" if s.waiting else "")),
        column("tok/s", "out", lambda s: _number(s.generation_tok_per_s, 1)),
        column("", "in", lambda s: _number(s.prompt_tok_per_s, 1)),
        column("", "req/s", lambda s: _number(s.requests_per_s, 2), rank=2),
        column("KV", "%", lambda s: _percent(s.kv_usage, "yellow" if (s.kv_usage or 0) >= _FULL_KV else "")),
        column("pre-", "empted", lambda s: _number(s.preemptions, 0, "yellow" if s.preemptions else ""), rank=1),
        column("prefix", "hit %", lambda s: _percent(s.prefix_hit_rate), rank=1),
    ]


def _latency_columns(streams: Sequence[Stream], run: Progress | None) -> list[_Column]:
    """TTFT, from when a request was due where the load is open or capped; TPOT, or else the ITL."""
    due = run is not None and run.load != LoadLabel.CLOSED
    first = [stream.user_ttft_ms if due else stream.ttft_ms for stream in streams]
    per_request = [stream.tpot_ms for stream in streams]
    gaps = [stream.itl_ms for stream in streams]
    if any(per_request) or not any(gaps):
        cadence = _times_columns("TPOT ms", per_request, 2)
    else:
        cadence = _times_columns("ITL ms", gaps, 2)
    return [*_times_columns("user TTFT ms" if due else "TTFT ms", first, 1), *cadence]


def _times_columns(title: str, values: Sequence[Times | None], decimals: int) -> list[_Column]:
    def column(above: str, figure: str, rank: int = 0) -> _Column:
        return _Column(above, figure.upper() if figure != "mean" else figure, [one(t, figure) for t in values], rank)

    def one(times: Times | None, figure: str) -> _Cell:
        cell = _number(None if times is None else getattr(times, figure), decimals)
        if times is None:
            return cell
        bound = ">" if figure in times.at_least else "<" if figure in times.at_most else ""
        return _Cell(f"{bound}{cell.text}")

    return [column(title, "mean"), column("", "p50", rank=1), column("", "p99")]


def _all_times(stream: Stream) -> list[Times]:
    return [t for t in (stream.ttft_ms, stream.user_ttft_ms, stream.tpot_ms, stream.itl_ms) if t is not None]


def _card_columns(cards: Sequence[Card]) -> list[_Column]:
    def column(above: str, name: str, cell: Callable[[Card], _Cell], rank: int = 0, *, left: bool = False) -> _Column:
        return _Column(above, name, [cell(card) for card in cards], rank, left)

    return [
        column("", "GPU", lambda c: _Cell(printable(c.gpu, 20)), left=True),
        column("", "card", lambda c: _Cell(printable(c.product or UNDEFINED, 24)), rank=3, left=True),
        column("busy", "%", lambda c: _percent(c.busy)),
        column("VRAM", "GiB", _vram),
        column("power", "W", _power),
        column("hottest", "°C", _hottest),
        column("clock", "MHz", lambda c: _number(None if c.clock_hz is None else c.clock_hz / _MHZ, 0), rank=1),
        column("", "throttled", _throttled, left=True),
    ]


def _vram(card: Card) -> _Cell:
    return _pair(card.vram_used_bytes, card.vram_size_bytes, 1 / _GIB, 1)


def _power(card: Card) -> _Cell:
    return _pair(card.power_w, card.power_cap_w, 1, 0)


def _hottest(card: Card) -> _Cell:
    """The sensor that is nearest to its limit; the hottest one where no limits are known."""
    if not card.temperatures_c:
        return _Cell(UNDEFINED)
    limits = card.limits_c
    near = [sensor for sensor in card.temperatures_c if sensor in limits]
    if near:
        sensor = min(near, key=lambda name: limits[name] - card.temperatures_c[name])
        hot = card.temperatures_c[sensor] >= limits[sensor]
    else:
        sensor, hot = max(card.temperatures_c, key=lambda name: card.temperatures_c[name]), False
    label = f" {printable(sensor, 10)}" if sensor else ""
    return _Cell(f"{card.temperatures_c[sensor]:.0f}{label}", "bold red" if hot else "")


def _throttled(card: Card) -> _Cell:
    if card.state != "up":
        return _Cell(card.state, "bold red" if card.state == "gone" else "dim")
    if card.throttled is None:
        return _Cell(UNDEFINED)
    if not card.throttled:
        return _Cell("no")
    more = f" +{len(card.throttled) - _REASONS}" if len(card.throttled) > _REASONS else ""
    return _Cell(printable(", ".join(card.throttled[:_REASONS]), 40) + more, "bold red")


def _host(host: HostNow | None, *, local: bool) -> str:
    if host is None:
        return f"host  CPU {UNDEFINED}"
    whose = "host" if local else "client's host"
    used = None
    if host.memory_size_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_size_bytes - host.memory_available_bytes
    cores = "" if host.cores is None else f" of {host.cores:.0f} cores"
    steal = f", {_percent(host.cpu_steal).text} % stolen" if host.cpu_steal else ""
    memory = _pair(used, host.memory_size_bytes, 1 / _GIB, 1).text
    return f"{whose}  CPU {_percent(host.cpu_busy).text} %{cores}{steal}  memory {memory} GiB"


def _number(value: float | None, decimals: int, style: str = "") -> _Cell:
    return _Cell(UNDEFINED) if value is None or value != value else _Cell(f"{value:.{decimals}f}", style)


def _percent(value: float | None, style: str = "") -> _Cell:
    return _number(None if value is None else 100 * value, 0, style)


def _pair(value: float | None, limit: float | None, factor: float, decimals: int) -> _Cell:
    """A value, and what it can be at most where that is known."""
    text = _number(None if value is None else value * factor, decimals).text
    return _Cell(text if limit is None else f"{text}/{limit * factor:.{decimals}f}")


def _fits(columns: Sequence[_Column], width: int) -> bool:
    """With a name of the least width, or its width if that is less."""
    first, *rest = columns
    return min(first.width, _NAME_AT_LEAST) + sum(_GAP + column.width for column in rest) <= width


def _table(columns: Sequence[_Column], width: int) -> "Table":
    """As many of the columns as fit, whole: rich would cut digits off. Only the first one may be shortened."""
    from rich.table import Table
    from rich.text import Text

    kept = list(columns)
    while not _fits(kept, width) and len(kept) > 1:
        # The last of those of the highest rank.
        kept.remove(max(reversed(kept[1:]), key=lambda column: column.rank))
    first, *rest = kept
    room = width - sum(_GAP + column.width for column in rest)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False)
    for column in kept:
        table.add_column(
            Text(f"{column.above}\n{column.name}"),
            justify="left" if column.left else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=min(room, first.width) if column is first else column.width,
        )
    for row in zip(*(column.cells for column in kept), strict=True):
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    return table
