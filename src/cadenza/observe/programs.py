"""The programs of Prometheus: where they are installed, how to install them, how to run them."""

import shutil
import subprocess
from typing import NamedTuple

INSTALL = (
    "Debian, Ubuntu: apt-get install prometheus prometheus-alertmanager; macOS: brew install prometheus alertmanager"
)
_TIMEOUT_S = 300


class Program(NamedTuple):
    """`names`: file names, upstream's first; `lacks`: what cannot be done without it."""

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


class ProgramResult(NamedTuple):
    """`ok`: exit code 0; `text`: stdout and stderr."""

    ok: bool
    text: str


def run_program(path: str, *arguments: str, timeout_s: float = _TIMEOUT_S) -> ProgramResult:
    """Run a program to its end, at most `timeout_s` (default 300 s). A timeout or a failed start gives ok False."""
    try:
        completed = subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return ProgramResult(False, f"{path} did not end within {timeout_s:g} s")
    except OSError as error:
        return ProgramResult(False, f"{path} could not be run: {error.strerror}")
    return ProgramResult(completed.returncode == 0, (completed.stdout + completed.stderr).strip())
