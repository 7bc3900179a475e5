"""A generated page: written, or with `--check` held against the file."""

import sys
from pathlib import Path


def write_or_check(page: Path, text: str, script: str) -> int:
    """The exit code: 1 if `--check` was given and the page differs from `text`; `script` makes it anew."""
    if "--check" not in sys.argv[1:]:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"{page.name} is stale: run python scripts/{Path(script).name}", file=sys.stderr)
    return 1
