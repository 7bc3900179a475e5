"""`cadenza engine`'s arguments; serving itself is replaced, since nothing here may open a socket."""

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli import engine
from cadenza.engine.api.http_api import HttpApi
from cadenza.errors import UsageError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    apis: list[tuple[Any, str | None]] = []

    def make_face(profile: Any, api_key: str | None, **others: Any) -> HttpApi:
        apis.append((profile, api_key))
        return HttpApi(profile, api_key=api_key, **others)

    def serve(api: HttpApi, host: str, port: int, speed: float, ready: Any, stop: Any = None, tick: Any = None) -> None:
        profile, key = apis[-1]
        calls.append((profile.name, host, port, speed, key, api, tick))
        ready("http://127.0.0.1:8000")

    monkeypatch.setattr(engine, "HttpApi", make_face)
    monkeypatch.setattr(engine, "serve", serve)
    monkeypatch.delenv("CADENZA_ENGINE_API_KEY", raising=False)
    return calls


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    engine.configure(parser)
    return engine.run(parser.parse_args(argv))


def test_defaults(served: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert [call[:5] for call in served] == [("mi50-rx6900xt", "127.0.0.1", 8000, 1.0, None)]
    said = capsys.readouterr().out
    assert "simulated" in said
    assert "Qwen/Qwen3-8B" in said
    assert "http://127.0.0.1:8000" in said


def test_a_child_says_one_line_of_json(served: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    run("mi50-rx6900xt", "--port", "0", "--speed", "20", "--exit-with-parent")
    assert [call[:5] for call in served] == [("mi50-rx6900xt", "127.0.0.1", 0, 20.0, None)]
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
        ["--timing", "nope"],
        ["--timing", "measured"],
        ["--max-num-seqs", "0"],
        ["--max-num-seqs", "many"],
        ["--max-num-batched-tokens", "10"],
        ["--gpu-memory-utilization", "1.5"],
        ["--gpu-memory-utilization", "0.5"],
        ["--set", "nope=1"],
        ["--set", "stream_interval"],
        ["--fault", "nope:0.5"],
        ["--fault", "stall:2"],
        ["--fault", "slow:60@0"],
        ["--board-fault", "overheat"],
        ["h100", "--board", "/does/not/matter"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(served: list[tuple[Any, ...]], argv: list[str]) -> None:
    with pytest.raises(UsageError):
        run(*argv)
    assert served == []


def test_flags_are_the_engines_limits(served: list[tuple[Any, ...]]) -> None:
    run(
        "--max-num-seqs",
        "7",
        "--block-size",
        "32",
        "--set",
        "stream_interval=3",
        "--set",
        "enable_prefix_caching=false",
    )
    limits = served[0][5].core.instances["Qwen/Qwen3-8B"].limits
    assert (limits.max_num_seqs, limits.block_size, limits.stream_interval) == (7, 32, 3)
    assert limits.enable_prefix_caching is False
    assert limits.max_model_len == 8192


def test_a_board_is_shown_from_the_start_and_follows_the_engine(served: list[tuple[Any, ...]], tmp_path: Path) -> None:
    run("--board", str(tmp_path / "board"), "--board-fault", "kfd-oom@5")
    busy = sorted((tmp_path / "board" / "sys").glob("class/drm/card*/device/gpu_busy_percent"))
    assert [int(file.read_text()) for file in busy] == [0, 0]
    api, tick = served[0][5:]
    api.core.submit(1, "Qwen/Qwen3-8B", range(10), 500, 0)
    tick(10_000_000_000)
    assert all(int(file.read_text()) > 90 for file in busy)
    assert "-12" in (tmp_path / "board" / "kernel.log").read_text()


def test_faults_of_the_whole_engine_and_no_statistics_reach_the_face(served: list[tuple[Any, ...]]) -> None:
    run("--fault", "hang:5@60", "--fault", "slow:60@0x20", "--disable-log-stats")
    api = served[0][5]
    assert [api.core.pace.at(second * 10**9) for second in (0, 60, 65)] == [Fraction(1, 20), 0, 1]
    api.receive(1, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n", 0)
    ((_, page),) = api.take(0)
    assert page.startswith(b"HTTP/1.1 200")
    assert b"vllm:" not in page


def test_the_list_has_profiles_models_laws_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    (profile,) = listed["profiles"]
    assert profile["name"] == "mi50-rx6900xt"
    assert profile["models"]["Qwen/Qwen3-8B"] == ["calibrated", "calibrated:D", "physics"]
    assert {"mi300x", "h100", "mi50-32gb"} <= set(listed["devices"])
    run("--list")
    assert "Qwen/Qwen3-8B" in capsys.readouterr().out
