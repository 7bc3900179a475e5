"""The summary as GitHub-flavoured Markdown."""

from cadenza.report.table import HEADER, INTERVAL_HEADER, INTERVALS, footnotes, lay_out, title
from cadenza.stats.summary import Summary

_ESCAPED = str.maketrans({c: f"\\{c}" for c in r"\`*_[]<>|#"})


def render(summary: Summary) -> str:
    """The whole report as one text, newline at its end."""
    parts = [f"**{title(summary)}**"]
    names = _column_names()
    for section in lay_out(summary):
        lines = [_line(names), _line([":---" if name == "verdict" else "---:" for name in names])]
        lines += [_line([_escape(cell) for cell in row]) for row in section.rows]
        parts.append(f"### {_escape(section.title)}")
        parts.append("\n".join(lines))
        if section.remarks:
            parts.append("\n".join(f"- {_escape(remark)}" for remark in section.remarks))
        if section.intervals:
            heads = [" ".join(part for part in head if part) for head in INTERVAL_HEADER]
            lines = [_line(heads), _line(["---:"] * len(heads))]
            lines += [_line([_escape(cell) for cell in row]) for row in section.intervals]
            parts += [f"{INTERVALS}:", "\n".join(lines)]
    parts += [_escape(note) for note in footnotes(summary)]
    return "\n\n".join(parts) + "\n"


def _column_names() -> list[str]:
    """One line of heading: a group's name goes to each of its columns."""
    names, group = [], ""
    for above, name in HEADER:
        group = above or (group if name in ("P50", "P99") else "")
        names.append(f"{group}{'' if group.endswith('-') or not group else ' '}{name}".replace("speed-up", "speedup"))
    return names


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
