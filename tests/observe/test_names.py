"""Names in PromQL: which there are, and which of them exist."""

import re
from pathlib import Path

import pytest

from cadenza.observe.names import KNOWN, OLD_NAMES, Use, find_uses, find_wrong_names
from cadenza.telemetry.families import FAMILIES

ROOT = Path(__file__).parents[1]
ENGINES = ROOT / "data" / "telemetry" / "engines"


def series_of(page: str) -> set[str]:
    """The names of a page's samples, without the times of creation that some clients add."""
    names = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line and not line.startswith("#")}
    return {name for name in names if not name.endswith("_created")}


def test_a_page_of_the_real_vllm_has_no_name_that_is_not_known() -> None:
    page = series_of((ROOT / "golden" / "metrics" / "vllm-0.32.txt").read_text(encoding="utf-8"))
    assert {"vllm:num_requests_running", "vllm:generation_tokens_total"} <= page
    assert page - KNOWN == set()


@pytest.mark.parametrize("name", ["vllm_v1_0.32", "sglang", "llamacpp"])
def test_pages_of_other_engines_have_none_either(name: str) -> None:
    page = {one for one in series_of((ENGINES / f"{name}.txt").read_text(encoding="utf-8")) if ":" in one}
    assert page - KNOWN == set()


def test_names_that_are_gone_are_not_known() -> None:
    assert not KNOWN & OLD_NAMES.keys()
    assert FAMILIES.keys() <= KNOWN


def test_a_page_of_an_old_vllm_has_names_that_are_told_to_be_old() -> None:
    page = series_of((ENGINES / "vllm_v0_0.6.txt").read_text(encoding="utf-8"))
    told = [sentence for name in page for sentence in find_wrong_names(name) if "gone" in sentence]
    assert any(sentence.startswith("vllm:gpu_cache_usage_perc: ") for sentence in told)
    assert any(sentence.startswith("vllm:time_per_output_token_seconds_bucket: ") for sentence in told)


@pytest.mark.parametrize(
    ("expression", "uses"),
    [
        ("up", [Use("up", ())]),
        ('up{job="engine",node!="a"} == 0', [Use("up", ("job", "node"))]),
        ("sum by (node, gpu) (gpu_up)", [Use("gpu_up", ())]),
        ("sum (gpu_up) by (node)", [Use("gpu_up", ())]),
        ("rate(vllm:prompt_tokens_total[1m] offset 5m)", [Use("vllm:prompt_tokens_total", ())]),
        ('rate(a_total{b=~"$c"}[$__rate_interval])', [Use("a_total", ("b",))]),
        ("a and on (node) group_left (x) b", [Use("a", ()), Use("b", ())]),
        ("a unless ignoring (state) b or c > bool 1e6", [Use("a", ()), Use("b", ()), Use("c", ())]),
        ('label_replace(a, "x", "$1", "y", "not_a_name(.*)")', [Use("a", ())]),
        ("a # b\n+ c", [Use("a", ()), Use("c", ())]),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket[5m])))", [Use("a_bucket", ())]),
        ('{__name__=~"vllm:.*"}', [Use("", ("__name__",))]),
        ("a{}", [Use("a", ())]),
        ("max_over_time((a > 0)[15m:5s] offset 1h)", [Use("a", ())]),
        ("Inf + NaN + a atan2 b", [Use("a", ()), Use("b", ())]),
        ('a{b="x\\"y}"} / c', [Use("a", ("b",)), Use("c", ())]),
        ("a{", [Use("a", ())]),
        ("sum by (", []),
        ("", []),
    ],
)
def test_metrics_are_found_in_an_expression(expression: str, uses: list[Use]) -> None:
    assert find_uses(expression) == uses


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("vllm:gpu_cache_usage_factor > 0.92", "never existed: vllm:kv_cache_usage_perc"),
        ("rate(vllm:avg_generation_throughput_tok_per_s[1m]) < 50", "rate(vllm:generation_tokens_total[1m])"),
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("rate(vllm:time_per_output_token_seconds_bucket[1m])", "vllm:inter_token_latency_seconds"),
        ("rocm_gpu_busy_percent > 98", "gpu_busy_ratio"),
        ('amdgpu_busy_ratio{gpu="x"} > 0.9', 'gpu_busy_ratio{vendor="amd"}'),
        ("rate(nvidia_energy_joules_total[1m])", 'gpu_energy_joules_total{vendor="nvidia"}'),
        ("gpu_bussy_ratio", "is not exported by"),
        ('gpu_busy_ratio{card="0"}', "no label card; its labels: gpu"),
        ('{job="engine"}', "without a metric name"),
        ('up{__name__="x"}', "without a metric name"),
    ],
)
def test_a_wrong_name_is_told_with_the_right_one(expression: str, part: str) -> None:
    told = find_wrong_names(expression)
    assert len(told) == 1
    assert part in told[0]


def test_what_rules_record_is_known() -> None:
    assert find_wrong_names("gpu:busy:ratio > 1", frozenset({"gpu:busy:ratio"})) == []
    assert len(find_wrong_names("gpu:busy:ratio > 1")) == 1
    assert find_wrong_names('gpu_throttled{node="a",gpu="b",reason="c"} == 1') == []
