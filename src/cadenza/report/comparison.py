"""The published comparison on a terminal: printed beside predicted, a sentence for each disagreement."""

from typing import TextIO

from cadenza.hardware.comparison import Comparison, Row
from cadenza.report.prediction import make_console, number, print_table

_HEADS = ("configuration", "C", "printed", "physics", "that box", "at peak C", "printed", "physics", "that box", "fits")


def show_comparison(comparison: Comparison, stream: TextIO | None = None) -> None:
    """Print `comparison` on `stream` (stdout)."""
    from rich.text import Text

    console = make_console(stream)
    console.print(Text("Four published configurations, output tok/s alone and at the printed peak", style="bold"))
    console.print(Text(f"printed: as published; the rest: {comparison.label}", style="bold yellow"))
    console.print()
    print_table(console, _HEADS, [_row(row) for row in comparison.rows], left=(0, 9))
    console.print()
    for line in _legend(comparison):
        console.print(Text(line, style="dim"))
    for row in comparison.rows:
        console.print()
        console.print(Text(f"{row.printed.configuration} ({row.model})", style="bold"))
        console.print(Text(f"  stated: {row.printed.stated_bottleneck}"))
        console.print(Text(f"  physics: {row.physics.bottleneck}"))
        if not row.fits:
            console.print(Text(f"  does not fit: {row.reason}"), soft_wrap=True)
        for sentence in row.disagreements:
            console.print(Text(f"  - {sentence}."), soft_wrap=True)


def _row(row: Row) -> tuple[str, ...]:
    printed = row.printed
    return (
        printed.configuration,
        "1",
        number(printed.single_stream_tok_s, 1),
        number(row.physics.single_tok_per_s, 1),
        number(row.box.single_tok_per_s, 1),
        str(printed.peak_concurrency),
        number(printed.peak_tok_s, 2),
        number(row.physics.at_peak_tok_per_s, 1),
        number(row.box.at_peak_tok_per_s, 1),
        f"{row.sequences} sequences" if row.fits else "no: as if it did",
    )


def _legend(comparison: Comparison) -> list[str]:
    return [
        "physics: data sheets, a quick host that launches eagerly; tuned to nothing.",
        "that box: the same with 63.3 ms (MI50) and 40.9 ms (RX 6900 XT) a step and 124 µs an all-reduce, derived from",
        "the three printed dense single streams, which it therefore repeats; its other figures are predictions.",
        f"{comparison.utilisation:g} of the memory, {comparison.context_tok} tokens a sequence.",
    ]
