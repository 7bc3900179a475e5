"""The table of engines: consistent in itself, with the fields of an engine's state, and with recorded pages."""

import re
from itertools import combinations
from pathlib import Path

import pytest

from cadenza.telemetry.engine_state import EngineState
from cadenza.telemetry.engines import ENGINES, MEASURED, is_simulated, metrics_advice, name_owner, version_paths

PAGES = Path(__file__).parents[1] / "data" / "telemetry" / "engines"


@pytest.mark.parametrize("key", ENGINES)
def test_a_row_has_fields_of_a_state_and_names_under_its_prefix(key: str) -> None:
    engine = ENGINES[key]
    assert engine.key == key
    fields = engine.values.keys() | engine.histograms.keys()
    assert fields | engine.counts.keys() <= set(EngineState.__struct_fields__)
    names = [part for names in (*engine.values.values(), *engine.histograms.values()) for part in names]
    assert all(name.startswith(engine.prefix) for whole in names for name in whole.split(" + "))
    assert not set(engine.known()) & engine.gone.keys()


def test_no_two_rows_claim_the_same() -> None:
    for one, other in combinations(ENGINES.values(), 2):
        assert not set(one.owners) & set(other.owners)
        assert not one.prefix or not other.prefix or not one.prefix.startswith(other.prefix)


@pytest.mark.parametrize(
    ("page", "key"), [("vllm_v1_0.32", "vllm"), ("sglang", "sglang"), ("llamacpp", "llamacpp"), ("tgi", "tgi")]
)
def test_a_recorded_page_has_the_newest_names(page: str, key: str) -> None:
    path = PAGES / f"{page}.txt"
    if not path.exists():
        pytest.skip(f"no recorded page {page}")
    samples = set(re.findall(r"^([a-z_]+:?[a-zA-Z0-9_]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    engine = ENGINES[key]
    gauges = [
        engine.newest(field) for field in ("running", "waiting", "prompt_tokens_total", "generation_tokens_total")
    ]
    assert set(gauges) <= samples


@pytest.mark.parametrize(
    ("owned_by", "name"),
    [("vllm", "vLLM"), ("VLLM", "vLLM"), ("sglang", "SGLang"), ("llamacpp", "llama.cpp"), ("library", "Ollama"),
     ("organization-owner", None), ("", None)],
)  # fmt: skip
def test_the_owner_of_a_model_names_its_engine(owned_by: str, name: str | None) -> None:
    assert name_owner(owned_by) == name


def test_a_version_is_asked_for_once_a_path_and_two_paths_prove_an_engine() -> None:
    paths = [(version.path, proves) for version, proves in version_paths()]
    assert paths == [("/version", None), ("/api/version", "Ollama"), ("/info", "TGI")]


def test_the_embedded_engine_is_known_by_its_name_or_its_version() -> None:
    assert is_simulated("cadenza", None)
    assert is_simulated("vLLM", "cadenza-0.1.0")
    assert not is_simulated("vLLM", "0.32.0")


def test_the_flags_that_show_a_page_of_metrics() -> None:
    assert metrics_advice() == "SGLang: --enable-metrics, llama.cpp: --metrics"
    assert [engine.key for engine in MEASURED] == ["vllm", "sglang", "tgi", "llamacpp"]
