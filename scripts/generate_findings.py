"""Write docs/reference/findings.md from `analysis.codes`; `--check` fails if the page is stale."""

import sys
from pathlib import Path

from pages import write_or_check

from cadenza.analysis.codes import CODES

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "findings.md"
INTRO = """\
# Findings

Made by `scripts/generate_findings.py` from `src/cadenza/analysis/codes.py`; do not edit.

Everything that is known of a point is a finding: a stable code, numbers with their units, and a sentence. In
`summary.json` each point has them under `findings`, with the verdict that a check alone would give; `checks`, `reasons`
and `notes` are the same sentences. Programs read codes and numbers; sentences may be reworded. A share is a fraction.

| code | check | meaning | numbers | what to do |
|---|---|---|---|---|
"""


def render() -> str:
    rows = []
    for name, code in CODES.items():
        numbers = ", ".join(f"`{number}`" for number in code.numbers)
        rows.append(f"| `{name}` | {code.check or '(note)'} | {code.meaning} | {numbers} | {code.action} |")
    return INTRO + "\n".join(rows) + "\n"


def main() -> int:
    return write_or_check(PAGE, render(), __file__)


if __name__ == "__main__":
    sys.exit(main())
