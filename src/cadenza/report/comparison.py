"""A published hardware comparison on a terminal: printed beside predicted, a sentence for each disagreement."""

from typing import TextIO

from cadenza.hardware.comparison import ComparedConfiguration, Comparison
from cadenza.report.prediction import make_console, number, print_table


def show_comparison(comparison: Comparison, stream: TextIO | None = None) -> None:
    """Print `comparison` on `stream` (stdout)."""
    from rich.text import Text

    console = make_console(stream)
    console.print(Text(f"{comparison.title}: output tok/s, single stream and at the printed peak", style="bold"))
    console.print(Text(f"printed: as published; the rest: {comparison.label}", style="bold yellow"))
    console.print()
    figures = ("printed", "physics", *([comparison.machine] if comparison.machine else []))
    heads = ("configuration", "C", *figures, "at peak C", *figures, "fits")
    rows = [_row(row, machine=comparison.machine is not None) for row in comparison.configurations]
    print_table(console, heads, rows, left=(0, len(heads) - 1))
    console.print()
    for line in _legend(comparison):
        console.print(Text(line, style="dim"), soft_wrap=True)
    for row in comparison.configurations:
        console.print()
        console.print(Text(f"{row.printed.name} ({row.model})", style="bold"))
        for sentence in row.disagreements:
            console.print(Text(f"  - {sentence}."), soft_wrap=True)


def _row(row: ComparedConfiguration, *, machine: bool) -> tuple[str, ...]:
    models = [row.physics, *([row.machine] if machine else [])]
    single = [number(one.single_tok_per_s, 1) if one else "–" for one in models]
    peak = [number(one.at_peak_tok_per_s, 1) if one else "–" for one in models]
    return (
        row.printed.name,
        "1",
        number(row.printed.single_stream_tok_per_s, 1),
        *single,
        str(row.printed.peak_concurrency),
        number(row.printed.peak_tok_per_s, 2),
        *peak,
        f"{row.sequences} sequences" if row.fits else "no: as if it did",
    )


def _legend(comparison: Comparison) -> list[str]:
    machine = (
        [f"{comparison.machine}: the same with its own overheads, derived from its printed figures, which it repeats."]
        if comparison.machine
        else []
    )
    return [
        f"source: {comparison.source}.",
        "physics: data sheets; tuned to nothing.",
        *machine,
        f"{comparison.gpu_memory_utilization:g} of the memory, {comparison.context_tok} tokens a sequence.",
    ]
