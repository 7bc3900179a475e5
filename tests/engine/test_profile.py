import csv
from pathlib import Path

import pytest

from cadenza.engine.profile import load, names
from cadenza.errors import UsageError

SWEEP = Path(__file__).parents[1] / "data" / "article" / "sweep.csv"


def test_the_profile_is_listed_and_has_the_three_models() -> None:
    assert names() == ["mi50-rx6900xt"]
    profile = load("mi50-rx6900xt")
    assert profile.max_model_len == 8192
    assert [(model.name, model.thinking) for model in profile.models] == [
        ("Qwen/Qwen3-8B", True),
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("google/gemma-4-E2B-it", False),
    ]


def test_every_published_row_is_there_digit_for_digit() -> None:
    ours = {
        (model.name, row.concurrency): (*row.ttft_ms, *row.tpot_ms)
        for model in load("mi50-rx6900xt").models
        for row in model.rows
    }
    columns = [f"{metric}_{part}_ms" for metric in ("ttft", "tpot") for part in ("mean", "p50", "p99")]
    with SWEEP.open(newline="") as file:
        published = {
            (row["model"], int(row["concurrency"])): tuple(float(row[column]) for column in columns)
            for row in csv.DictReader(file)
        }
    assert len(published) == 15
    assert ours == published


@pytest.mark.parametrize("name", ["nope", "", "../mi50-rx6900xt", "mi50-rx6900xt.toml"])
def test_an_unknown_profile_is_a_usage_error_that_names_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match="mi50-rx6900xt"):
        load(name)
