"""`cadenza exporter`'s arguments and its one page; only the marked tests serve, as processes of their own."""

import argparse
import errno
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from cadenza.cli import exporter
from cadenza.engine.board.boards import Board
from cadenza.errors import CadenzaError, UsageError
from cadenza.readings import Collected, Collector, Reading
from cadenza.record import PointStatus
from cadenza.store.manifest import RunStatus
from cadenza.store.rundir import create_run
from cadenza.telemetry.kernel.log import KernelLog
from support.runs import manifest

ADDRESS = "0000:43:00.0"


class Twice(Collector):
    """Busy in its second round only, as a share that needs two."""

    name = "fake"

    def __init__(self) -> None:
        self.calls = 0

    def collect(self) -> Collected:
        self.calls += 1
        return Collected(
            [Reading("gpu_busy_ratio", (("gpu", ADDRESS), ("vendor", "amd")), 0.5)] if self.calls > 1 else [], []
        )


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    exporter.configure(parser)
    return parser.parse_args(argv)


def run(*argv: str) -> int:
    return exporter.run(parse(*argv))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A simulated board: a MI50, which counts its PCIe traffic, and a RX 6900 XT."""
    Board.for_devices(("mi50-32gb", "rx6900xt"), seed=1).write(tmp_path)
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "make_collectors", lambda args: [Twice()])


def test_defaults_are_loopback_and_half_a_second() -> None:
    args = parse()
    assert (args.listen, args.root, args.interval) == ("127.0.0.1:9101", Path("/"), 0.5)
    assert [args.once, args.processes, args.article_names] == [False] * 3


@pytest.mark.usefixtures("fake")
def test_once_is_one_page_after_two_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--once", "--interval", "0.05") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f'\ngpu_busy_ratio{{gpu="{ADDRESS}",vendor="amd"}} 0.5\n' in out
    assert "rocm_" not in out


@pytest.mark.usefixtures("fake")
def test_the_articles_names_are_added_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--once", "--interval", "0.05", "--article-names") == 0
    assert f'\nrocm_gpu_busy_percent{{gpu="{ADDRESS}"}} 50.0\n' in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["--listen", "9101"],
        ["--listen", "localhost:http"],
        ["--interval", "0"],
        ["--interval", "-1"],
        ["--interval", "nan"],
        ["--interval", "1e9"],
        ["--root", "/does/not/exist"],
        ["--root", "/dev/null"],
        ["--web-config", "/does/not/exist"],
        ["--smi-json", "/does/not/exist"],
        ["--smi-json", "/dev/null"],
        ["--smi-json", "/"],
        ["--kernel-log", "/does/not/exist"],
        ["--kernel-log", "/dev/null"],
        ["--runs", "/does/not/exist"],
        ["--runs", "/dev/null"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        run("--once", *argv)


@pytest.mark.usefixtures("fake")
def test_one_page_does_not_wait_for_a_long_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--once", "--interval", "3600") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f'\ngpu_busy_ratio{{gpu="{ADDRESS}",vendor="amd"}} 0.5\n' in out


def test_who_has_nothing_for_the_page_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "proc").mkdir()
    shutil.copy("/proc/stat", tmp_path / "proc/stat")
    assert run("--once", "--root", str(tmp_path), "--kernel-log", "none", "--interval", "0.05") == 0
    out, err = capsys.readouterr()
    assert err == "amdgpu: no devices found\npcie: no devices found\n"
    assert "\ncadenza_host_cores " in out


class Held:
    """A stdout whose reader is gone, or whose disk is full; and whether the collectors had ended by then."""

    def __init__(self, number: int, closed: list[str]) -> None:
        self._number = number
        self.closed_before: list[str] | None = None
        self._closed = closed

    def write(self, text: str) -> int:
        self.closed_before = list(self._closed)
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [
        (errno.ENOSPC, CadenzaError, "the page cannot be written: No space left"),
        (errno.EPIPE, BrokenPipeError, "Broken pipe"),
    ],
)
def test_a_page_that_cannot_be_written_leaves_no_child_behind(
    number: int, error: type[Exception], said: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(KernelLog, "close", lambda log: closed.append(log.name))
    stdout = Held(number, closed)
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(error, match=said):
        run("--once", "--root", str(root), "--interval", "0.05")
    assert stdout.closed_before == ["kernel"]


def test_what_may_not_be_looked_at_is_a_usage_error_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.stat

    def refuse(path: Path, **named: Any) -> os.stat_result:
        if path.is_relative_to("/secret"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, **named)

    monkeypatch.setattr(Path, "stat", refuse)
    for flag in ("--root", "--runs", "--smi-json", "--kernel-log"):
        with pytest.raises(UsageError, match=f"{flag} /secret/x: permission denied"):
            run("--once", *(() if flag == "--root" else ("--root", str(root))), flag, "/secret/x")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="cannot be entered"):
        run("--once", "--root", str(root))


def names(*argv: str) -> list[str]:
    return [collector.name for collector in exporter.make_collectors(parse(*argv))]


def test_a_board_has_cards_and_the_traffic_of_those_that_count_it(root: Path) -> None:
    found = names("--root", str(root))
    assert found[:2] == ["amdgpu", "pcie"]
    for device in root.glob("sys/class/drm/card*/device/pcie_bw"):
        device.unlink()
    assert "pcie" not in names("--root", str(root))


def test_a_tools_text_comes_after_the_files(root: Path, tmp_path: Path) -> None:
    text = tmp_path / "smi.json"
    text.write_text("{}")
    found = names("--root", str(root), "--smi-json", str(text))
    assert found.index("smi") > found.index("amdgpu")


def test_runs_are_told_on_request_while_they_go_on(
    root: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    assert "runs" not in names("--root", str(root))
    writer = create_run(folder / "r1", manifest())
    writer.manifest.points[0].status = PointStatus.RUNNING
    writer.save_manifest()
    page = ("--once", "--root", str(root), "--interval", "0.05", "--runs", str(folder))
    assert run(*page) == 0
    out = capsys.readouterr().out
    assert '\ncadenza_run_info{concurrency="1",load="C = 1",model="m",point="1",run="r1"} 1.0\n' in out
    assert '\ncadenza_collector_success{collector="runs"} 1.0\n' in out
    writer.close(RunStatus.COMPLETE)
    assert run(*page) == 0
    out = capsys.readouterr().out
    assert "\ncadenza_runs_running 0.0\n" in out
    assert '\ncadenza_collector_success{collector="runs"} 1.0\n' in out
    assert "r1" not in out


def test_one_page_of_a_board_has_both_cards(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--once", "--root", str(root), "--interval", "0.05") == 0
    families = {family.name: family for family in read_text(capsys.readouterr().out)}
    assert [sample.value for sample in families["gpu_up"].samples] == [1, 1]
    cards = {sample.labels["gfx"]: sample.labels["gpu"] for sample in families["gpu_info"].samples}
    assert cards.keys() == {"gfx906", "gfx1030"}
    sizes = {s.labels["gpu"]: s.value for s in families["gpu_memory_size_bytes"].samples if s.labels["pool"] == "vram"}
    # 32 and 16 GiB, less what the board's cards keep for themselves.
    assert sizes[cards["gfx906"]] == pytest.approx(32 * 2**30, rel=0.01)
    assert sizes[cards["gfx1030"]] == pytest.approx(16 * 2**30, rel=0.01)


def test_a_file_that_cannot_be_read_is_counted_and_takes_nothing_else_along(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = root / "sys/class/drm/card1/device/mem_info_vram_used"
    file.unlink()
    file.mkdir()
    assert run("--once", "--root", str(root), "--interval", "0.05") == 0
    families = {family.name: family for family in read_text(capsys.readouterr().out)}
    told = [(s.labels["gpu"], s.labels["pool"]) for s in families["gpu_memory_used_bytes"].samples]
    first, second = (sample.labels["gpu"] for sample in families["gpu_up"].samples)
    assert (first, "vram") not in told
    assert {(first, "gtt"), (second, "vram"), (second, "gtt")} <= set(told)
    failed = {"collector": "amdgpu", "reason": "failed"}
    (count,) = (s.value for s in families["cadenza_collector_missing"].samples if s.labels == failed)
    assert count >= 2


@contextmanager
def exporting(*argv: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The real verb as a process on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "cadenza", "exporter", "--listen", f"127.0.0.1:{port}", "--interval", "0.1", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}/metrics" in process.stdout.readline()
        yield process, port
    finally:
        process.kill()
        process.communicate()


def scrape(port: int) -> dict[str, Any]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("GET", "/metrics")
    text = client.getresponse().read().decode()
    client.close()
    return {family.name: family for family in read_text(text)}


def gpus(page: dict[str, Any], name: str) -> dict[str, float]:
    return {s.labels["gpu"]: s.value for s in page[name].samples} if name in page else {}


@pytest.mark.slow
def test_a_card_that_vanishes_is_down_and_tells_nothing_more(root: Path) -> None:
    with exporting("--root", str(root)) as (_, port):
        deadline = time.monotonic() + 20
        while len(up := gpus(scrape(port), "gpu_up")) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert set(up.values()) == {1}
        card = root / "sys/class/drm/card1"
        (lost,) = (gpu for gpu in up if gpu in (card / "device/uevent").read_text())
        shutil.rmtree(card.resolve())
        while gpus(page := scrape(port), "gpu_up").get(lost) != 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert gpus(page, "gpu_up")[lost] == 0
        assert lost not in gpus(page, "gpu_busy_ratio")
        assert len(gpus(page, "gpu_busy_ratio")) == 1


@pytest.mark.slow
def test_a_service_that_starts_before_the_first_run_waits_for_its_folder(root: Path, tmp_path: Path) -> None:
    """And so for the other tool's text, which somebody writes now and then."""
    folder, text = tmp_path / "later/runs", tmp_path / "later/smi.json"
    late = ("--runs", str(folder), "--smi-json", str(text))
    with exporting("--root", str(root), "--kernel-log", "none", *late) as (process, port):
        assert process.stderr is not None
        assert process.stderr.readline() == f"warning: --runs {folder}: there is no such folder yet; waiting for it\n"
        assert "--smi-json" in process.stderr.readline()
        assert "cadenza_runs_running" not in scrape(port)
        writer = create_run(folder / "r1", manifest())
        text.write_text('{"card0": {"PCI Bus": "0000:83:00.0", "GPU use (%)": "50"}}')
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            page = scrape(port)
            if "cadenza_runs_running" in page and "0000:83:00.0" in gpus(page, "gpu_busy_ratio"):
                break
            time.sleep(0.05)
        writer.close(RunStatus.COMPLETE)
        assert [sample.value for sample in page["cadenza_runs_running"].samples] == [1]
        assert gpus(page, "gpu_busy_ratio")["0000:83:00.0"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(root: Path, number: signal.Signals) -> None:
    with exporting("--root", str(root)) as (process, port):
        assert "cadenza_exporter_info" in scrape(port)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")
