"""telemetry.jsonl: what is written is read back while it grows, whoever else writes, and wherever a kill cuts it."""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.record import SCHEMA
from cadenza.store.telemetry import TELEMETRY, Header, Missed, TelemetryFile, TelemetryReader, locked, read_telemetry


def at(ns: int) -> Callable[[], int]:
    return lambda: ns


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header(interval_s=0.25, server_here=True))
    file.sample("amdgpu", {"busy{gpu=a}": 0.5, "up{gpu=a}": 1.0}, at(5))
    file.missing("amdgpu", [("fan", "a", "absent", 1)], at(6))
    file.sample("edge", {"n": 7.25}, at(7), point=3)
    file.close()
    found = read_telemetry(tmp_path)
    assert found is not None
    assert found.server_here is True
    assert [(s.at_ns, s.source, s.point, s.series, s.values.tolist()) for s in found.samples] == [
        (5, "amdgpu", None, ("busy{gpu=a}", "up{gpu=a}"), [0.5, 1]),
        (7, "edge", 3, ("n",), [7.25]),
    ]
    assert found.missing == [Missed(6, "amdgpu", "fan", "a", "absent")]


def test_keys_are_written_once_until_they_change(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header())
    for number, values in enumerate(({"a": 1.0}, {"a": 2.0}, {"a": 3.0, "b": 4.5}, {"a": 5.0, "b": 6.0}, {"a": 7.0})):
        file.sample("x", values, at(number))
    lines = [json.loads(line) for line in (tmp_path / TELEMETRY).read_bytes().splitlines()]
    assert lines == [
        {"schema": SCHEMA, "kind": "cadenza-telemetry", "interval_s": 0.5, "server_here": False, "simulated": False},
        {"at_ns": 0, "source": "x", "series": ["a"], "values": [1]},
        {"at_ns": 1, "source": "x", "values": [2]},
        {"at_ns": 2, "source": "x", "series": ["a", "b"], "values": [3, 4.5]},
        {"at_ns": 3, "source": "x", "values": [5, 6]},
        {"at_ns": 4, "source": "x", "series": ["a"], "values": [7]},
    ]
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [dict(zip(s.series, s.values.tolist(), strict=True)) for s in found.samples] == [
        {"a": 1},
        {"a": 2},
        {"a": 3, "b": 4.5},
        {"a": 5, "b": 6},
        {"a": 7},
    ]


def test_what_is_not_finite_is_not_there(tmp_path: Path) -> None:
    TelemetryFile(tmp_path, Header()).sample("x", {"a": float("nan"), "b": 1.0, "c": float("inf")}, at(1))
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [(s.series, s.values.tolist()) for s in found.samples] == [(("b",), [1])]


def test_a_reader_follows_the_file_as_it_grows(tmp_path: Path) -> None:
    reader = TelemetryReader(tmp_path)
    assert reader.read().samples == []  # there is none yet
    file = TelemetryFile(tmp_path, Header())
    file.sample("x", {"a": 1.0}, at(1))
    assert [s.values.tolist() for s in reader.read().samples] == [[1]]
    assert reader.read().samples == []
    file.sample("x", {"a": 2.0}, at(2))  # its keys were told before the reader's last look
    assert [(s.series, s.values.tolist()) for s in reader.read().samples] == [(("a",), [2])]
    line = b'{"at_ns":3,"source":"x","values":[3]}\n'
    with (tmp_path / TELEMETRY).open("ab", buffering=0) as other:
        other.write(line[:20])  # whoever writes it is not done
        assert reader.read().samples == []
        other.write(line[20:])
    assert [s.values.tolist() for s in reader.read().samples] == [[3]]


def test_several_writers_each_with_sources_of_its_own(tmp_path: Path) -> None:
    one, other = TelemetryFile(tmp_path, Header(server_here=True)), TelemetryFile(tmp_path, Header())

    def write(file: TelemetryFile, source: str) -> None:
        for number in range(200):
            file.sample(source, {"a": float(number)}, at(number))

    threads = [threading.Thread(target=write, args=pair) for pair in ((one, "x"), (one, "y"), (other, "z"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_telemetry(tmp_path)
    assert found is not None
    for source in "xyz":
        assert [s.values[0] for s in found.samples if s.source == source] == list(range(200))
    assert found.server_here is True  # the first to come wrote the head


@settings(deadline=None)  # files
@given(cut=st.integers(min_value=0, max_value=300))
def test_a_file_cut_anywhere_gives_every_whole_line(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("cut")
    file = TelemetryFile(folder, Header())
    for number in range(4):
        file.sample("x", {"a": float(number)}, at(number))
    file.close()
    path = folder / TELEMETRY
    data = path.read_bytes()
    kept = data[: max(0, len(data) - cut)]
    path.write_bytes(kept)
    found = read_telemetry(folder)
    assert found is not None
    assert [s.values[0] for s in found.samples] == list(range(max(0, kept.count(b"\n") - 1)))


@settings(deadline=None)  # files
@given(junk=st.binary(max_size=200))
def test_lines_that_are_none_are_passed_over(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    file = TelemetryFile(folder, Header())
    with (folder / TELEMETRY).open("ab") as raw:
        raw.write(junk.replace(b"{", b"(") + b"\n")
    file.sample("x", {"a": 1.0}, at(1))
    found = read_telemetry(folder)
    assert found is not None
    assert [s.values.tolist() for s in found.samples] == [[1]]


def test_a_line_that_a_killed_writer_left_costs_no_other(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header())
    file.sample("x", {"a": 1.0}, at(1))
    file.mend()  # nothing to do
    with (tmp_path / TELEMETRY).open("ab") as killed:
        killed.write(b'{"at_ns":2,"source":"y","seri')
    file.mend()
    file.missing("x", [("a", "", "failed", 1)], at(3))
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [(s.at_ns, s.source) for s in found.samples] == [(1, "x")]
    assert [(gap.at_ns, gap.name, gap.reason) for gap in found.missing] == [(3, "a", "failed")]
    assert (tmp_path / TELEMETRY).read_bytes().count(b"\n") == 4


def test_a_line_that_the_disk_took_half_of_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write, room = TelemetryFile(tmp_path, Header()), os.write, [60]

    def fill(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "the disk is full")
        taken = write(fd, data[: room[0]])
        room[0] -= taken
        return taken

    file.sample("x", {"a": 1.0}, at(1))
    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError, match="full"):
        file.sample("x", {"a": 2.0, "b": 3.0, "c": 4.0}, at(2))
    room[0] = 1000  # somebody made room
    file.sample("x", {"a": 5.0, "b": 6.0, "c": 7.0}, at(3))
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [(s.at_ns, dict(zip(s.series, s.values.tolist(), strict=True))) for s in found.samples] == [
        (1, {"a": 1}),
        (3, {"a": 5, "b": 6, "c": 7}),
    ]


def test_a_run_without_telemetry_has_none(tmp_path: Path) -> None:
    assert read_telemetry(tmp_path) is None


def test_the_lock_is_let_go(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header())
    with locked(file.fd):
        pass
    again = os.open(tmp_path / TELEMETRY, os.O_RDONLY)
    try:
        with locked(again):  # would take a second if somebody held it
            held = True
    finally:
        os.close(again)
    assert held
