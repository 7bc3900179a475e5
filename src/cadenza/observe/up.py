"""A real Prometheus (and Alertmanager) on a bundle, in the foreground, on this machine alone, until it is stopped."""

import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from cadenza.errors import CadenzaError, UsageError
from cadenza.observe.lint import read_yaml
from cadenza.observe.programs import ALERTMANAGER, INSTALL, PROMETHEUS
from cadenza.observe.settings import Settings, is_loopback

RETENTION = "30d"
_STOP_S = 15.0
_LOOK_S = 0.1
# logfmt: key=value key="value with \" in it"
_FIELD = re.compile(r'(\w+)=("(?:\\.|[^"\\])*"|\S*)')
_READY = {"prometheus": "Server is ready to receive web requests", "alertmanager": "Listening"}
# Of the signal that we sent: Prometheus 2's words, and 3's.
_ASKED = ("Received SIGTERM", "Received an OS signal")

Say = Callable[[str], None]


class Server(NamedTuple):
    """A program to start, what it is called, and where it will be."""

    name: str
    arguments: list[str]
    url: str


def servers(folder: Path, say: Say) -> list[Server]:
    """What is to be started for the bundle: Prometheus, and Alertmanager where it is installed.

    UsageError: no bundle, or an address beyond this machine; CadenzaError: Prometheus is not installed.
    """
    wrong: list[str] = []
    config = read_yaml(folder / "prometheus.yml", "prometheus.yml", wrong)
    if wrong or not isinstance(config, dict):
        raise UsageError(
            f"{folder} is no bundle ({'; '.join(wrong) or 'prometheus.yml is empty'}): `cadenza observe init {folder}`"
        )
    prometheus = PROMETHEUS.find()
    if prometheus is None:
        raise CadenzaError(
            f"prometheus is not installed. {INSTALL}; or containers: docker compose -f {folder}/compose.yml up"
        )
    address, other = _addresses(config)
    data = folder / "data"
    found = [
        Server(
            "prometheus",
            [
                prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={data / 'prometheus'}",
                f"--storage.tsdb.retention.time={RETENTION}",
                f"--web.listen-address={address}",
            ],
            f"http://{address}",
        )
    ]
    alertmanager = ALERTMANAGER.find()
    if other is None or not (folder / "alertmanager.yml").is_file():
        return found
    if alertmanager is None:
        say(f"Alertmanager is not installed: alerts show at {found[0].url}/alerts, and nobody is told. {INSTALL}")
        return found
    arguments = [
        alertmanager,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={data / 'alertmanager'}",
        f"--web.listen-address={other}",
        # Without it, Alertmanager gossips on every address of the machine.
        "--cluster.listen-address=",
    ]
    return [Server("alertmanager", arguments, f"http://{other}"), *found]


def _addresses(config: dict[str, Any]) -> tuple[str, str | None]:
    """Where the bundle expects Prometheus itself, and Alertmanager (None: nowhere, or not here)."""
    jobs = [job for job in config.get("scrape_configs") or () if isinstance(job, dict)]
    own = next((_target(job) for job in jobs if job.get("job_name") == "prometheus"), None) or Settings().prometheus
    alerting = config.get("alerting")
    managers = alerting.get("alertmanagers") if isinstance(alerting, dict) else None
    other = _target(managers[0]) if isinstance(managers, list) and managers else None
    if not is_loopback(own):
        raise UsageError(f"prometheus.yml has its own Prometheus at {own}, which is not on this machine alone")
    return own, other if other is not None and is_loopback(other) else None


def _target(holder: Any) -> str | None:
    try:
        return str(holder["static_configs"][0]["targets"][0])
    except (KeyError, IndexError, TypeError):
        return None


def run(folder: Path, stop: Callable[[], bool], say: Say) -> None:
    """Start the bundle's servers, tell through `say` what they say that matters, and stop them when `stop()` is true.

    CadenzaError: one of them could not be started, or ended by itself; the others are stopped then as well.
    """
    wanted = servers(folder.resolve(), say)
    for server in wanted:
        (folder / "data" / server.name).mkdir(parents=True, exist_ok=True)
    started: list[tuple[Server, subprocess.Popen[str], threading.Thread]] = []
    try:
        for server in wanted:
            process = _start(server)
            reader = threading.Thread(target=_forward, args=(server, process.stderr, say), daemon=True)
            reader.start()
            started.append((server, process, reader))
        while not stop():
            for server, process, reader in started:
                if (code := process.poll()) is not None:
                    reader.join(1)
                    raise CadenzaError(
                        f"{server.name} ended by itself with exit code {code}; what it said stands above"
                    )
            time.sleep(_LOOK_S)
    finally:
        # Prometheus first: it may still have something to tell Alertmanager.
        _stop([process for _, process, _ in reversed(started)])
        for _, _, reader in started:
            reader.join(1)


def _start(server: Server) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            server.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C is ours to pass on, once.
            start_new_session=True,
        )
    except OSError as error:
        raise CadenzaError(f"{server.arguments[0]} could not be started: {error.strerror}") from None


def _stop(processes: list[subprocess.Popen[str]]) -> None:
    """Ask all to end, give them time to write their data down, and end those by force that have not."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + _STOP_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _forward(server: Server, lines: IO[str] | None, say: Say) -> None:
    if lines is None:
        return
    with lines:
        for line in lines:
            if (told := tell(server, line)) is not None:
                say(told)


def tell(server: Server, line: str) -> str | None:
    """A line of a server's log as it is told: warnings and errors, that it is ready, and what is no log line."""
    fields = {key: value.strip('"').replace('\\"', '"') for key, value in _FIELD.findall(line)}
    if "level" not in fields:
        return f"{server.name}: {line.strip()}" if line.strip() else None
    level, message = fields["level"].lower(), fields.get("msg", "")
    if level in ("warn", "error") and not message.startswith(_ASKED):
        error = fields.get("err") or fields.get("error")
        where = fields.get("scrape_pool") or fields.get("component")
        return f"{server.name}: {level}: {message}" + (f" ({where})" if where else "") + (f": {error}" if error else "")
    if message.startswith(_READY[server.name]):
        return f"{server.name} is ready at {server.url}"
    return None
