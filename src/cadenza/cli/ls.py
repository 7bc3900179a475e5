"""`cadenza ls`: the runs in a folder, a line each."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = "List the runs in a folder: when, status, points, what was measured."
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Print one line a run, oldest first."""
    from cadenza.errors import CadenzaError, UsageError
    from cadenza.record import PointStatus, printable
    from cadenza.store.rundir import list_runs, read_run

    folder = Path(args.folder)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: runs are kept below runs/ where `cadenza sweep` was called")
    for path in list_runs(folder):
        try:
            manifest = read_run(path).manifest
        except CadenzaError as error:
            print(f"{path}  unreadable: {error}")
            continue
        done = sum(point.status is PointStatus.COMPLETE for point in manifest.points)
        models = ", ".join(dict.fromkeys(printable(point.model, 60) for point in manifest.points))
        label = "  SIMULATED" if manifest.simulated else ""
        print(f"{path}  {manifest.status.value:<11} {done}/{len(manifest.points)} points  {models}{label}")
    return 0
