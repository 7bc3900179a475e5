"""telemetry.jsonl: what is written is read back while it grows, whoever else writes, and wherever a kill cuts it."""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cadenza.readings import Missed, Reading, Row, Sample, Series
from cadenza.store.telemetry import TELEMETRY, Header, TelemetryFile, TelemetryReader, locked, parse_key, read_telemetry
from support.telemetry import readings


def at(ns: int) -> Callable[[], int]:
    return lambda: ns


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header(interval_s=0.25, server_here=True))
    file.sample("amdgpu", readings({"busy{gpu=a}": 0.5, "up{gpu=a}": 1.0}), at(5))
    file.missing("amdgpu", [("fan", "a", "absent", 1)], at(6))
    file.sample("edge", readings({"n": 7.25}), at(7), point=3)
    file.close()
    found = read_telemetry(tmp_path)
    assert found is not None
    assert found.server_here is True
    labels = (("gpu", "a"),)
    assert [one._replace(values=list(one.values)) for one in found.samples] == [
        Sample(5, "amdgpu", None, (Series("busy", labels), Series("up", labels)), [0.5, 1]),
        Sample(7, "edge", 3, (Series("n"),), [7.25]),
    ]
    assert list(found.rows()) == [
        Row(5, "amdgpu", Series("busy", labels), 0.5),
        Row(5, "amdgpu", Series("up", labels), 1),
        Row(7, "edge", Series("n"), 7.25),
    ]
    assert found.missing == [Missed(6, "amdgpu", "fan", "a", "absent")]


def test_keys_are_written_once_until_they_change(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header())
    a, b = Series("a"), Series("b", (("gpu", "0"), ("vendor", "amd")))
    steps: tuple[dict[str | Series, float], ...]
    steps = {a: 1.0}, {a: 2.0}, {a: 3.0, b: 4.5}, {a: 5.0, b: 6.0}, {a: 7.0}
    for number, values in enumerate(steps):
        file.sample("x", readings(values), at(number))
    lines = [json.loads(line) for line in (tmp_path / TELEMETRY).read_bytes().splitlines()]
    assert lines == [
        {"schema": 2, "kind": "cadenza-telemetry", "interval_s": 0.5, "server_here": False, "simulated": False},
        {"at_ns": 0, "source": "x", "series": [{"name": "a"}], "values": [1]},
        {"at_ns": 1, "source": "x", "values": [2]},
        {
            "at_ns": 2,
            "source": "x",
            "series": [{"name": "a"}, {"name": "b", "labels": {"gpu": "0", "vendor": "amd"}}],
            "values": [3, 4.5],
        },
        {"at_ns": 3, "source": "x", "values": [5, 6]},
        {"at_ns": 4, "source": "x", "series": [{"name": "a"}], "values": [7]},
    ]
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [dict(zip(s.series, s.values, strict=True)) for s in found.samples] == list(steps)


def test_what_is_not_finite_is_not_there(tmp_path: Path) -> None:
    values = readings({"a": float("nan"), "b": 1.0, "c": float("inf")})
    TelemetryFile(tmp_path, Header()).sample("x", values, at(1))
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [(s.series, list(s.values)) for s in found.samples] == [((Series("b"),), [1])]


def test_a_reader_follows_the_file_as_it_grows(tmp_path: Path) -> None:
    reader = TelemetryReader(tmp_path)
    assert reader.read().samples == []  # there is none yet
    file = TelemetryFile(tmp_path, Header())
    file.sample("x", readings({"a": 1.0}), at(1))
    assert [list(s.values) for s in reader.read().samples] == [[1]]
    assert reader.read().samples == []
    file.sample("x", readings({"a": 2.0}), at(2))  # its keys were told before the reader's last look
    assert [(s.series, list(s.values)) for s in reader.read().samples] == [((Series("a"),), [2])]
    line = b'{"at_ns":3,"source":"x","values":[3]}\n'
    with (tmp_path / TELEMETRY).open("ab", buffering=0) as other:
        other.write(line[:20])  # whoever writes it is not done
        assert reader.read().samples == []
        other.write(line[20:])
    assert [list(s.values) for s in reader.read().samples] == [[3]]


def test_several_writers_each_with_sources_of_its_own(tmp_path: Path) -> None:
    one, other = TelemetryFile(tmp_path, Header(server_here=True)), TelemetryFile(tmp_path, Header())

    def write(file: TelemetryFile, source: str) -> None:
        for number in range(200):
            file.sample(source, readings({"a": float(number)}), at(number))

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
        file.sample("x", readings({"a": float(number)}), at(number))
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
    file.sample("x", readings({"a": 1.0}), at(1))
    found = read_telemetry(folder)
    assert found is not None
    assert [list(s.values) for s in found.samples] == [[1]]


def test_a_line_that_a_killed_writer_left_costs_no_other(tmp_path: Path) -> None:
    file = TelemetryFile(tmp_path, Header())
    file.sample("x", readings({"a": 1.0}), at(1))
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

    file.sample("x", readings({"a": 1.0}), at(1))
    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError, match="full"):
        file.sample("x", readings({"a": 2.0, "b": 3.0, "c": 4.0}), at(2))
    room[0] = 1000  # somebody made room
    file.sample("x", readings({"a": 5.0, "b": 6.0, "c": 7.0}), at(3))
    found = read_telemetry(tmp_path)
    assert found is not None
    assert [(s.at_ns, [one.name for one in s.series], list(s.values)) for s in found.samples] == [
        (1, ["a"], [1]),
        (3, ["a", "b", "c"], [5, 6, 7]),
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


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text("abc_", min_size=1, max_size=4)


@settings(deadline=None)  # files
@given(st.dictionaries(NAMES, TEXT, max_size=4), TEXT)
def test_a_label_may_have_any_text(
    tmp_path_factory: pytest.TempPathFactory, labels: dict[str, str], product: str
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    hostile = Series("gpu_info", (*((f"l_{name}", text) for name, text in labels.items()), ("product", product)))
    awkward = Series("n", (("model", 'a"b}{,=\\\n\r\u2028é😀'), ("empty", "")))
    file = TelemetryFile(folder, Header())
    file.sample("x", [Reading(*hostile, 1.0), Reading(*awkward, 2.5)], at(1))
    file.close()
    found = read_telemetry(folder)
    assert found is not None
    assert list(found.rows()) == [Row(1, "x", hostile, 1.0), Row(1, "x", awkward, 2.5)]


# What schema 1 could write: a comma in a label was a space, an empty text was left out, and the model came last.
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=","), min_size=1, max_size=12)


@example("running", {"a": "}"}, "a/b,model=}x}")
@given(st.sampled_from(("running", "cadenza_host_cpu_ratio", "up")), st.dictionaries(NAMES, PLAIN, max_size=3), TEXT)
def test_a_key_of_schema_1_is_the_series_that_it_was_written_from(name: str, plain: dict[str, str], model: str) -> None:
    labels = {f"l_{label}": text for label, text in plain.items() if "model=" not in text} | {"target": "0"}
    text = ",".join(f"{label}={value}" for label, value in labels.items())
    assert parse_key(f"{name}{{{text},model={model}}}") == Series(name, (*labels.items(), ("model", model)))
    assert parse_key(f"{name}{{{text}}}") == Series(name, tuple(labels.items()))
    assert parse_key(name) == Series(name)


def test_card_families_of_schema_1_have_their_present_names() -> None:
    card = ("gpu", "0000:43:00.0")
    amd = parse_key("amdgpu_temperature_celsius{gpu=0000:43:00.0,sensor=edge}")
    assert amd == Series("gpu_temperature_celsius", (card, ("vendor", "amd"), ("sensor", "edge")))
    assert parse_key("nvidia_up{gpu=0000:43:00.0}") == Series("gpu_up", (card, ("vendor", "nvidia")))
    assert parse_key("nvidia") == Series("nvidia")


def test_a_file_of_schema_1_is_read_whatever_its_first_line_says(tmp_path: Path) -> None:
    lines = (
        b'{"schema":1,"kind":"cadenza-telemetry","interval_s":0.25,"server_here":true,"simulated":false}',
        b'{"at_ns":1,"source":"amdgpu","series":["amdgpu_busy_ratio{gpu=0}","n{target=0,model=a,b}"],"values":[0.5,2]}',
        b'{"at_ns":2,"source":"amdgpu","values":[0.75,3]}',
        b'{"at_ns":3,"source":"amdgpu","missing":[["amdgpu_fan_ratio","0","absent",1],["amdgpu","","failed",2]]}',
    )
    (tmp_path / TELEMETRY).write_bytes(b"".join(line + b"\n" for line in lines))
    found = read_telemetry(tmp_path)
    assert found is not None
    busy = Series("gpu_busy_ratio", (("gpu", "0"), ("vendor", "amd")))
    n = Series("n", (("target", "0"), ("model", "a,b")))
    assert [tuple(row) for row in found.rows()] == [
        (1, "amdgpu", busy, 0.5),
        (1, "amdgpu", n, 2),
        (2, "amdgpu", busy, 0.75),
        (2, "amdgpu", n, 3),
    ]
    assert [gap.name for gap in found.missing] == ["gpu_fan_ratio", "amdgpu"]
    assert (found.server_here, found.interval_s) == (True, 0.25)
