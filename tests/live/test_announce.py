"""Which runs go on below a folder: told while somebody writes them, and of nobody else's files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from cadenza.clock import NS_PER_S, Anchor, ManualClock
from cadenza.live import announce
from cadenza.live.announce import RunCollector
from cadenza.readings import Reading
from cadenza.record import LoadLabel, Point, PointStatus
from cadenza.store.manifest import Manifest, RunStatus
from cadenza.store.rundir import MANIFEST, RECORDS, RunWriter, create_run, read_run
from cadenza.telemetry.exposition import render, tabulate
from cadenza.telemetry.sampler import Sampler
from support.runs import manifest

# 2026-11-30 00:00:00.5 UTC
BEGAN = Anchor(monotonic_ns=7, wall_ns=1_795_996_800_500_000_000)
NONE_GOES_ON = [Reading("cadenza_runs_running", (), 0.0)]


def three_points() -> Manifest:
    """A closed, an open and a capped one, none begun."""
    made = manifest()
    made.anchor = BEGAN
    made.points = [
        Point(index=0, model="a/b", load=LoadLabel.CLOSED, concurrency=8),
        Point(index=1, model="a/b", load=LoadLabel.OPEN, rate_per_s=2.5),
        Point(index=2, model="c", load=LoadLabel.CAPPED, concurrency=16, rate_per_s=2.0),
    ]
    return made


@pytest.fixture
def writers() -> Iterator[list[RunWriter]]:
    """Closed at the end, as far as the test has not."""
    made: list[RunWriter] = []
    yield made
    for writer in made:
        if writer.manifest.status is RunStatus.RUNNING:
            writer.close(RunStatus.COMPLETE)


@pytest.fixture
def writer(tmp_path: Path, writers: list[RunWriter]) -> RunWriter:
    writers.append(create_run(tmp_path / "2026-11-30-a", three_points()))
    return writers[0]


def begin(writer: RunWriter, index: int) -> None:
    writer.manifest.points[index].status = PointStatus.RUNNING
    writer.save_manifest()


def end(writer: RunWriter, index: int) -> None:
    writer.manifest.points[index].status = PointStatus.COMPLETE
    writer.save_manifest()


def points(collector: RunCollector) -> list[dict[str, str]]:
    return [dict(labels) for name, labels, _ in collector.collect().readings if name == "cadenza_run_info"]


def test_a_point_is_told_with_its_run_while_it_is_measured(tmp_path: Path, writer: RunWriter) -> None:
    collector = RunCollector(tmp_path)
    run = ("run", "2026-11-30-a")
    goes_on = [
        Reading("cadenza_runs_running", (), 1.0),
        Reading("cadenza_run_start_time_seconds", (run,), 1_795_996_800.5),
    ]
    assert collector.collect() == (goes_on, [])
    begin(writer, 0)
    labels = (run, ("point", "1"), ("model", "a/b"), ("concurrency", "8"), ("load", "C = 8"))
    assert collector.collect() == ([*goes_on, Reading("cadenza_run_info", labels, 1.0)], [])
    end(writer, 0)
    assert collector.collect() == (goes_on, [])
    writer.close(RunStatus.COMPLETE)
    assert collector.collect() == (NONE_GOES_ON, [])


@pytest.mark.parametrize(
    ("index", "concurrency", "load"), [(0, "8", "C = 8"), (1, "", "2.5/s"), (2, "16", "C = 16 @ 2/s")]
)
def test_the_load_is_what_the_manifest_says(
    tmp_path: Path, writer: RunWriter, index: int, concurrency: str, load: str
) -> None:
    begin(writer, index)
    (told,) = points(RunCollector(tmp_path))
    assert (told["point"], told["concurrency"], told["load"]) == (str(index + 1), concurrency, load)


def test_a_simulated_engine_is_told_to_be_one(tmp_path: Path, writer: RunWriter) -> None:
    writer.manifest.simulated = True
    begin(writer, 0)
    assert [told["load"] for told in points(RunCollector(tmp_path))] == ["C = 8, simulated"]


def test_a_run_that_was_killed_does_not_go_on(tmp_path: Path, writer: RunWriter) -> None:
    begin(writer, 0)
    collector = RunCollector(tmp_path)
    assert len(points(collector)) == 1
    # What the kernel does with the lock of a process that has ended; the manifest still says running.
    os.close(writer._records.fd)
    assert '"running"' in (writer.path / MANIFEST).read_text(encoding="utf-8")
    assert collector.collect() == (NONE_GOES_ON, [])
    writer._records.fd = os.open(writer.path / RECORDS, os.O_WRONLY)


def test_two_runs_at_once_are_both_told(tmp_path: Path, writer: RunWriter, writers: list[RunWriter]) -> None:
    collector = RunCollector(tmp_path)
    begin(writer, 0)
    assert [told["run"] for told in points(collector)] == ["2026-11-30-a"]
    writers.append(create_run(tmp_path / "2026-11-30-b", three_points()))
    begin(writers[1], 2)
    os.utime(tmp_path, ns=(0, 1))  # a clock that is coarse must not hide it
    assert sorted((told["run"], told["model"]) for told in points(collector)) == [
        ("2026-11-30-a", "a/b"),
        ("2026-11-30-b", "c"),
    ]


def test_a_folder_that_shows_no_change_is_listed_again_after_a_while(tmp_path: Path, writers: list[RunWriter]) -> None:
    (tmp_path / "made-before").mkdir()
    clock = ManualClock()
    collector = RunCollector(tmp_path, clock)
    for number in range(announce._NEWEST):
        (tmp_path / f"newer-{number}").mkdir()
        os.utime(tmp_path / f"newer-{number}", ns=(0, 2**62))
    os.utime(tmp_path, ns=(0, 1))
    assert collector.collect().readings == NONE_GOES_ON
    writers.append(create_run(tmp_path / "made-before", three_points()))
    os.utime(tmp_path / "made-before", ns=(0, 2**62 + 1_000_000))
    assert collector.collect().readings == NONE_GOES_ON
    clock.advance_to(11 * NS_PER_S)
    assert collector.collect().readings[0].value == 1


def test_a_run_that_goes_on_stays_although_many_are_newer(tmp_path: Path, writer: RunWriter) -> None:
    begin(writer, 0)
    collector = RunCollector(tmp_path)
    assert len(points(collector)) == 1
    for number in range(2 * announce._NEWEST):
        (tmp_path / f"newer-{number}").mkdir()
        os.utime(tmp_path / f"newer-{number}", ns=(0, 2**62))
    assert len(points(collector)) == 1


def test_what_has_not_changed_and_does_not_go_on_is_not_read_again(
    tmp_path: Path, writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(path: Path) -> object:
        read.append(path.name)
        return read_run(path)

    monkeypatch.setattr(announce, "read_run", count)
    create_run(tmp_path / "over", three_points()).close(RunStatus.COMPLETE)
    collector = RunCollector(tmp_path)
    for _ in range(5):
        collector.collect()
    assert read.count("over") == 1
    assert read.count("2026-11-30-a") == 5


def test_a_name_cannot_write_lines_of_its_own(tmp_path: Path, writers: list[RunWriter]) -> None:
    name = 'x"} 1\ngpu_up{gpu="\\' + "y" * 150
    made = three_points()
    made.points[0].model = 'm"\n\\' + "z" * 10_000
    writers.append(create_run(tmp_path / name, made))
    begin(writers[0], 0)
    sampler = Sampler([RunCollector(tmp_path)], clock=ManualClock())
    sampler.poll()
    families = {family.name: family for family in read_text(render(tabulate(sampler.states(), "0", 0)).decode())}
    assert "gpu_up" not in families
    (sample,) = families["cadenza_run_info"].samples
    assert sample.labels["run"] == ('x"} 1 gpu_up{gpu="\\' + "y" * 150)[:119] + "…"
    assert sample.labels["model"] == ('m" \\' + "z" * 10_000)[:119] + "…"


def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(tmp_path: Path, writers: list[RunWriter]) -> None:
    writers.append(create_run(tmp_path / os.fsdecode(b"a\xffb"), three_points()))
    begin(writers[0], 0)
    assert [told["run"] for told in points(RunCollector(tmp_path))] == ["a b"]


BROKEN = {
    "nothing": b"",
    "no JSON": b"{",
    "another's": b'{"schema": 1}',
    "a newer cadenza's": b'{"schema": 999}',
    "nested": b'{"schema": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no text": b"\xff" * 100,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_manifest_that_is_none_is_counted_and_hides_no_other(tmp_path: Path, writer: RunWriter, data: bytes) -> None:
    begin(writer, 0)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / MANIFEST).write_bytes(data)
    (tmp_path / "broken" / RECORDS).write_bytes(b"")
    collector = RunCollector(tmp_path)
    for _ in range(2):
        collected = collector.collect()
        assert [(name, reason) for name, _, reason in collected.missing] == [("cadenza_run_info", "malformed")]
        assert len(collected.readings) == 3


def test_numbers_beyond_all_bounds_are_no_run(tmp_path: Path, writers: list[RunWriter]) -> None:
    made = three_points()
    made.anchor = Anchor(monotonic_ns=0, wall_ns=0)
    writers.append(create_run(tmp_path / "r", made))
    file = tmp_path / "r" / MANIFEST
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"wall_ns": 0', '"wall_ns": 1' + 400 * "0"), encoding="utf-8")
    assert [reason for _, _, reason in RunCollector(tmp_path).collect().missing] == ["malformed"]


def test_a_manifest_beyond_all_bounds_is_not_read(tmp_path: Path, writer: RunWriter) -> None:
    with (tmp_path / "2026-11-30-a" / MANIFEST).open("ab") as file:
        file.write(b" " * (4 << 20))
    assert [reason for _, _, reason in RunCollector(tmp_path).collect().missing] == ["malformed"]


@pytest.mark.parametrize("name", [MANIFEST, RECORDS])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path: Path, writer: RunWriter, name: str) -> None:
    begin(writer, 0)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / MANIFEST).write_bytes((writer.path / MANIFEST).read_bytes())
    (trap / name).unlink(missing_ok=True)
    os.mkfifo(trap / name)
    assert [told["run"] for told in points(RunCollector(tmp_path))] == ["2026-11-30-a"]


def test_other_things_in_the_folder_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert RunCollector(tmp_path).collect() == (NONE_GOES_ON, [])


def test_a_folder_that_is_gone_is_missing_and_not_without_runs(tmp_path: Path) -> None:
    collected = RunCollector(tmp_path / "gone").collect()
    assert collected == ([], [("cadenza_runs_running", "", "absent")])
