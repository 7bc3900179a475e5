"""The programs of Prometheus where they are installed, and how to get them where not."""

import shutil
import subprocess
from typing import NamedTuple

INSTALL = (
    "Debian, Ubuntu: apt-get install prometheus prometheus-alertmanager; macOS: brew install prometheus alertmanager"
)
_TIMEOUT_S = 300


class Program(NamedTuple):
    """`names`: what it is called, the first by its makers; `lacks`: what cannot be done without it."""

    names: tuple[str, ...]
    lacks: str

    def find(self) -> str | None:
        """Its path, None: not installed."""
        return next((path for name in self.names if (path := shutil.which(name))), None)


PROMETHEUS = Program(("prometheus",), "start Prometheus")
# The second is Debian's name for it.
ALERTMANAGER = Program(("alertmanager", "prometheus-alertmanager"), "start Alertmanager")
PROMTOOL = Program(("promtool",), "check prometheus.yml, PromQL and the rules' tests as Prometheus itself does")
AMTOOL = Program(("amtool",), "check alertmanager.yml as Alertmanager itself does")


class Answer(NamedTuple):
    """What a program said, and whether it was content."""

    ok: bool
    text: str


def ask(path: str, *arguments: str, timeout_s: float = _TIMEOUT_S) -> Answer:
    """Run a program to its end, five minutes at most unless told."""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Answer(False, f"{path} did not end within {timeout_s:g} s")
    except OSError as error:
        return Answer(False, f"{path} could not be run: {error.strerror}")
    return Answer(done.returncode == 0, (done.stdout + done.stderr).strip())
