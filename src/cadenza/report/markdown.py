"""The summary as GitHub-flavoured Markdown."""

from collections.abc import Sequence

from cadenza.analysis.summary import Summary
from cadenza.report.columns import Heading
from cadenza.report.machine import MACHINE
from cadenza.report.table import INTERVALS, footnotes, lay_out, nothing_measured, title

_ESCAPED = str.maketrans({c: f"\\{c}" for c in r"\`*_[]<>|#"})


def render(summary: Summary) -> str:
    """The whole report as one text, newline at its end."""
    parts = [f"**{title(summary)}**"]
    if (sentence := nothing_measured(summary)) is not None:
        parts.append(sentence)
    for section in lay_out(summary):
        names = _column_names(section.header)
        lines = [_line(names), _line([":---" if name == "verdict" else "---:" for name in names])]
        lines += [_line([_escape(cell) for cell in row]) for row in section.rows]
        parts.append(f"### {_escape(section.title)}")
        parts.append("\n".join(lines))
        if section.remarks:
            parts.append("\n".join(f"- {_escape(remark)}" for remark in section.remarks))
        if section.intervals:
            parts += [f"{INTERVALS}:", _table(section.interval_header, section.intervals)]
        if section.machine is not None:
            parts.append(f"{MACHINE}:")
            parts += [_table(section.machine.header, section.machine.rows)] if section.machine.rows else []
            parts += ["\n".join(f"- {_escape(remark)}" for remark in section.machine.remarks)]
    parts += [_escape(note) for note in footnotes(summary)]
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    heads = [" ".join(part for part in head if part).replace("- ", "") for head in header]
    lines = [_line(heads), _line(["---:"] * len(heads))]
    return "\n".join(lines + [_line([_escape(cell) for cell in row]) for row in rows])


def _column_names(header: Sequence[Heading]) -> list[str]:
    """One line of heading: a group's name goes to each of its columns."""
    names, group = [], ""
    for above, name in header:
        group = above or (group if name.startswith("P") else "")
        names.append(f"{group}{'' if group.endswith('-') or not group else ' '}{name}".replace("speed-up", "speedup"))
    return names


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
