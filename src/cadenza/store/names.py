"""A run by its name: a folder, a bare name below `runs/`, or `latest`."""

from pathlib import Path

from cadenza.errors import CadenzaError, UsageError, did_you_mean
from cadenza.store.rundir import list_runs, read_run

RUNS = Path("runs")
LATEST = "latest"


def find_run(name: str | Path, folder: Path = RUNS) -> Path:
    """The folder of the run `name`: a path that exists, else a run in `folder`, `latest` being the last one started.

    UsageError: there is no such folder, with the closest known name; or `latest` where `folder` has no run.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if str(name) == LATEST:
        return _latest(folder)
    if path.name == str(path) and (folder / path).exists():
        return folder / path
    close = did_you_mean(path.name, [LATEST, *(run.name for run in list_runs(folder))])
    raise UsageError(f"{path} is not a run: there is no such folder{close}; `cadenza ls` lists runs")


def _latest(folder: Path) -> Path:
    started: list[tuple[int, Path]] = []
    for path in list_runs(folder):
        try:
            started.append((read_run(path).manifest.anchor.wall_ns, path))
        except CadenzaError:  # damaged, or of a newer version: not a candidate
            continue
    if not started:
        raise UsageError(f"there is no run in {folder} yet: `cadenza sweep` makes one")
    return max(started)[1]
