"""`cadenza check`: whether a run is valid, check by check."""

import argparse
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    from cadenza.cli.flags import RUN_HELP

    parser.description = (
        "Judge a run from its records: every check of every point, passed or not, with its number. Exit code 0: all "
        "points are VALID; 1: one is SUSPECT, CLIENT-LIMITED or INVALID."
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--json", action="store_true", help="the checks as JSON, by point")


def run(args: argparse.Namespace) -> int:
    """Print the checks; returns 0 only where everything is VALID."""
    import msgspec

    from cadenza.analysis.finding import Verdict
    from cadenza.api import open_run
    from cadenza.report.checks import render_checks

    stored = open_run(args.run)
    summary = stored.summary
    if args.json:
        listed = [
            {"index": p.index, "model": p.model, "verdict": p.verdict, "status": p.status, "checks": p.checks}
            for p in summary.points
        ]
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n")
    else:
        print(render_checks(summary), end="")
    if stored.broken_lines:
        print(f"cadenza: {stored.broken_lines} line(s) of the records are cut off and left out", file=sys.stderr)
    unfinished = not summary.points or len(summary.points) < len(stored.manifest.points)
    return int(unfinished or any(point.verdict is not Verdict.VALID for point in summary.points))
