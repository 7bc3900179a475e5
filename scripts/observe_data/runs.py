"""The dashboard of runs: this time range compared with an equally long one, `ago` earlier."""

from observe_data import vocabulary as words
from observe_data.grafana import Json, Panel, Query, Section, dashboard, text_variable
from observe_data.panels import CARD, INSTANCES, LOAD_NOTE, MODELS, NODES, OF_MODEL, ON_NODE, RUN_NOTE
from observe_data.vocabulary import BY_MODEL, Series, by_model, quantile, rate

_RANGE = "$__range"
_AGO = "offset $ago"
_DAY = "1d"


def runs() -> Json:
    """Two time ranges, as tables and as overlaid curves."""
    sections = (
        Section("Runs", (_list(),)),
        Section("Selected time range", (_table("Selected time range", ""),)),
        Section("Compared time range", (_table("Equally long time range, $ago ago", _AGO),)),
        Section("Engines, overlaid", _curves()),
        Section("Cards, overlaid", _cards()),
    )
    text = (
        "Set the time range to a run (purple, by name; blue: engine load from any client), and `ago` to the value "
        "listed for the other run. Client-side figures are in the reports of the runs: cadenza show RUN."
    )
    variables = (NODES, INSTANCES, MODELS, text_variable("ago", "Compare with (ago)", "1h"))
    return dashboard("cadenza-runs", "cadenza: runs", text, sections, variables, (LOAD_NOTE, RUN_NOTE))


def _list() -> Panel:
    """The runs that `cadenza exporter --runs` exported within a day; `ago` lays one's start on the left edge."""
    began = f"max_over_time(cadenza_run_start_time_seconds[{_DAY}])"
    columns = (
        ("Start", f"1000 * {began}", "dateTimeAsIso"),
        ("Last seen", f"1000 * max_over_time(timestamp(cadenza_run_start_time_seconds)[{_DAY}:5s])", "dateTimeAsIso"),
        ("Tokens per second, maximum", f"max_over_time(run:engine_generation_tokens:rate1m[{_DAY}])", "short"),
        ("ago (s)", f"round(time() - $__range_s - {began})", "none"),
    )
    queries = tuple(
        Query(f"sort_desc(max by (node, run) (\n{expr}\n))", name, True, unit) for name, expr, unit in columns
    )
    text = (
        "Runs within 24 h before the end of the time range, from cadenza exporter --runs DIR. Tokens are those of all "
        "engines with the run's model, from any client. Enter a run's `ago` above, as in 5400s, to draw it from the "
        "left edge."
    )
    return Panel(
        "Runs of the last day", queries, "short", "table", 24, 6, text, empty="needs cadenza exporter --runs DIR"
    )


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
        ("Tokens per second under load", flowing.replace(" )", ")"), "short"),
        ("Requests running, maximum", over("model:engine_requests_running:sum", "max_over_time"), "short"),
        ("TTFT P50", of(0.5, words.TTFT), "s"),
        ("TTFT P99", of(0.99, words.TTFT), "s"),
        ("ITL P50", of(0.5, words.ITL), "s"),
        ("ITL P99", of(0.99, words.ITL), "s"),
        ("KV cache usage, maximum", over("model:engine_kv_usage:max", "max_over_time"), "percentunit"),
        ("Preemptions", counted(words.PREEMPTIONS), "short"),
    )
    queries = tuple(Query(f"max by ({BY_MODEL}) (\n{expr}\n)", name, True, unit) for name, expr, unit in columns)
    return Panel(title, queries, "short", "table", 24, 6)


def _curves() -> tuple[Panel, ...]:
    legend = "{{model_name}} {{instance}}"
    wanted = (
        ("Generated tokens per second", "model:engine_generation_tokens:rate1m", "short"),
        ("Requests running", "model:engine_requests_running:sum", "short"),
        ("Requests waiting", "model:engine_requests_waiting:sum", "short"),
        ("TTFT P99", "model:engine_ttft_seconds:p99_rate1m", "s"),
        ("ITL P99", "model:engine_itl_seconds:p99_rate1m", "s"),
        ("KV cache usage", "model:engine_kv_usage:max", "percentunit"),
    )
    return tuple(_pair(title, name, OF_MODEL, legend, unit, "no traffic") for title, name, unit in wanted)


def _cards() -> tuple[Panel, ...]:
    wanted = (
        ("Card utilization", "gpu:busy:ratio", CARD, "percentunit", "no card"),
        ("Card power", "gpu:power_watts:max", CARD, "watt", "no card"),
        ("Margin to temperature limit", "gpu:temperature_margin_celsius:min", CARD, "celsius", "no card"),
        ("Energy per token", "node:gpu_energy_per_token:joules", "{{node}}", "joule", "needs 1 min of load"),
    )
    return tuple(_pair(title, name, ON_NODE, legend, unit, none, 6) for title, name, legend, unit, none in wanted)


def _pair(title: str, name: str, where: str, legend: str, unit: str, empty: str, width: int = 8) -> Panel:
    queries = (Query(f"{name}{{{where}}}", legend), Query(f"{name}{{{where}}} {_AGO}", f"$ago ago {legend}"))
    return Panel(title, queries, unit, width=width, empty=empty)
