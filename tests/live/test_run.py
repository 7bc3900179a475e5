"""A run that goes on, followed by its files alone."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cadenza.clock import ManualClock
from cadenza.errors import UsageError
from cadenza.live.run import RunView, find_running
from cadenza.record import LoadLabel, Outcome, Phase, Point, PointStatus
from cadenza.store.manifest import RunStatus
from cadenza.store.rundir import RunWriter, create_run
from cadenza.store.telemetry import Header, TelemetryFile
from support.runs import MS, manifest, record
from support.telemetry import S, engine, readings


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunWriter]:
    found = manifest()
    found.points[0].start_ns = 0
    found.points[0].status = PointStatus.RUNNING
    writer = create_run(tmp_path / "run", found)
    yield writer
    if writer.manifest.status is RunStatus.RUNNING:
        writer.close(RunStatus.INTERRUPTED)


def follow(run: RunWriter, window_s: float = 10, clock: ManualClock | None = None) -> RunView:
    return RunView(run.path, window_s, lambda: 1000.0, clock or ManualClock())


def test_answers_are_counted_as_they_come(run: RunWriter) -> None:
    view = follow(run)
    assert view.snapshot().streams[0].ttft_ms is None
    for index in range(5):
        run.append(record(index))
    run.append(msgspec.structs.replace(record(5), outcome=Outcome.HTTP_ERROR, output_tokens=None, event_ns=[]))
    run.append(msgspec.structs.replace(record(6), phase=Phase.WARMUP))
    found = view.snapshot()
    assert found.run is not None
    assert (found.run.point, found.run.points, found.run.ended, found.run.failed) == (1, 1, 6, 1)
    (stream,) = found.streams
    assert stream.ttft_ms is not None
    assert (stream.ttft_ms.n, stream.ttft_ms.mean, stream.ttft_ms.p99) == (5, 20, 20)
    assert stream.tpot_ms is not None
    assert stream.tpot_ms.p50 == 10
    assert stream.user_ttft_ms is None  # a closed loop
    # Seven answers, six of them with three tokens, all in 280 ms; each had five tokens of prompt.
    assert found.window_s == pytest.approx(0.28)
    assert stream.rates_from == "answers"
    assert stream.generation_tok_per_s == pytest.approx(18 / 0.28)
    assert stream.prompt_tok_per_s == pytest.approx(35 / 0.28)
    assert stream.requests_per_s == pytest.approx(7 / 0.28)


def test_only_the_windows_answers_count(run: RunWriter) -> None:
    for index in range(100):
        run.append(record(index))
    view = follow(run, window_s=0.4)
    (stream,) = view.snapshot().streams
    assert stream.ttft_ms is not None
    assert stream.ttft_ms.n == 10  # one each 40 ms
    assert len(view._answers) == 10


def test_a_new_point_begins_with_nothing(run: RunWriter) -> None:
    view = follow(run)
    run.append(record(0))
    assert view.snapshot().streams[0].ttft_ms is not None
    run.manifest.points.append(
        Point(index=1, model="n", load=LoadLabel.OPEN, rate_per_s=2, planned=9, start_ns=41 * MS)
    )
    run.save_manifest()
    found = view.snapshot()
    assert found.run is not None
    assert (found.run.point, found.run.points, found.run.model, found.run.ended) == (2, 2, "n", 0)
    assert found.streams[0].ttft_ms is None
    late = msgspec.structs.replace(record(2), point=1, model="n", intended_ns=70 * MS)
    run.append(late)
    (stream,) = view.snapshot().streams
    # Sent at 80, first token at 100 ms; due at 70.
    assert stream.ttft_ms is not None
    assert stream.user_ttft_ms is not None
    assert (stream.ttft_ms.mean, stream.user_ttft_ms.mean) == (20, 30)


def test_the_engines_counters_are_believed_before_the_answers(run: RunWriter) -> None:
    run.append(record(0))
    file = TelemetryFile(run.path, Header(server_here=True))
    for second, tokens in ((1, 100), (3, 300)):
        values = engine({"running": 4, "generation_tokens_total": tokens})
        file.sample("engine", readings(values), lambda at=second: at * S)  # type: ignore[misc]
    file.sample("host", readings({"cadenza_host_cpu_ratio{mode=idle}": 0.75}), lambda: 3 * S)
    file.sample("amdgpu", readings({"gpu_busy_ratio{gpu=0000:43:00.0,vendor=amd}": 0.5}), lambda: 3 * S)
    file.close()
    found = follow(run).snapshot()
    (stream,) = found.streams
    assert (stream.running, stream.generation_tok_per_s, stream.rates_from) == (4, 100, "engine")
    assert found.host is not None
    assert found.host.cpu_busy == 0.25
    assert [card.busy for card in found.cards] == [0.5]
    assert found.local
    assert found.notes == []


def test_what_has_stopped_moving_is_left_out(run: RunWriter) -> None:
    file = TelemetryFile(run.path, Header())
    file.sample("amdgpu", readings({"gpu_busy_ratio{gpu=0000:43:00.0,vendor=amd}": 0.5}), lambda: 1 * S)
    file.sample("host", readings({"cadenza_host_cores": 2}), lambda: 12 * S)
    file.close()
    found = follow(run).snapshot()
    assert found.cards == []
    assert found.notes == ["No GPU is seen by the run."]


def test_a_run_is_over_when_nobody_writes_it(run: RunWriter) -> None:
    view = follow(run)
    assert view.snapshot().status == "running"
    assert not view.over
    run.append(record(0))
    run.close(RunStatus.COMPLETE)
    last = view.snapshot()
    assert (last.status, view.over) == ("complete", True)
    assert last.run is not None
    assert last.run.ended == 1


def test_silence_is_said(run: RunWriter) -> None:
    clock = ManualClock()
    view = follow(run, clock=clock)
    clock.advance_to(7 * S)
    assert "Nothing new for 7 s." in view.snapshot().notes


def test_a_long_run_is_caught_up_with_piece_by_piece(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(50):
        run.append(record(index))
    monkeypatch.setattr("cadenza.live.run._PIECES", 1)
    monkeypatch.setattr("cadenza.store.tail.Tail.read.__defaults__", (1000,))
    view = follow(run)
    first = view.snapshot()
    assert first.run is not None
    assert 0 < first.run.ended < 50
    assert "Reading what has been written until now." in first.notes
    view.wait()
    last = view.snapshot()
    assert last.run is not None
    assert last.run.ended == 50


def test_the_newest_run_that_goes_on_is_found(tmp_path: Path) -> None:
    assert find_running(tmp_path / "none") is None
    old, new = (create_run(tmp_path / name, manifest()) for name in ("a", "b"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "manifest.json").write_text("{}")
    assert find_running(tmp_path) == new.path
    new.close(RunStatus.COMPLETE)
    assert find_running(tmp_path) == old.path
    old.close(RunStatus.COMPLETE)
    assert find_running(tmp_path) is None


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run"):
        RunView(tmp_path, 10)
