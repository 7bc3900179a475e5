"""The flags of `sweep` and `run`: one row for each setting of `Spec`, in the order of the help."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cadenza.cli import values
from cadenza.spec import APIS, CACHES, DEFAULT_ENGINE, KEY_VARIABLE, TIMINGS

SLO_HELP = "bounds for goodput: ttft=500ms,tpot=50ms,latency=9s,attainment=0.95 (any of them)"
RUN_HELP = "folder of the run, its name below runs/, or latest"
_TIME_HINT = ": write 90s, 15m or 1h"
_LIST_HINT = ": write 1,2,4, 1-8, 1:64:x2 or 1:10:+3"


class Flag(NamedTuple):
    """A flag of one setting.

    field     of `Spec`; nested ones with a dot
    names     as typed, the long one last
    group     heading of the help; common: shown by --help, else by --help-all only
    parse     text → value; None: as it is
    hint      how the value is written, after the sentence of an error
    grid      of `sweep` alone
    more      further arguments of `add_argument`
    """

    field: str
    names: tuple[str, ...]
    group: str
    metavar: str | None
    help: str
    parse: Callable[[Any], Any] | None = None
    common: bool = False
    hint: str = ""
    grid: bool = False
    more: Mapping[str, Any] = {}

    @property
    def dest(self) -> str:
        return self.names[-1].removeprefix("--").replace("-", "_")


_SWITCH = {"action": "store_true", "default": None}
_REPEATED = {"action": "append"}
_TARGET, _LOAD, _PROMPTS, _ACCESS = "what to measure", "load", "prompts and answers", "access and time limits"
_TELEMETRY, _OUTPUT = "telemetry", "output"

FLAGS: tuple[Flag, ...] = (
    Flag("urls", ("--url",), _TARGET, "URL", "the same as URL, repeatable", common=True, more=_REPEATED),
    Flag(
        "engine",
        ("--engine",),
        _TARGET,
        "PROFILE",
        f"embedded engine (default: {DEFAULT_ENGINE})",
        common=True,
    ),
    Flag(
        "virtual",
        ("--virtual",),
        _TARGET,
        None,
        "run it in virtual time: no waiting, no sockets",
        common=True,
        more=_SWITCH,
    ),
    Flag(
        "models",
        ("--model",),
        _TARGET,
        "NAME",
        "model, repeatable; 'all' (default: the only one)",
        common=True,
        more=_REPEATED,
    ),
    Flag(
        "timing",
        ("--timing",),
        _TARGET,
        "LAW",
        f"timing law of the embedded engine: {', '.join(TIMINGS)} (default: the profile's first), or calibrated:D",
    ),
    Flag("speed", ("--speed",), _TARGET, "X", "run the embedded engine X times faster than real time", values.number),
    Flag("api", ("--api",), _TARGET, None, "API to use (default: chat)", more={"choices": APIS}),
    Flag(
        "concurrency",
        ("-c", "--concurrency"),
        _LOAD,
        "LIST",
        "requests in flight: 1,2,4 or 1-8 or 1:64:x2",
        values.values(values.whole),
        common=True,
        hint=_LIST_HINT,
    ),
    Flag(
        "rates_per_s",
        ("--rate",),
        _LOAD,
        "LIST",
        "arrivals per second: open loop, or capped by -c",
        values.values(values.number),
        common=True,
        hint=_LIST_HINT,
    ),
    Flag(
        "requests",
        ("--requests",),
        _LOAD,
        "N",
        "measured requests a point, or auto: until throughput, TTFT and TPOT are known to ±5 %% and P95 has its "
        "sample floor (default: auto; of the embedded engine 128, at least 12 a slot)",
        values.requests,
        common=True,
    ),
    Flag(
        "max_time_s",
        ("--max-time",),
        _LOAD,
        "T",
        "of all points, with auto: 90s, 15m, 1h (default: 15m)",
        values.duration_s,
        common=True,
        hint=_TIME_HINT,
    ),
    Flag(
        "duration_s",
        ("--duration",),
        _LOAD,
        "T",
        "send for this time a point instead: 30s, 5m, 1h",
        values.duration_s,
        common=True,
        hint=_TIME_HINT,
    ),
    Flag(
        "repeat",
        ("--repeat",),
        _LOAD,
        "K",
        "measure the grid K times, every second time backwards",
        values.whole,
        common=True,
        grid=True,
    ),
    Flag("arrivals", ("--arrivals",), _LOAD, "LAW", "poisson (default), gamma:K or constant"),
    Flag("warmup", ("--warmup",), _LOAD, "N", "unmeasured requests first (default: two a slot)", values.whole),
    Flag(
        "cooldown_s",
        ("--cooldown",),
        _LOAD,
        "T",
        "follow measured requests for at most T after the last was due, under the same load (default: 60s)",
        values.duration_s,
        hint=_TIME_HINT,
    ),
    Flag("seed", ("--seed",), _LOAD, "S", "repeat a plan exactly (default: a new one each run)", values.whole),
    Flag("workers", ("--workers",), _LOAD, "N", "client processes (default: as many as it needs)", values.whole),
    Flag(
        "prompts",
        ("--prompts",),
        _PROMPTS,
        "P",
        "builtin (default), random:N, random:LO:HI, sharegpt:FILE, jsonl:FILE",
        common=True,
    ),
    Flag(
        "output_tokens",
        ("--output-tokens",),
        _PROMPTS,
        "N",
        "N, or LO:HI drawn per request (default: 128:256)",
        values.token_range,
        common=True,
    ),
    Flag(
        "cache",
        ("--cache",),
        _PROMPTS,
        None,
        "unique (default): no prompt hits a prefix cache",
        more={"choices": CACHES},
    ),
    Flag(
        "ignore_eos",
        ("--ignore-eos",),
        _PROMPTS,
        None,
        "generate exactly --output-tokens (default), or stop where the model does",
        more={"action": argparse.BooleanOptionalAction},
    ),
    Flag("temperature", ("--temperature",), _PROMPTS, "T", "of sampling, from 0 up (default: 0.7)", values.number),
    Flag("extra_body", ("--extra-body",), _PROMPTS, "JSON", "fields to merge into every request body", values.body),
    Flag(
        "verify_tls",
        ("--insecure",),
        _ACCESS,
        None,
        "accept any TLS certificate",
        lambda given: not given,
        common=True,
        more=_SWITCH,
    ),
    Flag(
        "headers",
        ("--header",),
        _ACCESS,
        "'N: V'",
        "extra header, repeatable; its value is not kept",
        values.header_names,
        more=_REPEATED,
    ),
    *(
        Flag(
            f"timeouts.{field}",
            (name,),
            _ACCESS,
            "T",
            f"{what} (default: {default})",
            values.duration_s,
            hint=_TIME_HINT,
        )
        for field, name, what, default in (
            ("connect_s", "--connect-timeout", "to open a connection", "10s"),
            ("first_token_s", "--first-token-timeout", "to the first token", "2m"),
            ("stall_s", "--stall-timeout", "between two tokens", "1m"),
            ("total_s", "--timeout", "for a whole request", "30m"),
        )
    ),
    Flag("telemetry.off", ("--no-telemetry",), _TELEMETRY, None, "do not sample the machine", more=_SWITCH),
    Flag(
        "telemetry.interval_s",
        ("--telemetry-interval",),
        _TELEMETRY,
        "T",
        "between two samples (default: 0.5s)",
        values.duration_s,
        hint=_TIME_HINT,
    ),
    Flag("telemetry.root", ("--telemetry-root",), _TELEMETRY, "DIR", "folder that stands for / (default: /)"),
    Flag(
        "telemetry.metrics_url",
        ("--metrics-url",),
        _TELEMETRY,
        "URL",
        "the engine's page of metrics (default: /metrics below each base URL)",
    ),
    Flag("slo", ("--slo",), _OUTPUT, "B", SLO_HELP, values.parse_slo, common=True),
)
NAMES = {flag.field: flag.names[0] for flag in FLAGS}


class _HelpAll(argparse.Action):
    """`--help-all`: prints the help with the `rare` flags in it, which `--help` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, rare: Sequence[argparse.Action], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self._texts = [(action, action.help) for action in rare]
        for action in rare:
            action.help = argparse.SUPPRESS

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        self.reveal()
        parser.print_help()
        parser.exit()

    def reveal(self) -> None:
        """Show the rare flags from here on."""
        for action, text in self._texts:
            action.help = text


def reveal_all(parser: argparse.ArgumentParser) -> None:
    """Let `parser` show its rare flags, as `--help-all` does."""
    for action in parser._actions:
        if isinstance(action, _HelpAll):
            action.reveal()


def add_flags(parser: argparse.ArgumentParser, *, grid: bool) -> None:
    """Declare the flags. `grid`: with those that only a sweep of several points has."""
    parser.usage = "%(prog)s [flags] [URL ...]"
    parser.add_argument(
        "target", nargs="*", metavar="URL", help="base URL, e.g. http://localhost:8000; several share the load"
    )
    groups = {name: parser.add_argument_group(name) for name in (_TARGET, _LOAD, _PROMPTS, _ACCESS, _TELEMETRY)}
    output = groups[_OUTPUT] = parser.add_argument_group(_OUTPUT)
    rare = []
    for flag in FLAGS:
        if flag.grid and not grid:
            continue
        shown: dict[str, Any] = {} if flag.metavar is None else {"metavar": flag.metavar}
        action = groups[flag.group].add_argument(*flag.names, help=flag.help, **shown, **flag.more)
        if not flag.common:
            rare.append(action)
        if flag.field == "max_time_s":
            groups[_LOAD].add_argument("--quick", action="store_true", help="the same as --requests auto --max-time 2m")
    add_key_file(groups[_ACCESS])
    output.add_argument("--out", metavar="DIR", help="folder for the run, new or empty (default: one below runs/)")
    output.add_argument("--json", action="store_true", help="print the summary as JSON")
    output.add_argument("--quiet", action="store_true", help="no progress, no preflight screen")
    output.add_argument("--spec", metavar="FILE", help="settings from a TOML file or a run's manifest.json; flags win")
    few = ", ".join(action.option_strings[0] for action in rare)
    parser.add_argument("--help-all", action=_HelpAll, rare=rare, help=f"show all flags, also {few}")


def add_key_file(group: argparse._ActionsContainer) -> None:
    """`--api-key-file`, as every verb that connects to a server has it."""
    group.add_argument("--api-key-file", metavar="FILE", help=f"file with the API key (or the variable {KEY_VARIABLE})")
