"""The dashboard of runs: this time range beside the same length of time, some while ago."""

from cadenza.observe import vocabulary as words
from cadenza.observe.grafana import Json, Panel, Query, Section, dashboard, text_variable
from cadenza.observe.panels import CARD, INSTANCES, LOAD_NOTE, MODELS, NODES, OF_MODEL, ON_NODE, RUN_NOTE
from cadenza.observe.vocabulary import BY_MODEL, Series, by_model, quantile, rate

_RANGE = "$__range"
_AGO = "offset $ago"
_DAY = "1d"


def runs() -> Json:
    """Two stretches of time, as tables and as curves over each other."""
    sections = (
        Section("Runs", (_list(),)),
        Section("This time range", (_table("In this time range", ""),)),
        Section("Some while ago", (_table("As long a time, $ago ago", _AGO),)),
        Section("Over each other", _curves()),
        Section("Cards, over each other", _cards()),
    )
    text = (
        "Put the time range on a run (purple, by name; blue: load that an engine saw, whoever sent it), and `ago` to "
        "what the list says of the other one. What the client saw is in the runs' own reports: cadenza show RUN."
    )
    variables = (NODES, INSTANCES, MODELS, text_variable("ago", "Compare with, ago", "1h"))
    return dashboard("cadenza-runs", "cadenza: runs", text, sections, variables, (LOAD_NOTE, RUN_NOTE))


def _list() -> Panel:
    """The runs that `cadenza exporter --runs` told of within a day; `ago` lays one's start on the left edge."""
    began = f"max_over_time(cadenza_run_start_time_seconds[{_DAY}])"
    columns = (
        ("Began", f"1000 * {began}", "dateTimeAsIso"),
        ("Seen last", f"1000 * max_over_time(timestamp(cadenza_run_start_time_seconds)[{_DAY}:5s])", "dateTimeAsIso"),
        ("Tokens a second at most", f"max_over_time(run:engine_generation_tokens:rate1m[{_DAY}])", "short"),
        ("ago, in s", f"round(time() - $__range_s - {began})", "none"),
    )
    queries = tuple(
        Query(f"sort_desc(max by (node, run) (\n{expr}\n))", name, True, unit) for name, expr, unit in columns
    )
    text = (
        "Within a day before the end of the time range, by cadenza exporter --runs DIR. Tokens are those of engines "
        "with the run's model, whoever asked for them. Give a run's `ago` to the choice above, as in 5400s, and it is "
        "drawn from the left edge on."
    )
    return Panel("Runs of the last day", queries, "short", "table", 24, 6, text, empty="cadenza exporter --runs DIR")


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
        ("Busy", "gpu:busy:ratio", CARD, "percentunit", "no card"),
        ("Power", "gpu:power_watts:max", CARD, "watt", "no card"),
        ("To the temperature limit", "gpu:temperature_margin_celsius:min", CARD, "celsius", "no card"),
        ("Energy per token", "node:gpu_energy_per_token:joules", "{{node}}", "joule", "no minute without a pause"),
    )
    return tuple(_pair(title, name, ON_NODE, legend, unit, none, 6) for title, name, legend, unit, none in wanted)


def _pair(title: str, name: str, where: str, legend: str, unit: str, empty: str, width: int = 8) -> Panel:
    queries = (Query(f"{name}{{{where}}}", legend), Query(f"{name}{{{where}}} {_AGO}", f"$ago ago {legend}"))
    return Panel(title, queries, unit, width=width, empty=empty)
