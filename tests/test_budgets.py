"""What start-up must not do. How long it takes is printed by bench/startup.py; times are not tested here."""

import subprocess
import sys

import pytest

HEAVY = {"numpy", "rich", "msgspec", "httptools", "ssl", "asyncio"}


@pytest.mark.parametrize(
    "code",
    ["import cadenza", "from cadenza.cli.main import make_parser; make_parser([]).format_help()"],
    ids=["import cadenza", "cadenza --help"],
)
def test_start_up_loads_nothing_heavy(code: str) -> None:
    listing = f"import sys; {code}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True).stdout.split()
    assert HEAVY & set(loaded) == set()
    assert "cadenza" in loaded


def test_help_is_under_a_hundred_lines_and_a_verb_has_at_most_25_flags() -> None:
    import argparse
    import importlib

    from cadenza.cli.main import VERBS

    for verb, (module, _) in VERBS.items():
        parser = argparse.ArgumentParser(prog=verb)
        importlib.import_module(module).configure(parser)
        assert parser.format_help().count("\n") < 100
        assert len([action for action in parser._actions if action.option_strings]) <= 26  # --help is one of them
