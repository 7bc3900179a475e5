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
from cadenza.observe.processes import Log, Say, Server, end, start
from cadenza.observe.programs import ALERTMANAGER, INSTALL, PROMETHEUS, PROMTOOL, ask
from cadenza.observe.settings import Settings, is_loopback

RETENTION = "30d"
_LOOK_S = 0.1
# After so long every target has been read, or failed to be.
_SETTLED_S = 8.0
_ASK_S = 5.0
# Of now: what was so when the last one ended is still to be found for five minutes.
_SILENT = "up == 0 and time() - timestamp(up) < 5"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def servers(folder: Path, say: Say) -> list[Server]:
    """What is to be started for the bundle: Prometheus, and Alertmanager where it is installed.

    UsageError: no bundle, or an address beyond this machine; CadenzaError: Prometheus is not installed.
    """
    wrong: list[str] = []
    config = read_yaml(folder / "prometheus.yml", "prometheus.yml", wrong)
    if wrong or not isinstance(config, dict):
        what = "; ".join(wrong) or "prometheus.yml is empty"
        deed = "check" if (folder / "prometheus.yml").is_file() else "init"
        raise UsageError(f"{folder} cannot be run: {what}. `cadenza observe {deed} {folder}`")
    prometheus = PROMETHEUS.find()
    if prometheus is None:
        raise CadenzaError(
            f"prometheus is not installed. {INSTALL}; or containers: docker compose -f {folder / 'compose.yml'} up"
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
    if _is_mute(folder):
        say(f"nobody is told of alerts yet: fill in the receivers of {folder / 'alertmanager.yml'}")
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


def _is_mute(folder: Path) -> bool:
    """Whether alertmanager.yml has receivers, and none of them a way to tell anybody."""
    config = read_yaml(folder / "alertmanager.yml", "alertmanager.yml", [])
    receivers = config.get("receivers") if isinstance(config, dict) else None
    return isinstance(receivers, list) and not any(isinstance(one, dict) and len(one) > 1 for one in receivers)


def _target(holder: Any) -> str | None:
    try:
        return str(holder["static_configs"][0]["targets"][0])
    except (KeyError, IndexError, TypeError):
        return None


def run(folder: Path, stop: Callable[[], bool], say: Say) -> None:
    """Start the bundle's servers, tell through `say` what they say that matters, and stop them when `stop()` is true.

    CadenzaError: one of them could not be started, or ended by itself; the others are stopped then as well.
    """
    folder = folder.resolve()
    wanted = servers(folder, say)
    for server in wanted:
        data = folder / "data" / server.name
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CadenzaError(f"{data}, for the data of {server.name}, cannot be made: {error.strerror}") from None
    say(f"starting {' and '.join(server.name for server in wanted)} on {folder}; Ctrl-C stops")
    processes: list[subprocess.Popen[str]] = []
    logs: list[Log] = []
    try:
        # All processes before the first thread, since a fork takes only the thread along that forks.
        for server in wanted:
            process = start(server)
            processes.append(process)
        logs += [Log(server, process.stderr, say) for server, process in zip(wanted, processes, strict=True)]
        _watch(wanted, processes, logs, stop, say)
    finally:
        # Prometheus first: it may still have something to tell Alertmanager.
        end(processes[::-1])
        for log in logs:
            log.join()


def _watch(
    wanted: list[Server], processes: list[subprocess.Popen[str]], logs: list[Log], stop: Callable[[], bool], say: Say
) -> None:
    ask_s = time.monotonic() + _SETTLED_S
    while not stop():
        for server, process, log in zip(wanted, processes, logs, strict=True):
            if (code := process.poll()) is not None and not stop():
                log.join()
                raise CadenzaError(f"{server.name} ended by itself with exit code {code}; {log.explain()}")
        if time.monotonic() > ask_s:
            silent = find_silent(wanted[-1].url)
            ask_s = math.inf if silent is not None else time.monotonic() + _SETTLED_S
            for sentence in silent or ():
                say(sentence)
        time.sleep(_LOOK_S)


def find_silent(prometheus: str) -> list[str] | None:
    """A sentence for each target that Prometheus cannot read; None: it says nothing yet, or there is no promtool."""
    promtool = PROMTOOL.find()
    answer = ask(promtool, "query", "instant", prometheus, _SILENT, timeout_s=_ASK_S) if promtool else None
    if answer is None or not answer.ok:
        return None
    found = [dict(_LABEL.findall(line)) for line in answer.text.splitlines()]
    return [
        f"no answer yet from {labels['job']} at {labels['instance']}: {prometheus}/targets says why"
        for labels in found
        if "job" in labels and "instance" in labels
    ]
