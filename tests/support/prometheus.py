"""Prometheus's programs in tests: skipped visibly where they are not installed; free ports for them."""

import shutil
import socket

import pytest

INSTALL = "apt-get install prometheus prometheus-alertmanager (or scripts/get_prometheus.sh FOLDER, and FOLDER on PATH)"


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if not any(shutil.which(one) for one in name.split("|"))]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: {INSTALL}")


def free_port(port: int = 0) -> int:
    """A port of this machine that nobody listens on, or `port` if nobody does (else OSError)."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        return int(taken.getsockname()[1])
