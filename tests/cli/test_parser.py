"""Unknown verbs, flags and names: one sentence with the closest known one; completion scripts of the shells."""

from pathlib import Path

import pytest

from cadenza.cli.completion import SHELLS
from cadenza.cli.main import VERBS, main


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("sweep", "--concurency", "3"), "unknown flag '--concurency' (did you mean '--concurrency'?)"),
        (("swep",), "unknown verb 'swep' (did you mean 'sweep'?)"),
        (("probe", "http://a", "--insecur"), "unknown flag '--insecur' (did you mean '--insecure'?)"),
        (("ls", "runs", "too"), "'too' is one argument too many"),
        (("sweep", "--timing", "calibratd"), "(did you mean 'calibrated'?)"),
        (("sweep", "--slo", "tttft=5"), "(did you mean 'ttft'?)"),
        (("sweep", "--engine", "mi50-rx6900"), "(did you mean 'mi50-rx6900xt'?)"),
        (("predict", "--hardware", "mi50-32gb", "--model", "qwen3-8"), "(did you mean 'qwen3-8b'?)"),
        (("sweep", "--virtual", "--model", "Qwen/Qwen3-8"), "(did you mean 'Qwen/Qwen3-8B'?)"),
        (("show", "latets"), "(did you mean 'latest'?)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_misspelt_word_gets_the_closest_known_one(
    flags: tuple[str, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(flags) in (2, 3)
    assert sentence.replace("'", "") in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_has_every_verb_and_the_flags_of_each(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS)
    assert all(flag in script for flag in ("concurrency", "stall-timeout", "markdown"))
