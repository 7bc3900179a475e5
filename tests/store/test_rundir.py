"""A run directory: what is written is read back, whatever interrupts the writing."""

import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.errors import StoreError, UsageError
from cadenza.record import PointStatus
from cadenza.store.manifest import RunStatus
from cadenza.store.rundir import create_run, list_runs, read_run
from support.runs import manifest, record


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = [record(k) for k in range(5)]
    writer = create_run(tmp_path / "run", manifest())
    for one in written:
        writer.append(one)
    writer.close(RunStatus.COMPLETE)
    run = read_run(tmp_path / "run")
    assert list(run.records()) == written
    assert run.manifest == msgspec.structs.replace(manifest(), status=RunStatus.COMPLETE)
    assert run.broken_lines == 0


def test_a_record_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    writer = create_run(tmp_path, manifest())
    writer.append(record(0))
    assert list(read_run(tmp_path).records()) == [record(0)]
    writer.close(RunStatus.COMPLETE)


def test_a_run_that_is_being_written_is_running_and_one_that_nobody_writes_is_interrupted(tmp_path: Path) -> None:
    first = manifest()
    first.points[0].status = PointStatus.RUNNING
    writer = create_run(tmp_path, first)
    assert read_run(tmp_path).manifest.status is RunStatus.RUNNING
    os.close(writer._records.fd)  # what the kernel does to a killed process
    found = read_run(tmp_path).manifest
    assert found.status is RunStatus.INTERRUPTED
    assert found.points[0].status is PointStatus.INTERRUPTED


@given(cut=st.integers(min_value=0, max_value=400))
def test_a_file_cut_anywhere_gives_every_whole_record(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    writer = create_run(folder, manifest())
    for k in range(3):
        writer.append(record(k))
    writer.close(RunStatus.COMPLETE)
    path = folder / "records.jsonl"
    data = path.read_bytes()
    kept = data[: max(data.index(b"\n") + 1, len(data) - cut)]
    path.write_bytes(kept)
    run = read_run(folder)
    assert list(run.records()) == [record(k) for k in range(kept.count(b"\n") - 1 + (kept.endswith(b"}")))]
    assert run.broken_lines == (not kept.endswith((b"\n", b"}")))


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = create_run(tmp_path, manifest())
    writer.append(record(0))

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreError, match=r"No space left on device.*make room"):
            writer.append(record(1))
    writer.close(RunStatus.FAILED)
    assert list(read_run(tmp_path).records()) == [record(0)]


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    writer = create_run(tmp_path, manifest())
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, bytes(data)[:7]))
    writer.append(record(0))
    writer.close(RunStatus.COMPLETE)
    assert list(read_run(tmp_path).records()) == [record(0)]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(UsageError, match="not empty, and nothing is overwritten"):
        create_run(tmp_path, manifest())
    with pytest.raises(UsageError, match="is a file"):
        create_run(tmp_path / "precious", manifest())
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(StoreError, match="newer cadenza"):
        read_run(tmp_path)


def test_runs_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        create_run(tmp_path / name, manifest()).close(RunStatus.COMPLETE)
    (tmp_path / "other").mkdir()
    assert [path.name for path in list_runs(tmp_path)] == ["a", "b"]
