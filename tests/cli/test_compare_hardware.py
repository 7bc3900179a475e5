"""`cadenza compare-hardware`: printed beside predicted, labelled, each disagreement a sentence."""

import argparse
import json

import pytest

from cadenza.cli import compare_hardware


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    parser = argparse.ArgumentParser()
    compare_hardware.configure(parser)
    assert compare_hardware.run(parser.parse_args(argv)) == 0
    return capsys.readouterr().out


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys)
    assert "predicted (physics), not measured" in text
    for configuration, single, peak in (
        ("Single Instinct MI50", "12.8", "98.40"),
        ("Single RX 6900 XT", "14.2", "52.10"),
        ("Heterogeneous TP=2 dense", "12.5", "189.26"),
        ("Heterogeneous TP=2 MoE (simulated)", "7.8", "61.40"),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith(f" {configuration} ")]
        assert single in line.split()
        assert peak in line.split()
    for part in ("adds 2 %", "15.26 GiB", "25/57", "0.015 %", "derived from"):
        assert part in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out(capsys, "--json"))
    assert found["label"] == "predicted (physics), not measured"
    assert [row["printed"]["peak_tok_s"] for row in found["rows"]] == [98.4, 52.1, 189.26, 61.4]
    assert [row["fits"] for row in found["rows"]] == [True, False, True, False]
    assert all(row["disagreements"] for row in found["rows"])
