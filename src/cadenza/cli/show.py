"""`cadenza show`: the report of a run, rebuilt from its records, whole or broken off."""

import argparse
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    from cadenza.cli.flags import RUN_HELP, SLO_HELP

    parser.description = "Report a run from its records. A run that broke off reports what was measured."
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--slo", metavar="B", help=f"{SLO_HELP}; in place of the run's bounds")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the summary as JSON, the same bytes as summary.json")
    form.add_argument("--markdown", action="store_true", help="tables for an issue or a wiki")


def run(args: argparse.Namespace) -> int:
    """Print the report; returns the exit code of the run's verdicts."""
    from cadenza.analysis.finding import Verdict
    from cadenza.analysis.summary import to_json
    from cadenza.api import open_run
    from cadenza.cli.values import parse_slo
    from cadenza.report import markdown, terminal
    from cadenza.store.manifest import RunStatus

    stored = open_run(args.run)
    summary = stored.summary if args.slo is None else stored.summarise(parse_slo(args.slo))
    manifest = stored.manifest
    if args.json:
        sys.stdout.buffer.write(to_json(summary))
    elif args.markdown:
        print(markdown.render(summary), end="")
    else:
        if manifest.status is not RunStatus.COMPLETE:
            begun = sum(point.start_ns is not None for point in manifest.points)
            print(f"{stored.path}: {manifest.status.value}, {begun} of {len(manifest.points)} points begun")
        terminal.show(summary)
    if stored.broken_lines:
        print(f"cadenza: {stored.broken_lines} line(s) of records.jsonl are cut off and left out", file=sys.stderr)
    return int(any(point.verdict is Verdict.INVALID for point in summary.points))
