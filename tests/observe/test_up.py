"""What is started for a bundle, what of its log is told, and that it ends with us."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadenza.errors import CadenzaError, UsageError
from cadenza.observe.bundle import write
from cadenza.observe.settings import Settings
from cadenza.observe.up import Server, run, servers, tell
from support.prometheus import free_port, needs

PROMETHEUS = Server("prometheus", [], "http://127.0.0.1:9090")
ALERTMANAGER = Server("alertmanager", [], "http://127.0.0.1:9093")


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in names else None)


def test_both_are_started_on_the_bundle_s_own_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Settings(prometheus="127.0.0.1:19090", alertmanager="127.0.0.1:19093"), tmp_path)
    installed(monkeypatch, "prometheus", "prometheus-alertmanager")
    told: list[str] = []
    alertmanager, prometheus = servers(tmp_path, told.append)
    assert told == []
    assert prometheus.arguments[0] == "/bin/prometheus"
    assert f"--config.file={tmp_path}/prometheus.yml" in prometheus.arguments
    assert f"--storage.tsdb.path={tmp_path}/data/prometheus" in prometheus.arguments
    assert "--web.listen-address=127.0.0.1:19090" in prometheus.arguments
    assert prometheus.url == "http://127.0.0.1:19090"
    assert alertmanager.arguments[0] == "/bin/prometheus-alertmanager"
    assert "--web.listen-address=127.0.0.1:19093" in alertmanager.arguments
    assert "--cluster.listen-address=" in alertmanager.arguments


def test_alertmanager_may_be_missing_and_prometheus_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Settings(), tmp_path)
    told: list[str] = []
    installed(monkeypatch, "prometheus")
    assert [server.name for server in servers(tmp_path, told.append)] == ["prometheus"]
    assert len(told) == 1
    assert "apt-get install" in told[0]
    installed(monkeypatch, "prometheus-alertmanager")
    with pytest.raises(CadenzaError, match=r"prometheus is not installed.*apt-get install prometheus"):
        servers(tmp_path, told.append)


@pytest.mark.parametrize(
    ("text", "part"),
    [(None, "observe init"), ("a: [", "observe init"), ("", "observe init"), ("x: 1", "")],
)
def test_a_folder_without_a_bundle_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, part: str
) -> None:
    installed(monkeypatch, "prometheus")
    if text is not None:
        (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    if part:
        with pytest.raises(UsageError, match=part):
            servers(tmp_path, print)
    else:
        assert [server.url for server in servers(tmp_path, print)] == ["http://127.0.0.1:9090"]


def test_an_address_beyond_this_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Settings(), tmp_path)
    file = tmp_path / "prometheus.yml"
    file.write_text(file.read_text(encoding="utf-8").replace("127.0.0.1:9090", "0.0.0.0:9090"), encoding="utf-8")
    installed(monkeypatch, "prometheus")
    with pytest.raises(UsageError, match="not on this machine alone"):
        servers(tmp_path, print)


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
        (PROMETHEUS, "panic: runtime error", "prometheus: panic: runtime error"),
        (PROMETHEUS, "\n", None),
    ],
)
def test_of_a_log_what_matters_is_told(server: Server, line: str, told: str | None) -> None:
    assert tell(server, line) == told


def bundle(folder: Path) -> str:
    """A bundle on free ports; where its Prometheus will be."""
    address = f"127.0.0.1:{free_port()}"
    write(Settings(prometheus=address, alertmanager=f"127.0.0.1:{free_port()}"), folder)
    return f"http://{address}"


@pytest.mark.slow
@needs("prometheus", "alertmanager|prometheus-alertmanager")
def test_it_runs_until_told_to_stop_and_leaves_nothing_behind(tmp_path: Path) -> None:
    url = bundle(tmp_path)
    told: list[str] = []
    until = time.monotonic() + 30

    def stop() -> bool:
        return len(told) >= 2 or time.monotonic() > until

    run(tmp_path, stop, told.append)
    assert f"prometheus is ready at {url}" in told
    assert len(told) == 2
    assert (tmp_path / "data" / "prometheus" / "wal").is_dir()
    # The lock of the data folder is free again: a second one starts on it.
    told.clear()
    run(tmp_path, stop, told.append)
    assert f"prometheus is ready at {url}" in told


@pytest.mark.slow
@needs("prometheus")
def test_a_prometheus_that_ends_by_itself_is_told_with_its_reason(tmp_path: Path) -> None:
    bundle(tmp_path)
    with (tmp_path / "prometheus.yml").open("a", encoding="utf-8") as file:
        file.write("nonsense: 1\n")
    told: list[str] = []
    with pytest.raises(CadenzaError, match="prometheus ended by itself with exit code"):
        run(tmp_path, lambda: False, told.append)
    assert any("nonsense" in line for line in told)


@pytest.mark.slow
@needs("prometheus")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_command_and_its_servers(tmp_path: Path, number: int) -> None:
    url = bundle(tmp_path)
    command = [sys.executable, "-m", "cadenza", "observe", "up", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == f"prometheus is ready at {url}":
                break
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.strip().endswith("stopped")
    # Free again: whoever held it is gone.
    assert free_port(int(url.rpartition(":")[2]))
