"""Write docs/reference/findings.md from `analysis.codes`; `--check` fails if the page is stale."""

import sys
from pathlib import Path

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
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(render(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == render():
        return 0
    print(f"{PAGE.name} is stale: run python scripts/generate_findings.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
