"""Write docs/reference/definitions.md from the docstrings of stats/ and analysis/; `--check` fails if it is stale."""

import ast
import inspect
import sys
from pathlib import Path

from pages import write_or_check

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "definitions.md"
# In the order in which a reader meets them.
MODULES = (
    "population",
    "latency",
    "later_tokens",
    "window",
    "stability",
    "steady",
    "load_checks",
    "rounds",
    "streaming",
    "throughput",
    "goodput",
    "relative",
    "repeats",
    "concurrency",
    "requests",
    "distribution",
    "intervals",
    "finding",
    "checks",
    "client_checks",
    "machine",
    "gaps",
    "reconciliation",
    "bottleneck",
    "extrapolation",
)
# Those whose thresholds a reader wants beside the definitions.
JUDGES = ("checks", "load_checks", "stability", "streaming", "reconciliation", "bottleneck", "extrapolation")
INTRO = """\
# Definitions

Made by `scripts/generate_definitions.py` from the docstrings of `src/cadenza/stats/` and `src/cadenza/analysis/`; do
not edit. Each metric is the function under its name, and the docstring is its definition. What is undefined is NaN
(null in JSON) with a reason, never 0.
"""


def defined(source: str) -> list[tuple[str, str]]:
    """(name, docstring) of every public function and method whose docstring sets a term in bold."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            text = ast.get_docstring(node) or ""
            if "**" in text:
                found.append((node.name, text))
    return found


def constants(source: str) -> list[str]:
    """The thresholds of a module: `NAME = value`, with the comment above as the reason."""
    lines, found, comment = source.splitlines(), [], ""
    for line in lines:
        if line.startswith("# "):
            comment = f"{comment} {line[2:]}".strip()
        elif line[:1].isupper() and " = " in line and not line.startswith("_") and comment:
            found.append(f"- `{line.strip()}`: {comment}")
            comment = ""
        else:
            comment = ""
    return found


def read_module(name: str) -> str:
    """Its source text, from whichever of the rooms has it."""
    paths = (ROOT / "src" / "cadenza" / room / f"{name}.py" for room in ("stats", "analysis"))
    return next(path for path in paths if path.exists()).read_text(encoding="utf-8")


def render() -> str:
    parts = [INTRO]
    for module in MODULES:
        source = read_module(module)
        about = inspect.cleandoc(ast.get_docstring(ast.parse(source)) or "")
        parts.append(f"## {module}\n\n{about}\n")
        parts += [f"### {name}\n\n{text}\n" for name, text in defined(source)]
        if module in JUDGES:
            parts.append("### Thresholds\n\n" + "\n".join(constants(source)) + "\n")
    return "\n".join(parts)


def main() -> int:
    return write_or_check(PAGE, render(), __file__)


if __name__ == "__main__":
    sys.exit(main())
