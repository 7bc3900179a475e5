"""What start-up may not pull in, and how long a help may be; how long start-up takes is for bench/startup.py."""

import argparse
import importlib
import subprocess
import sys

import pytest

from cadenza.cli.main import VERBS, make_parser

MAX_HELP_LINES = 60
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


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_taken_in_at_a_glance(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = argparse.ArgumentParser(prog=verb)
    importlib.import_module(VERBS[verb][0]).configure(parser)
    text = parser.format_help()
    assert text.count("\n") <= MAX_HELP_LINES


def test_so_is_the_program() -> None:
    assert make_parser([]).format_help().count("\n") <= MAX_HELP_LINES
