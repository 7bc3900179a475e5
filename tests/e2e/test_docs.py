"""Commands of the tutorial and the how-to pages run as written, and links in the pages at the root lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# extend.md has a test of its own.
PAGES = sorted([*(DOCS / "tutorial").glob("*.md"), *(DOCS / "how-to").glob("*.md")])
PAGES.remove(DOCS / "how-to" / "extend.md")
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def commands(page: str) -> list[list[str]]:
    """What the page's console blocks type, word by word."""
    lines = (line for block in _BLOCK.findall(page) for line in block.splitlines())
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


def broken_links(page: str, folder: Path) -> list[str]:
    links = (link for link in _LINK.findall(page) if not re.match(r"[a-z]+:", link))
    return [link for link in links if not (folder / link).exists()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [page for page in PAGES if commands(page.read_text(encoding="utf-8"))], ids=lambda path: path.stem
)
def test_each_command_of_a_page_works_in_an_empty_folder(path: Path, tmp_path: Path) -> None:
    for words in commands(path.read_text(encoding="utf-8")):
        assert words[0] == "cadenza"
        done = subprocess.run(
            [sys.executable, "-m", "cadenza", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
        assert (done.returncode, done.stderr if done.returncode else "") == (0, ""), " ".join(words)
        assert done.stdout


def test_the_tutorial_and_three_how_to_pages_have_commands() -> None:
    with_commands = {path.stem for path in PAGES if commands(path.read_text(encoding="utf-8"))}
    assert {"first-decision", "choose-an-slo", "compare-two-servers", "gate-ci"} <= with_commands
    assert commands("```console\n$ cadenza ls 'a b'\nout\n```\n") == [["cadenza", "ls", "a b"]]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_page_at_the_root_has_no_broken_link(name: str) -> None:
    assert broken_links((ROOT / name).read_text(encoding="utf-8"), ROOT) == []
    assert broken_links("[a](b/missing.md#c) [d](https://e) [f](README.md)", ROOT) == ["b/missing.md"]
