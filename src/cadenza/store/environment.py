"""What the run ran on: part of the result, since most wrong conclusions come from runs that cannot be compared."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec

from cadenza import __version__

_LIBRARIES = ("httptools", "msgspec", "numpy")


class Environment(msgspec.Struct, kw_only=True):
    """The client's machine and software. No host name, no user, no path: a run directory may be published."""

    cadenza: str
    python: str
    os: str
    machine: str
    cpu: str | None
    cpus: int
    cpus_usable: int
    libraries: dict[str, str]


def usable_cores() -> int:
    """Those that the process may run on (taskset, cgroup cpuset), not those that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_environment() -> Environment:
    """Read it from this process."""
    return Environment(
        cadenza=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        os=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu_name(),
        cpus=os.cpu_count() or 1,
        cpus_usable=usable_cores(),
        libraries={name: version(name) for name in _LIBRARIES},
    )


def _cpu_name() -> str | None:
    if sys.platform != "linux":
        return platform.processor() or None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)
