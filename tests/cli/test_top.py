"""`cadenza top`: what it is told to watch, a snapshot an interval on a pipe, and the real thing over a real engine."""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from cadenza.analysis.snapshot import Snapshot, Stream
from cadenza.cli import top
from cadenza.engine.api import child
from cadenza.errors import TargetError, UsageError
from cadenza.store.manifest import RunStatus
from cadenza.store.rundir import create_run
from support.runs import manifest, record

PROFILE = "mi50-rx6900xt"
CODE = "import argparse, sys; from cadenza.cli import top; p = argparse.ArgumentParser(); top.configure(p); "
CODE += "sys.exit(top.run(p.parse_args()))"
COMMAND = [sys.executable, "-c", CODE]


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    top.configure(parser)
    return parser.parse_args(argv)


class Scripted:
    """A view of so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        self.waited = False

    @property
    def over(self) -> bool:
        return self.left == 0

    def wait(self) -> None:
        self.waited = True

    def snapshot(self) -> Snapshot:
        self.left -= 1
        return Snapshot(at=5.0, source="s", status="up", streams=[Stream(model="m", running=self.left)])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(top, "wait_until", lambda due_s, stop: found.append(due_s))
    return found


def looks(view: Scripted, *argv: str) -> None:
    top._print_looks(view, parse(*argv), lambda: False)


def test_json_is_an_object_a_line_until_it_is_over(capfd: pytest.CaptureFixture[str], waits: list[float]) -> None:
    view = Scripted(3)
    looks(view, "--json", "--interval", "2")
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [one["streams"][0]["running"] for one in found] == [2, 1, 0]
    assert found[0]["streams"][0]["waiting"] is None
    assert found[0]["at"] == 5
    assert view.waited
    assert len(waits) == 2
    assert waits[1] - waits[0] == pytest.approx(2)


def test_once_is_one_look(capfd: pytest.CaptureFixture[str], waits: list[float]) -> None:
    looks(Scripted(9), "--once")
    assert capfd.readouterr().out.startswith("s  up ")
    assert waits == []


@pytest.mark.parametrize(
    "argv",
    [
        ["--interval", "0"],
        ["--interval", "nan"],
        ["--window", "0.1"],
        ["--window", "1e9"],
        ["--root", "/dev/null"],
        ["localhost:8000"],
        ["no/such/run"],
        ["ftp://localhost"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        top.run(parse("--once", *argv))


def test_a_finished_run_is_one_look(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = manifest()
    told.points[0].start_ns = 0
    writer = create_run(tmp_path / "run", told)
    writer.append(record(0))
    writer.close(RunStatus.COMPLETE)
    assert top.run(parse(str(writer.path), "--json")) == 0
    (line,) = capfd.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["status"], found["run"]["ended"]) == ("complete", 1)
    assert found["streams"][0]["ttft_ms"]["mean"] == 20


def test_without_an_argument_the_run_that_goes_on_is_watched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = create_run(Path("runs/x"), manifest())
    assert top.run(parse("--once", "--json")) == 0
    assert json.loads(capfd.readouterr().out)["source"] == "runs/x"
    writer.close(RunStatus.COMPLETE)


@pytest.mark.slow
def test_a_server_that_is_not_there_at_the_beginning_is_a_target_error() -> None:
    with pytest.raises(TargetError, match="nothing listens"):
        top.run(parse("--once", "http://127.0.0.1:9"))


def ask(url: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, url, *argv], capture_output=True, text=True, timeout=60, check=False)


def load(url: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Four streams on it, for longer than any test lasts."""
    flags = ["--url", url, "--model", "Qwen/Qwen3-8B", "-c", "4", "--requests", "5000", "--output-tokens", "30"]
    command = [sys.executable, "-m", "cadenza", "run", *flags, "--out", "run", "--quiet"]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for_record(cwd: Path) -> None:
    until = time.monotonic() + 30
    path = cwd / "run" / "records.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 10:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
def test_a_loaded_engine_and_its_run_are_seen_the_same_way(tmp_path: Path) -> None:
    with child.start(PROFILE, speed=10) as engine:
        client = load(engine.url, tmp_path)
        try:
            wait_for_record(tmp_path)
            server = json.loads(ask(engine.url, "--once", "--json", "--interval", "2").stdout)
            text = ask(engine.url, "--once").stdout
            run = json.loads(ask(str(tmp_path / "run"), "--once", "--json", "--window", "4").stdout)
        finally:
            client.send_signal(signal.SIGINT)
            client.wait(30)
    assert server["simulated"]
    assert server["window_s"] == pytest.approx(2, abs=1)
    (busy,) = (stream for stream in server["streams"] if stream["running"])
    assert busy["model"] == "Qwen/Qwen3-8B"
    assert busy["running"] == 4
    assert busy["tpot_ms"]["n"] > 0
    assert server["host"]["cpu_busy"] > 0
    assert "SIMULATED" in text.splitlines()[0]
    assert "Qwen/Qwen3-8B" in text
    (stream,) = run["streams"]
    assert (run["status"], run["run"]["concurrency"]) == ("running", 4)
    # Client and engine saw the same answers, at about the same time: the same pace, within what a moment differs. The
    # engine's histograms are in its own time, which runs ten times as fast.
    assert stream["generation_tok_per_s"] == pytest.approx(busy["generation_tok_per_s"], rel=0.3)
    assert stream["tpot_ms"]["mean"] == pytest.approx(busy["tpot_ms"]["mean"] / 10, rel=0.3)


@pytest.mark.slow
def test_a_server_that_goes_away_is_told_and_tried_again_until_interrupted() -> None:
    with child.start(PROFILE, speed=10) as engine:
        process = subprocess.Popen(
            [*COMMAND, engine.url, "--json", "--interval", "0.2"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        engine.process.terminate()
        engine.process.wait(10)
        for line in process.stdout:
            found = json.loads(line)
            if found["status"] == "down" and "still trying" in found["notes"][0]:
                break
        again = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        process.stdout.close()
    assert first["status"] == "up"
    assert again["status"] == "down"
    assert {stream["running"] for stream in again["streams"]} == {None}


def own_terminal() -> None:
    """In the child: a session whose terminal is its standard input, as a shell gives it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [b"\x03", b"xq"])
def test_on_a_terminal_it_is_drawn_until_ctrl_c_or_q_and_the_last_look_stays(keys: bytes) -> None:
    with child.start(PROFILE, speed=10) as engine:
        controller, terminal = pty.openpty()
        before = termios.tcgetattr(terminal)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        command = [*COMMAND, engine.url, "--interval", "0.2"]
        process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, preexec_fn=own_terminal
        )
        shown = b""
        until = time.monotonic() + 30
        while shown.count(b"SIMULATED") < 3 and time.monotonic() < until:
            if select.select([controller], [], [], 0.2)[0]:
                shown += os.read(controller, 1 << 16)
        os.write(controller, keys)
        while process.poll() is None and time.monotonic() < until:
            if select.select([controller], [], [], 0.1)[0]:
                shown += os.read(controller, 1 << 16)
        assert process.wait(20) == 0
        while select.select([controller], [], [], 0.1)[0]:
            shown += os.read(controller, 1 << 16)
        # What the shell had set is set again: keys are shown, and whole lines are read.
        assert termios.tcgetattr(terminal)[3] == before[3]
        os.close(terminal)
        os.close(controller)
    left = shown.rindex(b"\x1b[?1049l")  # back on the first screen
    assert shown.index(b"\x1b[?1049h") < left < shown.rindex(b"SIMULATED")
    assert b"x" not in re.sub(rb"\x1b\[[?\d;]*[a-zA-Z]", b"", shown).replace(b"prefix", b"")  # a key is not shown


@pytest.mark.slow
def test_what_a_page_calls_its_model_reaches_no_terminal_as_an_escape() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp"
    page = f'vllm:num_requests_running{{model_name="{hostile}"}} 3\n'.encode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):  # closed: the test is over
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1 << 16)
                        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n"
                        connection.sendall(head.encode() + page)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        text, told = ask(url, "--once").stdout, ask(url, "--once", "--json").stdout
        listener.shutdown(socket.SHUT_RDWR)
    for stream in (text, told):
        assert "[2J ]0;title 31m gnp" in stream
        assert all(character.isprintable() for character in stream.replace("\n", ""))
