"""The dashboard of runs: this time range beside the same length of time, some while ago."""

from cadenza.observe import vocabulary as words
from cadenza.observe.grafana import Json, Panel, Query, Section, dashboard, text_variable
from cadenza.observe.panels import CARD, INSTANCES, LOAD_NOTE, MODELS, NODES, OF_MODEL, ON_NODE
from cadenza.observe.vocabulary import BY_MODEL, Series, by_model, quantile, rate

_RANGE = "$__range"
_AGO = "offset $ago"


def runs() -> Json:
    """Two stretches of time, as tables and as curves over each other."""
    sections = (
        Section("This time range", (_table("In this time range", ""),)),
        Section("Some while ago", (_table("As long a time, $ago ago", _AGO),)),
        Section("Over each other", _curves()),
        Section("Cards, over each other", _cards()),
    )
    text = (
        "Put the time range on a run (blue: load that an engine saw, whoever sent it), and `ago` to how much earlier "
        "the other run was, as in 1h or 90m. What the client saw is in the runs' own reports: cadenza show RUN."
    )
    variables = (NODES, INSTANCES, MODELS, text_variable("ago", "Compare with, ago", "1h"))
    return dashboard("cadenza-runs", "cadenza: runs", text, sections, variables, (LOAD_NOTE,))


def _table(title: str, offset: str) -> Panel:
    def over(name: str, function: str) -> str:
        return f"{function}({name}{{{OF_MODEL}}}[{_RANGE}] {offset})".replace(" )", ")")

    def counted(series: Series) -> str:
        return by_model(rate(series, _RANGE, OF_MODEL, offset)) + " * $__range_s"

    def of(share: float, series: Series) -> str:
        return quantile(share, series, _RANGE, OF_MODEL, offset)

    flowing = f"avg_over_time((model:engine_generation_tokens:rate1m{{{OF_MODEL}}} > 0)[{_RANGE}:5s] {offset})"
    columns = (
        ("Requests", counted(words.ENDED), "short"),
        ("Tokens", counted(words.GENERATED_TOKENS), "short"),
        ("Tokens a second, while any", flowing.replace(" )", ")"), "short"),
        ("At most at once", over("model:engine_requests_running:sum", "max_over_time"), "short"),
        ("TTFT P50", of(0.5, words.TTFT), "s"),
        ("TTFT P99", of(0.99, words.TTFT), "s"),
        ("Between tokens P50", of(0.5, words.ITL), "s"),
        ("Between tokens P99", of(0.99, words.ITL), "s"),
        ("KV cache at most", over("model:engine_kv_usage:max", "max_over_time"), "percentunit"),
        ("Preemptions", counted(words.PREEMPTIONS), "short"),
    )
    queries = tuple(Query(f"max by ({BY_MODEL}) (\n{expr}\n)", name, True, unit) for name, expr, unit in columns)
    return Panel(title, queries, "short", "table", 24, 6)


def _curves() -> tuple[Panel, ...]:
    legend = "{{model_name}} {{instance}}"
    wanted = (
        ("Tokens generated a second", "model:engine_generation_tokens:rate1m", "short"),
        ("Requests running", "model:engine_requests_running:sum", "short"),
        ("Requests waiting", "model:engine_requests_waiting:sum", "short"),
        ("Time to first token, P99", "model:engine_ttft_seconds:p99_rate1m", "s"),
        ("Time between tokens, P99", "model:engine_itl_seconds:p99_rate1m", "s"),
        ("KV cache in use", "model:engine_kv_usage:max", "percentunit"),
    )
    return tuple(_pair(title, name, OF_MODEL, legend, unit, "no traffic") for title, name, unit in wanted)


def _cards() -> tuple[Panel, ...]:
    wanted = (
        ("Busy", "gpu:busy:ratio", CARD, "percentunit"),
        ("Power", "gpu:power_watts:max", CARD, "watt"),
        ("To the temperature limit", "gpu:temperature_margin_celsius:min", CARD, "celsius"),
        ("Energy per token", "node:gpu_energy_per_token:joules", "{{node}}", "joule"),
    )
    return tuple(_pair(title, name, ON_NODE, legend, unit, "no card", 6) for title, name, legend, unit in wanted)


def _pair(title: str, name: str, where: str, legend: str, unit: str, empty: str, width: int = 8) -> Panel:
    queries = (Query(f"{name}{{{where}}}", legend), Query(f"{name}{{{where}}} {_AGO}", f"$ago ago {legend}"))
    return Panel(title, queries, unit, width=width, empty=empty)
