"""Of a server's log what matters is told, and why it ended; and it ends when told to."""

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadenza.errors import CadenzaError
from cadenza.observe import processes
from cadenza.observe.processes import Log, ServerCommand, end, log_message, start

PROMETHEUS = ServerCommand("prometheus", [], "http://127.0.0.1:9090")
ALERTMANAGER = ServerCommand("alertmanager", [], "http://127.0.0.1:9093")


@pytest.mark.parametrize(
    ("server", "line", "told"),
    [
        (
            PROMETHEUS,
            'ts=2026-01-01T00:00:00Z caller=main.go:1 level=info msg="Server is ready to receive web requests."',
            "prometheus is ready at http://127.0.0.1:9090",
        ),
        (
            ALERTMANAGER,
            "ts=2026-01-01T00:00:00Z caller=tls.go:1 level=info msg=Listening address=127.0.0.1:9093",
            "alertmanager is ready at http://127.0.0.1:9093",
        ),
        (PROMETHEUS, "ts=x level=info msg=Listening address=127.0.0.1:9090", None),
        (PROMETHEUS, 'ts=x level=info msg="TSDB started"', None),
        (
            PROMETHEUS,
            'ts=x level=error component=tsdb msg="Opening storage failed" err="lock DB directory: \\"x\\" busy"',
            'prometheus: error: Opening storage failed (tsdb): lock DB directory: "x" busy',
        ),
        (
            PROMETHEUS,
            'time=2026-01-01T00:00:00Z level=WARN source=x msg="Head GC took long"',
            "prometheus: warn: Head GC took long",
        ),
        (PROMETHEUS, 'ts=x level=warn msg="Received SIGTERM, exiting gracefully..."', None),
        (PROMETHEUS, 'time=x level=WARN msg="Received an OS signal, exiting gracefully..." signal=terminated', None),
        (
            PROMETHEUS,
            r'ts=x level=error msg="loading groups failed" err="1:20: unexpected \"=\"\nrules.yml: \"C:\\x\""',
            'prometheus: error: loading groups failed: 1:20: unexpected "="\nrules.yml: "C:\\x"',
        ),
        (PROMETHEUS, 'ts=x level=error err="error loading config"', "prometheus: error: error loading config"),
        (PROMETHEUS, "panic: runtime error", "prometheus: panic: runtime error"),
        (PROMETHEUS, "\n", None),
    ],
)
def test_of_a_log_what_matters_is_messages(server: ServerCommand, line: str, told: str | None) -> None:
    assert log_message(server, line) == told


def read(*lines: str) -> tuple[Log, list[str]]:
    told: list[str] = []
    log = Log(PROMETHEUS, io.StringIO("".join(f"{line}\n" for line in lines)), told.append)
    log.join()
    return log, told


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('level=error err="listen tcp 127.0.0.1:9090: bind: address already in use"', "systemctl disable --now"),
        (
            'level=error err="opening storage failed: lock DB directory: resource temporarily unavailable"',
            "stop that one",
        ),
        ('level=error msg="Error loading config" err=x', "cadenza observe check"),
        ('level=error msg="something else"', "are above"),
        ("level=info msg=Starting", "logged no error"),
    ],
)
def test_an_end_is_explained_by_what_was_messages(line: str, part: str) -> None:
    log, _ = read(line)
    assert part in log.explain()


def test_a_long_log_is_read_to_its_end_and_not_kept() -> None:
    log, told = read(*(f"level=warn msg=m{i}" for i in range(1000)))
    assert len(told) == 1000
    assert "m999" in log._messages[-1]
    assert len(log._messages) <= 100


def test_a_program_that_is_not_there_is_messages(tmp_path: Path) -> None:
    with pytest.raises(CadenzaError, match="none could not be started: No such file"):
        start(ServerCommand("prometheus", [str(tmp_path / "none")], ""))


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def deaf() -> "subprocess.Popen[str]":
    """A process that ignores SIGTERM, once it does."""
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


@pytest.mark.slow
def test_who_does_not_end_is_ended_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_STOP_S", 0.2)
    one, other = deaf(), subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], text=True)
    began_s = time.monotonic()
    end([one, other])
    assert time.monotonic() - began_s < 10
    assert one.returncode == -signal.SIGKILL
    assert other.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_a_second_ctrl_c_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    process = deaf()

    def interrupt(timeout: float | None = None) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        end([process])
    assert process.returncode == -signal.SIGKILL
