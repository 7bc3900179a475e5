"""docs/how-to/extend.md, executed: its files and edits go into a copy of the package, and its commands run there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(python|diff|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def edit(scratch: Path, block: str) -> None:
    """Replace the lines of a diff; context and removed lines must stand in the file as they are, once."""
    head, *lines = block.splitlines()
    path = scratch / head.removeprefix("--- ")
    before = "\n".join(line[1:] for line in lines if line[:1] in " -")
    after = "\n".join(line[1:] for line in lines if line[:1] in " +")
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, (head, before)
    path.write_text(text.replace(before, after), encoding="utf-8")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with all samples of the page in it."""
    folder = tmp_path_factory.mktemp("extend")
    shutil.copytree(ROOT / "src" / "cadenza", folder / "src" / "cadenza", ignore=shutil.ignore_patterns("__pycache__"))
    for kind, block in _BLOCK.findall(PAGE):
        if kind == "python":
            path = folder / block.splitlines()[0].removeprefix("# ")
            assert not path.exists()
            path.write_text(block.partition("\n")[2], encoding="utf-8")
        elif kind == "diff":
            edit(folder, block)
    return folder


def run(scratch: Path, words: list[str]) -> str:
    environment = os.environ | {"PYTHONPATH": str(scratch / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "cadenza", *words],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMANDS = [
    shlex.split(line[2:])
    for kind, block in _BLOCK.findall(PAGE)
    if kind == "console"
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[-2:]))
def test_a_sample_is_used_from_the_command_line(scratch: Path, words: list[str]) -> None:
    assert words[0] == "cadenza"
    shown = run(scratch, words[1:])
    if words[1] == "exporter":
        assert re.search(r"^cadenza_host_uptime_seconds \d", shown, re.MULTILINE)
        return
    assert "Qwen/Qwen3-8B" in shown
    # Without the sample the same command is refused: it is the sample that answered.
    refused = subprocess.run([sys.executable, "-m", "cadenza", *words[1:]], cwd=scratch, capture_output=True, text=True)
    assert refused.returncode == 2


@pytest.mark.slow
def test_the_flat_law_takes_ten_milliseconds_a_token(scratch: Path) -> None:
    (words,) = [words for words in COMMANDS if words[-1] == "flat"]
    assert '"p50": 10.0,' in run(scratch, [*words[1:], "--json"])


def test_every_kind_has_a_sample_and_a_command() -> None:
    assert len(COMMANDS) == 5
    assert len([kind for kind, _ in _BLOCK.findall(PAGE) if kind == "python"]) == 5
