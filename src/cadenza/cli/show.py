"""`cadenza show`: the report of a run, rebuilt from its records, whole or broken off."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cadenza.analysis.summary import Summary
    from cadenza.spec import Slo
    from cadenza.store.rundir import Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    from cadenza.cli.options import SLO_HELP

    parser.description = "Report a run from its records. A run that broke off reports what was measured."
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--slo", metavar="B", help=f"{SLO_HELP}; in place of the run's own")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the summary as JSON, the same bytes as summary.json")
    form.add_argument("--markdown", action="store_true", help="tables for an issue or a wiki")


def read_summary(path: Path, slo: "Slo | None" = None) -> "tuple[Run, Summary]":
    """A run, whole or broken off, and what its records say, by `slo` or by its own. Raises UsageError or StoreError."""
    from cadenza.analysis.summary import summarise
    from cadenza.store.rundir import read_run
    from cadenza.store.telemetry import read_telemetry

    found = read_run(path)
    manifest = found.manifest
    tool = {"name": "cadenza", "version": manifest.environment.cadenza}
    return found, summarise(
        manifest.points,
        found.records(),
        simulated=manifest.simulated,
        tool=tool,
        slo=slo or manifest.spec.slo,
        telemetry=read_telemetry(path),
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; returns the exit code of the run's verdicts."""
    from cadenza.analysis.summary import to_json
    from cadenza.analysis.verdict import Verdict
    from cadenza.cli.options import parse_slo
    from cadenza.report import markdown, terminal
    from cadenza.store.manifest import RunStatus

    found, summary = read_summary(Path(args.run), None if args.slo is None else parse_slo(args.slo))
    manifest = found.manifest
    if args.json:
        sys.stdout.buffer.write(to_json(summary))
    elif args.markdown:
        print(markdown.render(summary), end="")
    else:
        if manifest.status is not RunStatus.COMPLETE:
            begun = sum(point.start_ns is not None for point in manifest.points)
            print(f"{args.run}: {manifest.status.value}, {begun} of {len(manifest.points)} points begun")
        terminal.show(summary)
    if found.broken_lines:
        print(f"cadenza: {found.broken_lines} line(s) of records.jsonl are cut off and left out", file=sys.stderr)
    return int(any(point.verdict is Verdict.INVALID for point in summary.points))
