"""`cadenza predict`: its screen, its JSON, and a sentence with exit code 2 for what makes no sense."""

import argparse
import json
from pathlib import Path

import pytest

from cadenza.cli import predict
from cadenza.errors import UsageError

PAIR = ("--hardware", "mi50-32gb,rx6900xt", "--model", "qwen3-8b")


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    predict.configure(parser)
    return predict.run(parser.parse_args(argv))


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run(*argv) == 0
    return capsys.readouterr().out


def test_the_screen_says_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, *PAIR, "--tp", "2", "-c", "1,200")
    lines = text.splitlines()
    assert lines[:2] == ["Instinct MI50 32 GB + Radeon RX 6900 XT: Qwen/Qwen3-8B", "predicted (physics), not measured"]
    for word in ("memory", "KV room", "alone", "TTFT", "peak", "bottleneck", "straggler", "link"):
        assert any(line.startswith(f"  {word} ") for line in lines), word
    assert "split 2:1, by memory bandwidth" in text
    assert "the rest queues: kv room" in text
    assert "Radeon RX 6900 XT alone does not fit: " in text


def test_json_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out(capsys, *PAIR, "--json", "-c", "4,8", "--context", "300", "--prompt-tokens", "100"))
    assert found["label"] == "predicted (physics), not measured"
    assert [point["concurrency"] for point in found["points"]] == [4, 8]
    assert (found["context_tok"], found["prompt_tok"], found["tensor_parallel"]) == (300, 100, 2)
    assert found["split"] == [0.5, 0.5]


def test_what_does_not_fit_is_answered_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "--hardware", "rx6900xt", "--model", "Qwen/Qwen3-8B", "--gpu-memory-utilization", "0.9")
    assert "DOES NOT FIT" in text
    assert "15.26 GiB" in text
    assert "2.30 GiB are lacking" in text


def test_flags_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    base = json.loads(out(capsys, *PAIR, "--json"))
    split = json.loads(out(capsys, *PAIR, "--json", "--split", "2:1"))
    assert split["split"] == pytest.approx([2 / 3, 1 / 3])
    staged = json.loads(out(capsys, *PAIR, "--json", "--link", "pcie4-host-staged"))
    assert staged["link_share"] > base["link_share"]
    eager = json.loads(out(capsys, *PAIR, "--json", "--eager"))
    # 36 layers at 0.34 ms more.
    assert eager["tpot_ms"] - base["tpot_ms"] == pytest.approx(36 * 0.34)
    small = json.loads(out(capsys, *PAIR, "--json", "--bytes-per-weight", "1"))
    assert small["memory"]["kv_tok"] > base["memory"]["kv_tok"]
    few = json.loads(out(capsys, *PAIR, "--json", "--max-num-seqs", "2"))
    assert few["peak"]["concurrency"] == 2


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "--list")
    for name in ("mi50-32gb", "rtx4090", "pcie4-host-staged", "xgmi", "qwen3-30b-a3b", "Qwen/Qwen3-8B"):
        assert name in text
    known = json.loads(out(capsys, "--list", "--json"))
    assert known["models"]["qwen3-8b"] == "Qwen/Qwen3-8B"
    assert set(known) == {"devices", "links", "models", "comparisons"}


def test_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = tmp_path / "card.toml"
    device.write_text(
        'title = "My card"\ntarget = "x"\nvram_bytes = 25769803776\nbandwidth_bytes_per_s = 1e12\n'
        "fp16_flop_per_s = 1e14\ntdp_w = 300\n"
    )
    model = tmp_path / "tiny.toml"
    model.write_text("layers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 128\nvocab = 1000\n")
    text = out(capsys, "--hardware", str(device), "--model", str(model))
    assert text.startswith("My card: ")
    device.write_text("vram_bytes = 1\n")
    with pytest.raises(UsageError, match=r"card\.toml describes no device: .*missing required field"):
        run("--hardware", str(device), "--model", "qwen3-8b")
    device.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not text"):
        run("--hardware", str(device), "--model", "qwen3-8b")
    with pytest.raises(UsageError, match=r"nowhere\.toml: No such file"):
        run("--hardware", str(tmp_path / "nowhere.toml"), "--model", "qwen3-8b")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ((), "give --hardware and --model"),
        (("--hardware", "h100"), "give --hardware and --model"),
        (("--hardware", "h101", "--model", "qwen3-8b"), "did you mean 'h100'"),
        (("--hardware", "h100", "--model", "qwen"), "no model is called 'qwen'"),
        ((*PAIR, "--tp", "3"), "name one for each rank"),
        ((*PAIR, "--tp", "two"), "--tp 'two' is not a whole number"),
        ((*PAIR, "--split", "1:1:1"), "3 parts for 2 ranks"),
        ((*PAIR, "--link", "string"), "no link is called 'string'"),
        ((*PAIR, "-c", "1,,2"), "-c '' is not a whole number"),
        ((*PAIR, "-c", "0"), "-c '0'"),
        ((*PAIR, "--context", "-5"), "--context '-5'"),
        ((*PAIR, "--context", "9" * 400), "is not a whole number"),
        ((*PAIR, "--prompt-tokens", "1.5"), "--prompt-tokens '1.5'"),
        ((*PAIR, "--gpu-memory-utilization", "1.5"), "above 0, up to 1"),
        ((*PAIR, "--gpu-memory-utilization", "nan"), "above 0, up to 1"),
        ((*PAIR, "--bytes-per-weight", "0"), "above 0, up to 8"),
        ((*PAIR, "--max-num-seqs", "0"), "--max-num-seqs '0'"),
        (("--hardware", "h100", "--tp", "8", "--model", "qwen2.5-7b"), "use a tensor-parallel size of 1, 2, 4"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(argv: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        run(*argv)
    assert told in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_published_comparison_prints_a_row_each_and_judges_the_claims(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "--compare", "article")
    assert "predicted (physics), not measured" in text
    for configuration, single, peak in (
        ("Single Instinct MI50", "12.8", "98.40"),
        ("Single RX 6900 XT", "14.2", "52.10"),
        ("Heterogeneous TP=2 dense", "12.5", "189.26"),
        ("Heterogeneous TP=2 MoE (simulated)", "7.8", "61.40"),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith(f" {configuration} ")]
        assert {single, peak} <= set(line.split())
    found = json.loads(out(capsys, "--compare", "article", "--json"))
    assert [row["printed"]["peak_tok_per_s"] for row in found["configurations"]] == [98.4, 52.1, 189.26, 61.4]
    assert [row["fits"] for row in found["configurations"]] == [True, False, True, False]


def test_a_comparison_of_ones_own_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    with pytest.raises(UsageError, match="No such file"):
        run("--compare", str(path))
    path.write_text("title = 1\n")
    with pytest.raises(UsageError, match="title"):
        run("--compare", str(path))
    with pytest.raises(UsageError, match="leave out --hardware"):
        run("--compare", "article", *PAIR)
