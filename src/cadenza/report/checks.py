"""Every check of every point as plain lines: what `cadenza check` prints."""

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import Summary
from cadenza.record import printable
from cadenza.report.columns import label
from cadenza.report.table import nothing_measured, title

_SIGNS = {
    None: "not judged",
    Verdict.VALID: "ok",
    Verdict.SUSPECT: "SUSPECT",
    Verdict.CLIENT_LIMITED: "CLIENT-LIMITED",
    Verdict.INVALID: "INVALID",
}


def render_checks(summary: Summary) -> str:
    """A block a point: its verdict, then its checks in order, newline at the end."""
    blocks = [title(summary)]
    if (sentence := nothing_measured(summary)) is not None:
        blocks.append(sentence)
    blocks += [_block(point) for point in summary.points]
    return "\n\n".join(blocks) + "\n"


def _block(point: PointSummary) -> str:
    load = label(point)
    name = f"{printable(point.model, 80)}  {'C = ' if point.concurrency else ''}{load}  {point.verdict.value}"
    width = max((len(check.name) for check in point.checks), default=0)
    lines = [
        f"  {_SIGNS[check.verdict]:<14} {check.name:<{width}}  {printable(check.message, 400)}"
        for check in point.checks
    ]
    return "\n".join([name, *lines])
