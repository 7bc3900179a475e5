"""Write docs/reference/cli.md from the parsers' own help, with all flags; `--check` fails if the page is stale."""

import argparse
import contextlib
import importlib
import io
import os
import sys
from pathlib import Path

from pages import write_or_check

from cadenza.cli.main import VERBS, make_parser

MADE_WITH = (3, 11)
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"


def render() -> str:
    """The page: the help of the program and of each verb, as a terminal of 100 columns shows it."""
    os.environ["COLUMNS"] = "100"
    os.environ["NO_COLOR"] = "1"
    parts = ["# The command line\n\nMade by `scripts/generate_cli.py` from `--help` and `--help-all`; do not edit.\n"]
    parts.append(f"```\n{make_parser([]).format_help()}```\n")
    for verb, (module, _) in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"cadenza {verb}", allow_abbrev=False)
        importlib.import_module(module).configure(parser)
        parts.append(f"## cadenza {verb}\n\n```\n{help_of(parser)}```\n")
    return "\n".join(parts)


def help_of(parser: argparse.ArgumentParser) -> str:
    """With the flags that only `--help-all` shows, where the verb has it."""
    text = parser.format_help()
    if "--help-all" not in text:
        return text
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        parser.parse_args(["--help-all"])
    return out.getvalue()


def main() -> int:
    if "--check" in sys.argv[1:] and sys.version_info[:2] != MADE_WITH:
        print(f"{PAGE.name} not checked: argparse lays help out differently than on {MADE_WITH[0]}.{MADE_WITH[1]}")
        return 0
    return write_or_check(PAGE, render(), __file__)


if __name__ == "__main__":
    sys.exit(main())
