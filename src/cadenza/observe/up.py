"""A real Prometheus (and Alertmanager) on a bundle, in the foreground, on this machine alone, until it is stopped."""

import math
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cadenza.errors import CadenzaError, UsageError
from cadenza.observe.lint import read_yaml
from cadenza.observe.processes import Log, Report, ServerCommand, end, start
from cadenza.observe.programs import ALERTMANAGER, INSTALL, PROMETHEUS, PROMTOOL, run_program
from cadenza.observe.settings import Settings, is_loopback

RETENTION = "30d"
_POLL_S = 0.1
# By then every target has been scraped, or failed to be.
_SETTLED_S = 8.0
_QUERY_S = 5.0
# Recent samples only: those of an earlier Prometheus are still returned for five minutes.
_UNREACHABLE = "up == 0 and time() - timestamp(up) < 5"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def servers(folder: Path, report: Report) -> list[ServerCommand]:
    """The commands to start for the bundle: Prometheus, and Alertmanager where it is installed.

    UsageError: no bundle, or an address beyond this machine; CadenzaError: Prometheus is not installed.
    """
    wrong: list[str] = []
    config = read_yaml(folder / "prometheus.yml", "prometheus.yml", wrong)
    if wrong or not isinstance(config, dict):
        what = "; ".join(wrong) or "prometheus.yml is empty"
        action = "check" if (folder / "prometheus.yml").is_file() else "init"
        raise UsageError(f"{folder} cannot be run: {what}. `cadenza observe {action} {folder}`")
    prometheus = PROMETHEUS.find()
    if prometheus is None:
        raise CadenzaError(
            f"prometheus is not installed. {INSTALL}; or containers: docker compose -f {folder / 'compose.yml'} up"
        )
    address, other = _addresses(config)
    data = folder / "data"
    commands = [
        ServerCommand(
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
        return commands
    if alertmanager is None:
        report(f"Alertmanager is not installed: alerts are shown at {commands[0].url}/alerts only. {INSTALL}")
        return commands
    if _is_mute(folder):
        report(f"alerts send no notification yet: fill in the receivers of {folder / 'alertmanager.yml'}")
    arguments = [
        alertmanager,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={data / 'alertmanager'}",
        f"--web.listen-address={other}",
        # Without it, Alertmanager gossips on every address of the machine.
        "--cluster.listen-address=",
    ]
    return [ServerCommand("alertmanager", arguments, f"http://{other}"), *commands]


def _addresses(config: dict[str, Any]) -> tuple[str, str | None]:
    """The addresses of Prometheus and of Alertmanager (None: not configured, or not on this machine)."""
    jobs = [job for job in config.get("scrape_configs") or () if isinstance(job, dict)]
    own = next((_target(job) for job in jobs if job.get("job_name") == "prometheus"), None) or Settings().prometheus
    alerting = config.get("alerting")
    managers = alerting.get("alertmanagers") if isinstance(alerting, dict) else None
    other = _target(managers[0]) if isinstance(managers, list) and managers else None
    if not is_loopback(own):
        raise UsageError(f"prometheus.yml has its own Prometheus at {own}, which is not on this machine alone")
    return own, other if other is not None and is_loopback(other) else None


def _is_mute(folder: Path) -> bool:
    """Whether alertmanager.yml has receivers, and none of them has an integration."""
    config = read_yaml(folder / "alertmanager.yml", "alertmanager.yml", [])
    receivers = config.get("receivers") if isinstance(config, dict) else None
    return isinstance(receivers, list) and not any(isinstance(one, dict) and len(one) > 1 for one in receivers)


def _target(holder: Any) -> str | None:
    try:
        return str(holder["static_configs"][0]["targets"][0])
    except (KeyError, IndexError, TypeError):
        return None


def run(folder: Path, stop: Callable[[], bool], report: Report) -> None:
    """Start the bundle's servers, pass relevant log lines to `report`, and stop them when `stop()` is true.

    CadenzaError: one of them could not be started, or exited; the others are stopped then as well.
    """
    folder = folder.resolve()
    wanted = servers(folder, report)
    for server in wanted:
        data = folder / "data" / server.name
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CadenzaError(f"{data}, for the data of {server.name}, cannot be made: {error.strerror}") from None
    report(f"starting {' and '.join(server.name for server in wanted)} on {folder}; Ctrl-C stops")
    processes: list[subprocess.Popen[str]] = []
    logs: list[Log] = []
    try:
        # All processes before the first thread, since a fork takes only the thread along that forks.
        for server in wanted:
            process = start(server)
            processes.append(process)
        logs += [Log(server, process.stderr, report) for server, process in zip(wanted, processes, strict=True)]
        _watch(wanted, processes, logs, stop, report)
    finally:
        # Prometheus first: it may still send alerts to Alertmanager.
        end(processes[::-1])
        for log in logs:
            log.join()


def _watch(
    wanted: list[ServerCommand],
    processes: list[subprocess.Popen[str]],
    logs: list[Log],
    stop: Callable[[], bool],
    report: Report,
) -> None:
    query_s = time.monotonic() + _SETTLED_S
    while not stop():
        for server, process, log in zip(wanted, processes, logs, strict=True):
            if (code := process.poll()) is not None and not stop():
                log.join()
                raise CadenzaError(f"{server.name} exited with code {code}; {log.explain()}")
        if time.monotonic() > query_s:
            unreachable = find_unreachable(wanted[-1].url)
            query_s = math.inf if unreachable is not None else time.monotonic() + _SETTLED_S
            for sentence in unreachable or ():
                report(sentence)
        time.sleep(_POLL_S)


def find_unreachable(prometheus: str) -> list[str] | None:
    """A sentence for each target that Prometheus cannot scrape; None: no result yet, or no promtool."""
    promtool = PROMTOOL.find()
    result = (
        run_program(promtool, "query", "instant", prometheus, _UNREACHABLE, timeout_s=_QUERY_S) if promtool else None
    )
    if result is None or not result.ok:
        return None
    labelled = [dict(_LABEL.findall(line)) for line in result.text.splitlines()]
    return [
        f"{labels['job']} at {labels['instance']} does not respond yet: see {prometheus}/targets"
        for labels in labelled
        if "job" in labels and "instance" in labels
    ]
