"""An engine with its board, the exporter, and a real Prometheus on a bundle: started, asked, stopped."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

CADENZA = (sys.executable, "-m", "cadenza")
NO_KEYS = {name: value for name, value in os.environ.items() if not name.startswith("CADENZA_")}


class Started:
    """A cadenza verb in a process of its own; its output goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen([*CADENZA, *arguments], stdout=file, stderr=file, env=NO_KEYS)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.process.args!r} did not stop: {self.said()}") from None

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _get(self, path: str, **arguments: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(arguments)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expression)["result"]
        return found

    def query_range(self, expression: str, seconds: int) -> list[dict[str, Any]]:
        now = time.time()
        found: list[dict[str, Any]] = self._get(
            "/api/v1/query_range", query=expression, start=f"{now - seconds}", end=f"{now}", step="1"
        )["result"]
        return found

    def firing(self) -> set[str]:
        return {one["labels"]["alertname"] for one in self._get("/api/v1/alerts")["alerts"] if one["state"] == "firing"}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


# A busy machine may take this many times as long as a quiet one; what comes in time costs nothing.
PATIENCE = 5


def wait_for(what: Callable[[], bool], seconds: float, told: Callable[[], str] = str) -> None:
    """Until it is so; AssertionError with `told()` if it is not within `PATIENCE` times the usual `seconds`."""
    until = time.monotonic() + PATIENCE * seconds
    while not what():
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE * seconds:g} s: {told()}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def hasten(folder: Path) -> None:
    """Make a bundle's alerts quick: the expressions and thresholds stay, the times to wait become seconds."""
    for name, changes in {
        "prometheus.yml": [(r"evaluation_interval: \S+", "evaluation_interval: 1s")],
        "rules/alerts.yml": [
            (r"for: [1-9]\S*", "for: 1s"),
            (r"\[(5|10|15)m\]", "[15s]"),
            (r"offset 10m", "offset 15s"),
            (r"\[1m\]", "[10s]"),
            (r"age_seconds > 30", "age_seconds > 3"),
        ],
        "rules/recording.yml": [(r"\[(1|5)m\]", "[10s]"), (r"offset 1m", "offset 10s")],
    }.items():
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in changes:
            text, count = re.subn(old, new, text)
            assert count, (name, old)
        (folder / name).write_text(text, encoding="utf-8")


class Watch:
    """Looks at what fires twice a second, from the beginning on: `fired` ever, `recent` since asked, `firing` now."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.fired: set[str] = set()
        self.recent: set[str] = set()
        self.firing: set[str] = set()
        self._prometheus = prometheus
        self._stopped = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(0.5):
            with contextlib.suppress(OSError):
                self.firing = self._prometheus.firing()
                self.fired |= self.firing
                self.recent |= self.firing

    def wait_for(self, seconds: float, *names: str) -> None:
        """Until each of `names` has fired, from now on."""
        self.recent = set()
        wait_for(lambda: set(names) <= self.recent, seconds, lambda: f"silent: {set(names) - self.recent}")

    def wait_clear(self, seconds: float, *names: str) -> None:
        """Until none of `names` fires."""
        wait_for(lambda: not set(names) & self.firing, seconds, lambda: f"still firing: {set(names) & self.firing}")

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
