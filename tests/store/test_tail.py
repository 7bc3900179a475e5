"""A run read as it grows gives every line once, wherever a look cuts it, and keeps nothing."""

from pathlib import Path

import pytest

from cadenza.readings import Series
from cadenza.store import tail
from cadenza.store.rundir import create_run
from cadenza.store.tail import RunTail, Tail
from cadenza.store.telemetry import Header, TelemetryFile
from support.runs import manifest, record
from support.telemetry import readings

TEXT = b"one\n\nthree\nfour"


def test_lines_come_whole_and_once_at_every_two_way_cut(tmp_path: Path) -> None:
    for cut in range(len(TEXT) + 1):
        path = tmp_path / str(cut)
        path.write_bytes(TEXT[:cut])
        found = Tail(path)
        lines, more = found.read()
        assert not more
        with path.open("ab") as file:
            file.write(TEXT[cut:])
        assert lines + found.read()[0] == [b"one", b"", b"three"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_look_reads_no_more_than_its_piece_and_says_so(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    found = Tail(path)
    lines: list[bytes] = []
    looks = 0
    more = True
    while more:
        fresh, more = found.read(limit)
        lines += fresh
        looks += 1
    assert lines == [b"one", b"", b"three"]
    assert looks == len(TEXT) // limit + 1


def test_a_line_without_end_costs_no_memory_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_LINE_BYTES", 8)
    path = tmp_path / "file"
    path.write_bytes(b"a\n" + b"x" * 40 + b"\nb\n")
    found = Tail(path)
    lines: list[bytes] = []
    more = True
    while more:
        fresh, more = found.read(4)
        lines += fresh
        assert len(found._rest) <= 8
    assert lines == [b"a", b"b"]


def test_no_file_is_no_line(tmp_path: Path) -> None:
    assert Tail(tmp_path / "none").read() == ([], False)


def test_records_and_samples_of_a_run_come_as_they_are_written(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", manifest())
    telemetry = TelemetryFile(run.path, Header(server_here=True))
    found = RunTail(run.path)
    first = found.read()
    assert (first.records, first.samples, first.behind) == ([], [], False)
    assert found.telemetry.server_here
    run.append(record(0))
    with run.open_share(1) as other:
        other.append(record(1))
    telemetry.sample("host", readings({"a": 1.0, "b": 2.0}), lambda: 5)
    second = found.read()
    assert second.records == [record(0), record(1)]
    (sample,) = second.samples
    assert (sample.at_ns, sample.source, sample.series, list(sample.values)) == (
        5,
        "host",
        (Series("a"), Series("b")),
        [1, 2],
    )
    telemetry.sample("host", readings({"a": 3.0, "b": 4.0}), lambda: 6)  # its keys are told once only
    telemetry.missing("amdgpu", [("page", "", "absent", 1)], lambda: 7)
    with (run.path / "records.jsonl").open("ab") as file, (run.path / "telemetry.jsonl").open("ab") as lines:
        file.write(b'{"point":\n\xff\n')
        lines.write(b'{"at_ns":8,"source":"host","values":[1]}\nnonsense\n')
    third = found.read()
    assert third.records == []
    assert [list(sample.values) for sample in third.samples] == [[3, 4]]
    telemetry.close()
