"""What the machine was doing, as text under a model's table: cards, engine, host, and what held each point back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cadenza.analysis.bottleneck import Bottleneck
from cadenza.analysis.machine import Engine, Gpu, Host, Machine
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.reconciliation import Reconciliation
from cadenza.record import printable

UNDEFINED = "–"
_GIB = 2**30
MACHINE = "Machine; a value a card where there are several"
# As the tables above: two lines, what, and which of it.
MACHINE_HEADER = (
    ("", "C"),
    ("busy", "%"),
    ("VRAM", "GiB"),
    ("power", "W"),
    ("J /", "token"),
    ("hottest", "°C"),
    ("thrott-", "led %"),
    ("run /", "wait"),
    ("KV", "max %"),
    ("pre-", "empted"),
    ("prefix", "hit %"),
    ("host", "CPU %"),
)
_ENOUGH = 3


class Block(NamedTuple):
    """A table (no rows where nothing was seen; columns in which nothing is are left out), and sentences."""

    header: tuple[tuple[str, str], ...]
    rows: list[tuple[str, ...]]
    remarks: list[str]


def name_loads(labels: Sequence[str]) -> str:
    """Loads in a sentence: `C = 1, 4`, or `0.5/s, 2/s` where nothing bounds the requests in flight."""
    is_open = labels and all(label.partition(" #")[0].endswith("/s") and " @ " not in label for label in labels)
    return ", ".join(labels) if is_open else f"C = {', '.join(labels)}"


def lay_out_machine(points: Sequence[PointSummary], label: Callable[[PointSummary], str]) -> Block | None:
    """One model's points; None: the machine was not watched."""
    watched = [(point, point.machine) for point in points if isinstance(point.machine, Machine)]
    if not watched:
        return None
    seen = [(point, machine) for point, machine in watched if machine.gpus or machine.host or machine.engine]
    rows = [_row(label(point), machine) for point, machine in seen]
    shown = [n for n in range(len(MACHINE_HEADER)) if n == 0 or any(row[n] != UNDEFINED for row in rows)]
    return Block(
        tuple(MACHINE_HEADER[n] for n in shown),
        [tuple(row[n] for n in shown) for row in rows],
        [
            *_cards([machine for _, machine in seen]),
            *_bottlenecks(points, label),
            *_differences(points, label),
            *_trouble(watched, label),
            *_unwatched(watched, label),
            *_unseen(watched),
        ],
    )


def _row(name: str, machine: Machine) -> tuple[str, ...]:
    gpus, engine, host = machine.gpus, machine.engine or Engine(), machine.host or Host()
    return (
        name,
        _each(gpus, lambda gpu: _scaled(gpu.busy_mean, 100, 0)),
        _each(gpus, lambda gpu: _scaled(gpu.vram_peak_bytes, 1 / _GIB, 1)),
        _each(gpus, lambda gpu: _scaled(gpu.power_mean_w, 1, 0)),
        _scaled(machine.joules_per_tok, 1, 2),
        _each(gpus, lambda gpu: _scaled(max(gpu.temperature_max_c.values(), default=None), 1, 0)),
        _each(gpus, lambda gpu: _scaled(gpu.throttled_share, 100, 0)),
        _pair(_scaled(engine.running_mean, 1, 1), _scaled(engine.waiting_mean, 1, 1)),
        _scaled(engine.kv_usage_peak, 100, 0),
        _scaled(engine.preemptions, 1, 0),
        _scaled(engine.prefix_hit_rate, 100, 0),
        _scaled(host.cpu_busy_mean, 100, 0),
    )


def _scaled(value: float | None, factor: float, decimals: int) -> str:
    return UNDEFINED if value is None else f"{value * factor:.{decimals}f}"


def _each(gpus: Sequence[Gpu], tell: Callable[[Gpu], str]) -> str:
    cells = [tell(gpu) for gpu in gpus]
    return "/".join(cells) if any(text != UNDEFINED for text in cells) else UNDEFINED


def _pair(one: str, other: str) -> str:
    return UNDEFINED if one == other == UNDEFINED else f"{one}/{other}"


def _cards(seen: Sequence[Machine]) -> list[str]:
    """Which value in the table is whose."""
    known = {gpu.gpu: gpu.product for machine in seen for gpu in machine.gpus}
    if not known:
        return []
    names = [gpu + (f" {printable(product, 60)}" if product else "") for gpu, product in sorted(known.items())]
    simulated = "simulated; " if any(machine.virtual for machine in seen) else ""
    return [f"{'Cards' if len(names) > 1 else 'Card'}: {simulated}{', '.join(names)}."]


def _bottlenecks(points: Sequence[PointSummary], label: Callable[[PointSummary], str]) -> list[str]:
    """Each with what it is drawn from, where that is not all of the point."""
    lines = []
    for point in points:
        if isinstance(found := point.bottleneck, Bottleneck):
            gap = _gap(point, point.machine) if isinstance(point.machine, Machine) else ""
            less = f" ({gap} unwatched)" if gap else ""
            lines.append(
                f"Bottleneck at {name_loads([label(point)])}{less}: {found.kind}; {'; '.join(found.evidence)}."
            )
    return lines


def _gap(point: PointSummary, machine: Machine) -> str:
    """For how long it was watched by less than everything that watches; empty: never."""
    longest_s = max(machine.unwatched_s.values(), default=0.0)
    return f"{longest_s:.0f} of {max(longest_s, point.duration_s):.0f} s" if longest_s else ""


def _unwatched(watched: Sequence[tuple[PointSummary, Machine]], label: Callable[[PointSummary], str]) -> list[str]:
    """Where nobody looked for a while, and where means hold more than the steady part."""
    lines = [
        f"At {name_loads([label(point)])} nothing was seen of {', '.join(sorted(machine.unwatched_s))} for {gap}: "
        "its figures are of the rest."
        for point, machine in watched
        if (gap := _gap(point, machine))
    ]
    whole = [label(point) for point, machine in watched if machine.samples and machine.window != "window"]
    if whole:
        lines.append(
            f"Too few samples in the steady part at {name_loads(whole)}: some means above are of the whole point."
        )
    return lines


def _differences(points: Sequence[PointSummary], label: Callable[[PointSummary], str]) -> list[str]:
    """Client against server: where the counts agree, in one sentence for all; where not, the checks tell it."""
    held = [(point, point.reconciliation) for point in points if isinstance(point.reconciliation, Reconciliation)]
    agreeing = [
        label(point)
        for point, found in held
        if not found.restarted
        and (counts := [c for c in (found.requests, found.prompt_tokens, found.generation_tokens) if c is not None])
        and all(count.agrees for count in counts)
    ]
    lines = []
    if agreeing:
        lines.append(f"Client and server count the same requests and tokens, within 1 %, at {name_loads(agreeing)}.")
    beyond = [
        f"{label(point)}: {_signed(found.ttft.beyond_ms)}"
        for point, found in held
        # In virtual time there is no network, and the client is never late.
        if found.ttft is not None and not (isinstance(point.machine, Machine) and point.machine.virtual)
    ]
    if beyond:
        lines.append(f"Network and client, in ms of mean TTFT, by C: {', '.join(beyond)}.")
    return lines


def _signed(value: float) -> str:
    """Without a sign where it rounds to nothing."""
    return f"{round(value, 1) + 0.0:.1f}"


def _trouble(watched: Sequence[tuple[PointSummary, Machine]], label: Callable[[PointSummary], str]) -> list[str]:
    lines = []
    for point, machine in watched:
        lines += [f"At {name_loads([label(point)])} {gpu.gpu} stopped answering." for gpu in machine.gpus if gpu.lost]
        events = ", ".join(f"{count} × {name}" for name, count in machine.kernel.items())
        if events:
            lines.append(f"At {name_loads([label(point)])} the kernel's log had {printable(events)}.")
    return lines


def _unseen(watched: Sequence[tuple[PointSummary, Machine]]) -> list[str]:
    """What could not be seen at any of the points, and whose machine it was, in one line each."""
    lines = []
    if any(not machine.server_here and (machine.gpus or machine.host) for _, machine in watched):
        lines.append("Cards and host are those of the client's machine: the server is on another.")
    reasons = [text for _, machine in watched for text in machine.unseen]
    kept = list(dict.fromkeys(reasons))
    if not kept:
        return lines
    more = f"; and {len(kept) - _ENOUGH} more, see summary.json" if len(kept) > _ENOUGH else ""
    return [*lines, f"Not seen: {printable('; '.join(kept[:_ENOUGH]), 400)}{more}."]
