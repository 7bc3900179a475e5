"""A prediction on a terminal: what fits, how fast, what holds it back, what would change that."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from cadenza.hardware.memory import GIB
from cadenza.hardware.predict import Peak, Prediction, WhatIf
from cadenza.hardware.step import StepTime
from cadenza.hardware.system import split_text
from cadenza.record import printable

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 110
UNDEFINED = "–"


def show_prediction(prediction: Prediction, stream: TextIO | None = None) -> None:
    """Print `prediction` on `stream` (stdout)."""
    from rich.text import Text

    console = make_console(stream)
    console.print(Text(f"{prediction.hardware}: {printable(prediction.model, 80)}", style="bold"))
    console.print(Text(prediction.label, style="bold yellow"))
    for name, value in _facts(prediction):
        console.print(Text(f"  {name:<12} {value}"), soft_wrap=True)
    if prediction.points:
        console.print()
        print_table(console, ("C", "running", "tok/s", "TPOT ms", ""), _points(prediction), left=(4,))
    if prediction.what_ifs:
        console.print()
        console.print(Text("What if", style="bold"))
        heads = ("change", "C = 1 tok/s", "%", "peak tok/s", "%", "")
        print_table(console, heads, [_what_if(entry) for entry in prediction.what_ifs], left=(0, 5))
    for note in _notes(prediction):
        console.print(Text(note, style="dim"), soft_wrap=True)


def make_console(stream: TextIO | None) -> "Console":
    """A console on `stream`, plain where it is no terminal."""
    from rich.console import Console

    out = stream if stream is not None else sys.stdout
    width = None if out.isatty() else _PLAIN_WIDTH
    return Console(file=out, highlight=False, markup=False, emoji=False, width=width)


def print_table(
    console: "Console", heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)
) -> None:
    """Print `rows` under `heads`, columns `left` flush left; whole numbers, also where a line gets too long."""
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=True, show_edge=False)
    for column, head in enumerate(heads):
        table.add_column(head, justify="left" if column in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    width = console.width
    needed = Measurement.get(console, console.options.update(max_width=10 * _PLAIN_WIDTH), table).maximum
    console.width = max(width, needed)
    console.print(table, soft_wrap=False, crop=False)
    console.width = width


def number(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """The value rounded, or a dash where there is none."""
    return UNDEFINED if value is None else f"{value:{'+' if sign else ''}.{decimals}f}"


def _facts(found: Prediction) -> list[tuple[str, str]]:
    lines = []
    if found.tensor_parallel > 1:
        lines.append(("parallel", f"{found.tensor_parallel} ranks, split {split_text(found.split)}, {found.link}"))
    memory = found.memory
    lines += [
        (
            "memory",
            f"{rank.device}: {memory.utilisation:g} of its memory is {rank.budget / GIB:.2f} GiB = weights "
            f"{rank.weights / GIB:.2f} + working {rank.working / GIB:.2f} + KV {rank.kv / GIB:.2f}",
        )
        for rank in dict.fromkeys(memory.ranks)
    ]
    if not found.fits:
        return [*lines, ("DOES NOT FIT", found.reason)]
    lines.append(
        (
            "KV room",
            f"{memory.kv_tok:,} tokens in {memory.blocks:,} blocks of {memory.block_size}: {found.sequences:,} x "
            f"{found.context_tok:,} tokens",
        )
    )
    lines.append(("alone", f"{number(found.single_tok_per_s, 1)} tok/s, TPOT {number(found.tpot_ms, 2)} ms"))
    lines.append(("TTFT", f"{number(found.ttft_ms, 0)} ms for a prompt of {found.prompt_tok:,} tokens, idle server"))
    if found.peak is not None:
        lines.append(("peak", _peak(found.peak)))
    lines.append(("bottleneck", f"alone: {found.bottleneck}; at the peak: {found.peak_bottleneck}"))
    if found.step is not None and found.tensor_parallel > 1:
        lines.append(("straggler", _straggler(found.step)))
        lines.append(("link", f"{100 * found.step.link_share:.1f} % of a step"))
    return lines


def _straggler(step: StepTime) -> str:
    waits = {rank.device: rank.stall_share for rank in step.ranks if rank.stall_share > 1e-9}
    if not waits:
        return "none: all ranks take equally long"
    waiting = ", ".join(f"{device} waits {100 * share:.1f} %" for device, share in waits.items())
    return f"{waiting} of each layer for {step.slowest.device}"


def _peak(peak: Peak) -> str:
    limit = "the KV room" if peak.limited_by == "kv room" else "max_num_seqs"
    flat = f", flat (within 5 %) from C = {peak.flat_from}" if peak.flat else ""
    return f"{peak.tok_per_s:,.0f} tok/s at C = {peak.concurrency}, limited by {limit}{flat}"


def _points(found: Prediction) -> list[tuple[str, ...]]:
    return [
        (
            str(point.concurrency),
            str(point.running),
            number(point.tok_per_s, 1),
            number(point.tpot_ms, 2),
            f"the rest queues: {point.limited_by}" if point.limited_by else "",
        )
        for point in found.points
    ]


def _what_if(entry: WhatIf) -> tuple[str, ...]:
    return (
        entry.change,
        number(entry.single_tok_per_s, 1),
        number(entry.single_pct, 1, sign=True),
        number(entry.peak_tok_per_s, 0),
        number(entry.peak_pct, 1, sign=True),
        "" if entry.fits else "does not fit",
    )


def _notes(found: Prediction) -> list[str]:
    notes = [f"{entry.change} does not fit: {entry.reason}." for entry in found.what_ifs if not entry.fits]
    notes += [
        f"Decoding alone, every sequence holding {found.context_tok:,} tokens; host: {found.host}; "
        f"max_num_seqs {found.max_num_seqs}, max_num_batched_tokens {found.max_num_batched_tokens}.",
    ]
    if max(found.split) - min(found.split) > 1e-9 or any(entry.kind == "split" for entry in found.what_ifs):
        notes.append("vLLM splits evenly; an uneven split is what the cards could do.")
    return notes
