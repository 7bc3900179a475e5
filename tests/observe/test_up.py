"""What is started for a bundle, what of its log is told, and that it ends with us."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from cadenza.errors import CadenzaError, UsageError
from cadenza.observe import up
from cadenza.observe.bundle import write
from cadenza.observe.programs import ProgramResult
from cadenza.observe.settings import Settings
from cadenza.observe.up import find_unreachable, run, servers
from support.prometheus import free_port, needs


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in names else None)


def test_both_are_started_on_the_bundle_s_own_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Settings(prometheus="127.0.0.1:19090", alertmanager="127.0.0.1:19093"), tmp_path)
    installed(monkeypatch, "prometheus", "prometheus-alertmanager")
    told: list[str] = []
    alertmanager, prometheus = servers(tmp_path, told.append)
    assert told == [f"alerts send no notification yet: fill in the receivers of {tmp_path}/alertmanager.yml"]
    assert prometheus.arguments[0] == "/bin/prometheus"
    assert f"--config.file={tmp_path}/prometheus.yml" in prometheus.arguments
    assert f"--storage.tsdb.path={tmp_path}/data/prometheus" in prometheus.arguments
    assert "--web.listen-address=127.0.0.1:19090" in prometheus.arguments
    assert prometheus.url == "http://127.0.0.1:19090"
    assert alertmanager.arguments[0] == "/bin/prometheus-alertmanager"
    assert "--web.listen-address=127.0.0.1:19093" in alertmanager.arguments
    assert "--cluster.listen-address=" in alertmanager.arguments


def test_receivers_that_are_filled_in_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Settings(), tmp_path)
    file = tmp_path / "alertmanager.yml"
    text = file.read_text(encoding="utf-8")
    assert "  - name: critical\n" in text
    hook = "  - name: critical\n    webhook_configs: [{url: 'http://127.0.0.1:5001/'}]\n"
    file.write_text(text.replace("  - name: critical\n", hook), encoding="utf-8")
    installed(monkeypatch, "prometheus", "alertmanager")
    told: list[str] = []
    assert len(servers(tmp_path, told.append)) == 2
    assert told == []


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
    [(None, "observe init"), ("a: [", "line 1: no YAML.*observe check"), ("", "is empty.*observe check"), ("x: 1", "")],
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
        return sum("is ready at" in line for line in told) >= 2 or time.monotonic() > until

    run(tmp_path, stop, told.append)
    assert f"prometheus is ready at {url}" in told
    assert f"starting alertmanager and prometheus on {tmp_path}; Ctrl-C stops" in told
    assert len(told) == 4, told
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
    with pytest.raises(CadenzaError, match=r"prometheus exited with code .*cadenza observe check"):
        run(tmp_path, lambda: False, told.append)
    assert any("nonsense" in line for line in told)


@pytest.mark.slow
@needs("prometheus")
def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path) -> None:
    url = bundle(tmp_path)
    address = url.removeprefix("http://")
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        other.listen()
        with pytest.raises(CadenzaError, match=f"{address} is in use.*cadenza observe init DIR --prometheus"):
            run(tmp_path, lambda: False, lambda text: None)


@pytest.mark.parametrize("place", ["data", "data/prometheus"])
def test_data_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    write(Settings(), tmp_path)
    installed(monkeypatch, "prometheus")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("", encoding="utf-8")
    with pytest.raises(CadenzaError, match=f"{tmp_path}/data/prometheus, for the data of prometheus, cannot be made"):
        run(tmp_path, lambda: False, lambda text: None)


def test_what_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """promtool's own words, as 2.42 and 3.5 print them."""
    words = 'up{instance="box:9101", job="exporter", node="box"} => 0 @[1796134000.1]\n'
    monkeypatch.setattr(up, "run_program", lambda *arguments, timeout_s: ProgramResult(True, words))
    installed(monkeypatch, "promtool")
    assert find_unreachable("http://127.0.0.1:9090") == [
        "exporter at box:9101 does not respond yet: see http://127.0.0.1:9090/targets"
    ]
    monkeypatch.setattr(up, "run_program", lambda *arguments, timeout_s: ProgramResult(True, ""))
    assert find_unreachable("http://127.0.0.1:9090") == []
    monkeypatch.setattr(up, "run_program", lambda *arguments, timeout_s: ProgramResult(False, "connection refused"))
    assert find_unreachable("http://127.0.0.1:9090") is None
    installed(monkeypatch)
    assert find_unreachable("http://127.0.0.1:9090") is None


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
    assert "Traceback" not in errors
    # Free again: whoever held it is gone.
    assert free_port(int(url.rpartition(":")[2]))


def is_free(port: int) -> bool:
    try:
        return free_port(port) == port
    except OSError:
        return False


@pytest.mark.slow
@needs("prometheus", "promtool")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has gone")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_nothing_outlives_the_command(tmp_path: Path, number: int) -> None:
    url = bundle(tmp_path)
    command = [sys.executable, "-m", "cadenza", "observe", "up", str(tmp_path)]
    # Under nohup, say, a child would be born deaf to SIGHUP.
    hear = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=hear) as process:
        assert process.stdout is not None
        # The engine and the exporter are not there, which is told last.
        for line in process.stdout:
            if line.startswith("exporter at 127.0.0.1:9101 does not respond yet"):
                break
        os.kill(process.pid, number)
    assert process.returncode == -number
    port = int(url.rpartition(":")[2])
    until = time.monotonic() + 30
    while not is_free(port) and time.monotonic() < until:
        time.sleep(0.1)
    assert is_free(port)


@pytest.mark.slow
@needs("prometheus")
def test_who_does_not_read_on_ends_it_in_silence(tmp_path: Path) -> None:
    bundle(tmp_path)
    command = [sys.executable, "-m", "cadenza", "observe", "up", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0
    assert errors.strip() == "stopped"
