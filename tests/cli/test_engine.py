"""`cadenza engine`'s arguments; serving itself is replaced, since nothing here may open a socket."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli import engine
from cadenza.errors import UsageError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def serve(profile: Any, host: str, port: int, speed: float, key: str | None, ready: Any, stop: Any = None) -> None:
        calls.append((profile.name, host, port, speed, key))
        ready("http://127.0.0.1:8000")

    monkeypatch.setattr(engine, "serve", serve)
    monkeypatch.delenv("CADENZA_ENGINE_API_KEY", raising=False)
    return calls


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    engine.configure(parser)
    return engine.run(parser.parse_args(argv))


def test_defaults(served: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert served == [("mi50-rx6900xt", "127.0.0.1", 8000, 1.0, None)]
    said = capsys.readouterr().out
    assert "simulated" in said
    assert "Qwen/Qwen3-8B" in said
    assert "http://127.0.0.1:8000" in said


def test_a_child_says_one_line_of_json(served: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    run("mi50-rx6900xt", "--port", "0", "--speed", "20", "--exit-with-parent")
    assert served == [("mi50-rx6900xt", "127.0.0.1", 0, 20.0, None)]
    assert capsys.readouterr().out == '{"url": "http://127.0.0.1:8000"}\n'


def test_the_key_comes_from_a_file_or_the_environment_and_is_never_shown(
    served: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CADENZA_ENGINE_API_KEY", "from-environment")
    run()
    (tmp_path / "key").write_text("from-file\n")
    run("--api-key-file", str(tmp_path / "key"))
    assert [call[4] for call in served] == ["from-environment", "from-file"]
    assert "from-" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["nope"],
        ["--speed", "0"],
        ["--speed", "-1"],
        ["--speed", "nan"],
        ["--speed", "inf"],
        ["--port", "65536"],
        ["--api-key-file", "/does/not/exist"],
        ["--api-key-file", "/dev/null"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(served: list[tuple[Any, ...]], argv: list[str]) -> None:
    with pytest.raises(UsageError):
        run(*argv)
    assert served == []
