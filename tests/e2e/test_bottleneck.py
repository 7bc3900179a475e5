"""Staged situations through the whole command line: each has one cause, and the report names that one.

Queue, KV cache, prefill and decode in virtual time, where nothing else disturbs; client, heat, network and cards that
wait for another over sockets, and what is told where there is nothing to see.
"""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from cadenza.analysis.reconciliation import MAX_DIFFERENCE
from cadenza.cli.main import main
from cadenza.engine.api import child
from cadenza.engine.board.boards import Board
from cadenza.engine.board.faults import BoardFault

QWEN = "Qwen/Qwen3-8B"
STAGE = Path(__file__).parents[2] / "scripts" / "stage_bottlenecks.py"
COMMAND = ("run", "--model", QWEN, "--seed", "7", "--out", "run", "--json", "--quiet")
PROFILE = (resources.files("cadenza.engine") / "profiles" / "mi50-rx6900xt.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def measure(*flags: str, code: int = 0, **limits: int) -> dict[str, Any]:
    """The only point of a run; `limits` in place of those of the engine's profile."""
    text = PROFILE
    for name, value in limits.items():
        text = re.sub(rf"(?m)^{name} = .*\n", "", text).replace("[limits]\n", f"[limits]\n{name} = {value}\n")
    Path("engine.toml").write_text(text, encoding="utf-8")
    assert main([*COMMAND, "--engine", "engine.toml", *flags]) == code
    (point,) = json.loads(Path("run/summary.json").read_bytes())["points"]
    found: dict[str, Any] = point
    return found


def agree(point: dict[str, Any]) -> None:
    """Client and engine count the same."""
    counts = [point["reconciliation"][name] for name in ("requests", "prompt_tokens", "generation_tokens")]
    assert [count["client"] > 0 and abs(count["difference"]) <= MAX_DIFFERENCE for count in counts] == [True] * 3


def test_a_queue() -> None:
    # Sixteen want in, four may: a request spends three times as long in the queue as in the engine.
    point = measure("--virtual", "-c", "16", "--requests", "96", max_num_seqs=4)
    assert point["bottleneck"]["kind"] == "queue"
    own = point["reconciliation"]
    assert own["queue_ms"] / (own["prefill_ms"] + own["decode_ms"]) == pytest.approx(3, rel=0.15)
    assert any("% of its time in the engine" in told for told in point["bottleneck"]["evidence"])
    assert point["machine"]["engine"]["preemptions"] == 0
    agree(point)


def test_a_kv_cache_that_is_too_small() -> None:
    # 64 blocks of 16 tokens hold four answers of 256, and eight are admitted while they are short.
    flags = ("--virtual", "-c", "8", "--requests", "96", "--output-tokens", "256")
    point = measure(*flags, num_gpu_blocks=65, max_model_len=512)
    assert point["bottleneck"]["kind"] == "KV capacity"
    assert point["machine"]["engine"]["preemptions"] > 0.1 * 96
    assert "preemptions a request" in point["bottleneck"]["evidence"][0]
    agree(point)  # a token that is computed twice is given once


def test_decode() -> None:
    point = measure("--virtual", "-c", "4", "--requests", "48")
    assert point["bottleneck"]["kind"] == "decode bandwidth"
    own = point["reconciliation"]
    assert own["decode_ms"] > 20 * own["prefill_ms"]
    # In memory there is no network: what the engine says of itself is what the client saw, to the nanosecond.
    assert own["ttft"]["beyond_ms"] == pytest.approx(0, abs=1e-3)
    assert own["itl"]["beyond_ms"] == pytest.approx(0, abs=1e-3)
    agree(point)


def test_prefill() -> None:
    point = measure("--virtual", "-c", "2", "--requests", "48", "--prompts", "random:2000", "--output-tokens", "2")
    assert point["bottleneck"]["kind"] == "prefill"
    agree(point)


def test_a_curve_says_what_decode_costs_with_the_batch() -> None:
    flags = ("--virtual", "--model", QWEN, "--requests", "48", "--seed", "7", "--out", "run", "--json", "--quiet")
    assert main(["sweep", *flags, "-c", "4,16"]) == 0
    first, last = json.loads(Path("run/summary.json").read_bytes())["points"]
    assert last["drift_pct"] > 0
    grown = f"TPOT {last['drift_pct']:+.1f} % vs C = 4"
    assert last["bottleneck"]["evidence"][-1].startswith(grown)
    assert last["bottleneck"]["evidence"][-1].endswith("(flat, < 5 %)") == (last["drift_pct"] < 5)
    assert "TPOT" not in first["bottleneck"]["evidence"][-1]


@pytest.mark.slow
def test_a_client_that_is_starved() -> None:
    # Three hundred times as fast as real, answers of 8 tokens last two milliseconds, and 32 ask for the next at once.
    main([*COMMAND, "-c", "32", "--requests", "2000", "--output-tokens", "8", "--speed", "300"])
    (point,) = json.loads(Path("run/summary.json").read_bytes())["points"]
    assert point["bottleneck"]["kind"] == "client"
    (told,) = point["bottleneck"]["evidence"]
    assert {"verdict": "CLIENT-LIMITED", "message": told} in [
        {name: check[name] for name in ("verdict", "message")} for check in point["checks"]
    ]
    agree(point)


@pytest.mark.slow
def test_a_card_in_the_heat(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board.for_devices(["mi50-32gb", "rx6900xt"], 0)
    board.inject(BoardFault("overheat", 1), 0)
    now_ns = 0
    while not board.read()[1].throttling:
        now_ns += 10**10
        assert now_ns < 3600 * 10**9
        board.advance(now_ns, [card.working(1.0, 8 << 30) for card in board.cards])
    board.write(Path("board").absolute())
    hot = board.read()[1]
    Path("spec.toml").write_text('[telemetry]\nroot = "board"\ninterval_s = 0.2\n')
    point = measure("-c", "2", "--requests", "6", "--speed", "10", "--spec", "spec.toml")
    assert point["bottleneck"] == {
        "kind": "thermal throttle",
        "evidence": [f"{hot.slot}: clock reduced for heat, 100 % of the time"],
    }
    machine = point["machine"]
    assert [gpu["busy_mean"] for gpu in machine["gpus"]] == [1, 1]
    seen = {gpu["gpu"]: gpu for gpu in machine["gpus"]}[hot.slot]
    assert seen["temperature_max_c"]["junction"] == pytest.approx(hot.junction_c, abs=0.5)
    assert seen["power_mean_w"] == pytest.approx(hot.power_w, abs=1)
    assert seen["vram_peak_bytes"] == 8 << 30
    watts = sum(gpu["power_mean_w"] for gpu in machine["gpus"])
    assert machine["joules_per_tok"] == pytest.approx(watts / point["throughput_tok_per_s"])
    capsys.readouterr()
    assert main(["show", "run"]) == 0
    text = capsys.readouterr().out
    assert "Bottleneck at C = 2: thermal throttle" in text
    assert "Not seen: the host" in text  # a board has no /proc


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("network", "network", "ms TTFT at the client were not seen by the engine"),
        ("straggler", "straggler card", "was busy for 100 % of the time, 0000:43:00.0 for 50 %"),
        ("nothing", "none", "there was a request to work on"),
    ],
)
def test_what_the_script_stages_is_named(name: str, kind: str, told: str) -> None:
    command = [sys.executable, str(STAGE), "--only", name, "--out", "staged"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    (folder,) = [path for path in Path("staged").iterdir() if path.is_dir()]
    (point,) = json.loads((folder / "summary.json").read_bytes())["points"]
    assert point["bottleneck"]["kind"] == kind
    assert any(told in text for text in point["bottleneck"]["evidence"])
    agree(point)
    if kind == "network":
        # The relay holds the request for 50 ms and the first token for 50 ms more, and each request by as much.
        for name in ("ttft", "latency"):
            assert 100 <= point["reconciliation"][name]["beyond_ms"] < 140


@pytest.mark.slow
def test_what_was_not_seen_is_not_ruled_out() -> None:
    Path("nothing").mkdir()
    Path("spec.toml").write_text('[telemetry]\nroot = "nothing"\ninterval_s = 0.1\n')
    point = measure("-c", "2", "--requests", "12", "--speed", "10", "--spec", "spec.toml")
    unseen = "not ruled out (no data): thermal throttle, straggler card, host CPU"
    assert point["bottleneck"]["kind"] == "decode bandwidth"
    assert point["bottleneck"]["evidence"][-1] == unseen
    # And where the engine has no page of metrics, too, nothing is left to say.
    with child.start("mi50-rx6900xt", speed=10) as engine:
        Path("blind.toml").write_text(
            f'[telemetry]\nroot = "nothing"\ninterval_s = 0.1\nmetrics_url = "{engine.url}/v1/models"\n'
        )
        flags = ("--url", engine.url, "--spec", "blind.toml", "-c", "2", "--requests", "12", "--model", QWEN)
        assert main(["run", *flags, "--out", "blind", "--json", "--quiet"]) == 0
    (point,) = json.loads(Path("blind/summary.json").read_bytes())["points"]
    assert point["bottleneck"] == {
        "kind": "unknown",
        "evidence": [
            "no data of the engine's queue, prefill and decode times, its gauge of waiting requests, the "
            "cards, the server's host"
        ],
    }


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_over_sockets_is_rebuilt_to_the_byte(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.toml").write_text(f"workers = {workers}\n[telemetry]\ninterval_s = 0.1\n")
    flags = ("--model", QWEN, "--requests", "24", "--speed", "20", "--seed", "7", "--out", "run", "--quiet", "--json")
    main(["sweep", *flags, "-c", "2,4", "--spec", "spec.toml"])
    kept = Path("run/summary.json").read_bytes()
    capsys.readouterr()
    main(["show", "run", "--json"])
    assert capsys.readouterr().out.encode() == kept
    for point in json.loads(kept)["points"]:
        agree(point)
        assert point["machine"]["engine"]["running_peak"] == point["concurrency"]
        assert 0 <= point["machine"]["host"]["cpu_busy_mean"] <= 1
        assert point["machine"]["unseen"] == ["a GPU"]


@pytest.mark.slow
def test_what_is_off_is_off() -> None:
    Path("spec.toml").write_text("[telemetry]\noff = true\n")
    point = measure("-c", "1", "--requests", "4", "--speed", "100", "--spec", "spec.toml")
    assert not {"machine", "reconciliation", "bottleneck"} & point.keys()
    assert not Path("run/telemetry.jsonl").exists()


@pytest.mark.slow
def test_traffic_of_someone_else_is_found() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "cadenza", "engine", "--port", "0", "--speed", "20", "--exit-with-parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        flags = ("--url", url, "--model", QWEN, "--json", "--quiet", "--requests", "40")
        other = subprocess.Popen(
            [sys.executable, "-m", "cadenza", "run", *flags, "-c", "2", "--out", "other"], stdout=subprocess.DEVNULL
        )
        assert main(["run", *flags, "-c", "4", "--out", "run"]) in (0, 1)
        other.wait()
        server.kill()
    (point,) = json.loads(Path("run/summary.json").read_bytes())["points"]
    assert point["reconciliation"]["requests"]["difference"] > MAX_DIFFERENCE
    assert any("did others use the server?" in reason for reason in point["reasons"])
