"""A run by its name: what stands for which folder."""

from pathlib import Path

import msgspec
import pytest

from cadenza.clock import Anchor
from cadenza.errors import UsageError
from cadenza.store.manifest import RunStatus
from cadenza.store.names import find_run
from cadenza.store.rundir import create_run
from support.runs import manifest


def make(path: Path, wall_ns: int) -> Path:
    create_run(path, msgspec.structs.replace(manifest(), anchor=Anchor(0, wall_ns))).close(RunStatus.COMPLETE)
    return path


def test_latest_is_the_last_one_started_whatever_it_is_called(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    make(runs / "2026-12-01", 20)
    last = make(runs / "a-name", 30)
    make(runs / "2026-12-02", 10)
    (runs / "broken").mkdir()
    (runs / "broken" / "manifest.json").write_text("{")
    assert find_run("latest", runs) == last
    assert find_run("2026-12-01", runs) == runs / "2026-12-01"
    assert find_run(runs / "2026-12-01", tmp_path) == runs / "2026-12-01"


def test_a_folder_that_is_there_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("runs/x"), 1)
    here = make(Path("x"), 2)
    assert find_run("x") == here
    assert find_run("./runs/x") == Path("runs/x")


def test_what_is_not_there_is_an_error_with_the_closest_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no run in .* yet"):
        find_run("latest", tmp_path)
    make(tmp_path / "2026-12-01-chat", 1)
    with pytest.raises(UsageError, match=r"did you mean '2026-12-01-chat'\?"):
        find_run("2026-12-01-chta", tmp_path)
    with pytest.raises(UsageError, match=r"`cadenza ls` lists runs$"):
        find_run("elsewhere/2026-12-01-chat", tmp_path)
