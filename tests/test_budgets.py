"""What start-up may not pull in: the figures are in bench/startup.py, the cause of them is here."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "rich", "msgspec", "httptools", "asyncio", "ssl")
STATEMENTS = {
    "import": "import cadenza",
    "help": "import contextlib, cadenza.cli.main as m\nwith contextlib.suppress(SystemExit): m.main(['--help'])",
    "version": "import contextlib, cadenza.cli.main as m\nwith contextlib.suppress(SystemExit): m.main(['--version'])",
}


def list_imported(statement: str) -> set[str]:
    """Every module that a fresh interpreter imports for `statement`, as `-X importtime` tells it."""
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True, check=True
    ).stderr
    lines = [line for line in told.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_start_up_pulls_in_nothing_heavy(statement: str) -> None:
    imported = list_imported(statement)
    assert "cadenza" in imported
    assert sorted(name for name in imported if name.partition(".")[0] in HEAVY) == []


@pytest.mark.slow
def test_what_is_heavy_would_be_seen() -> None:
    assert {"numpy", "msgspec"} <= list_imported("import numpy, msgspec")
