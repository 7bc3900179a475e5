"""Every metric name that an expression may use, the old ones that it may not, and how to find the names in one.

A rule on a name that does not exist never fires and never errors; so no expression is taken whose names are not here.
"""

import re
from itertools import pairwise
from typing import NamedTuple

from cadenza.telemetry.engines import ENGINES
from cadenza.telemetry.families import FAMILIES

# prometheus-fastapi-instrumentator, in vLLM's server.
_HTTP_COUNTERS = ("http_requests",)
_HTTP_HISTOGRAMS = ("http_request_duration_seconds", "http_request_duration_highr_seconds")
# What Prometheus writes about each target and each alert by itself, and what it and Alertmanager tell of themselves.
_PROMETHEUS = (
    *("up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling"),
    *("scrape_series_added", "ALERTS", "ALERTS_FOR_STATE"),
    *("prometheus_build_info", "prometheus_config_last_reload_successful", "prometheus_tsdb_head_series"),
    *("prometheus_rule_evaluation_failures_total", "prometheus_notifications_dropped_total"),
    *("prometheus_notifications_alertmanagers_discovered", "prometheus_tsdb_head_samples_appended_total"),
    *("alertmanager_build_info", "alertmanager_alerts", "alertmanager_notifications_failed_total"),
)

# Name → what to write in its place.
OLD_NAMES = {name: why for engine in ENGINES.values() for name, why in engine.gone.items()} | {
    "rocm_gpu_busy_percent": "an exporter of one article: gpu_busy_ratio, 0 to 1",
    "rocm_vram_used_bytes": 'an exporter of one article: gpu_memory_used_bytes{pool="vram"}',
    "rocm_vram_total_bytes": 'an exporter of one article: gpu_memory_size_bytes{pool="vram"}',
    "rocm_temperature_celsius": "an exporter of one article: gpu_temperature_celsius",
}

_SERIES = ("_bucket", "_sum", "_count")

# Of cadenza's exporter before the label `vendor`.
OLD_NAMES |= {
    f"{prefix}_{name.removeprefix('gpu_')}": f'renamed: {name}{{vendor="{vendor}"}}'
    for name in FAMILIES
    if name.startswith("gpu_")
    for prefix, vendor in (("amdgpu", "amd"), ("nvidia", "nvidia"))
}


def _all() -> frozenset[str]:
    names = {*FAMILIES, *_PROMETHEUS}
    names |= {name for engine in ENGINES.values() for name in engine.known()}
    names |= {f"{name}_total" for name in _HTTP_COUNTERS}
    return frozenset(names | {f"{name}{series}" for name in _HTTP_HISTOGRAMS for series in _SERIES})


KNOWN = _all()
# What a target carries whatever it exports; `le` is a histogram's.
TARGET_LABELS = frozenset({"job", "instance", "node", "le"})

_TOKEN = re.compile(
    r"""
      (?P<string> "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` )
    | (?P<comment> \#[^\n]* )
    | (?P<range> \[[^\]]*\] )
    | (?P<variable> \$\{?\w+\}? )
    | (?P<number> (?:0x[0-9a-fA-F]+ | \d[\w.]* | \.\d+) )
    | (?P<name> [a-zA-Z_:][a-zA-Z0-9_:]* )
    | (?P<mark> [{}(),] | =~ | !~ | != | = )
    """,
    re.VERBOSE,
)
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_WORDS = _GROUPING | {"and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end", "atan2"}


class Use(NamedTuple):
    """A metric in an expression, and the labels that its braces match on."""

    name: str
    labels: tuple[str, ...]


def find_uses(expression: str) -> list[Use]:
    """The metrics of a PromQL expression in order, Grafana's variables allowed.

    Braces without a name before them count as a metric with an empty name. The result for text that is no
    PromQL is unspecified; promtool checks the syntax.
    """
    tokens = [(match.lastgroup, match.group()) for match in _TOKEN.finditer(expression) if match.lastgroup != "comment"]
    uses: list[Use] = []
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1].lower() if at + 1 < len(tokens) else ""
        at += 1
        name = ""
        if kind == "name":
            if text.lower() in _GROUPING and following == "(":
                at = _after(tokens, at, ")")
            # A name before a bracket is a function; before `by`, an operator: `sum by (x) (…)`.
            if text.lower() in _WORDS or following in ("(", "by", "without"):
                continue
            if following != "{":
                uses.append(Use(text, ()))
                continue
            name, at = text, at + 1
        elif text != "{":
            continue
        end = _after(tokens, at, "}")
        uses.append(Use(name, _labels(tokens[at:end])))
        at = end
    return uses


def _labels(tokens: list[tuple[str | None, str]]) -> tuple[str, ...]:
    return tuple(one[1] for one, sign in pairwise(tokens) if one[0] == "name" and sign[1] in ("=", "!=", "=~", "!~"))


def _after(tokens: list[tuple[str | None, str]], at: int, mark: str) -> int:
    """The place behind the next `mark`, or the end."""
    return next((place + 1 for place in range(at, len(tokens)) if tokens[place][1] == mark), len(tokens))


def find_wrong_names(expression: str, recorded: frozenset[str] = frozenset()) -> list[str]:
    """A sentence for each name that no known program exports, and each label that a family of cadenza has not.

    recorded  the names that the bundle's rules record
    """
    wrong = []
    for name, labels in find_uses(expression):
        if "__name__" in labels or not name:
            wrong.append("a selector without a metric name cannot be checked: write the name before the braces")
        elif name in recorded:
            continue
        elif old := _find_old(name):
            wrong.append(f"{name}: {old}")
        elif name not in KNOWN:
            wrong.append(f"{name} is not exported by cadenza, vLLM, SGLang, llama.cpp or Prometheus")
        elif name in FAMILIES and (strange := set(labels) - TARGET_LABELS - set(FAMILIES[name].labels)):
            has = ", ".join(FAMILIES[name].labels) or "none"
            wrong.append(f"{name} has no label {', '.join(sorted(strange))}; its labels: {has}")
    return list(dict.fromkeys(wrong))


def _find_old(name: str) -> str | None:
    return OLD_NAMES.get(name) or next(
        (OLD_NAMES[stem] for end in _SERIES if (stem := name.removesuffix(end)) != name and stem in OLD_NAMES), None
    )
