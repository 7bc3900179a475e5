"""The flags that `sweep` and `run` share, and how they become a `Spec` and `Credentials`."""

import argparse
import math
import os
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from cadenza.errors import UsageError
from cadenza.record import printable
from cadenza.spec import Credentials, Slo, Spec

DEFAULT_ENGINE = "mi50-rx6900xt"
KEY_VARIABLE = "CADENZA_API_KEY"
QUICK_S = 120.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600}
# A law may have variants, written after a colon; which of them there are is the profile's business.
TIMINGS = ("calibrated", "physics", "measured")
SLO_HELP = "count goodput by these bounds: ttft=500ms,tpot=50ms,latency=9s,attainment=0.95 (any of them)"
_SLO_NAMES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "latency": "latency_ms", "attainment": "attainment"}
_UNITS_MS = {"ms": 1, "s": 1000, "": 1}
_QUANTITY = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([^0-9\s]*)")


class _HelpAll(argparse.Action):
    """`--help-all`: prints the help with the `rare` flags in it, which `--help` leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, rare: Sequence[argparse.Action], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self._texts = [(action, action.help) for action in rare]
        for action in rare:
            action.help = argparse.SUPPRESS

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for action, text in self._texts:
            action.help = text
        parser.print_help()
        parser.exit()


def add_flags(parser: argparse.ArgumentParser, *, grid: bool) -> None:
    """Declare the flags. `grid`: lists are allowed where one point takes one value."""
    rare = [
        *_add_target(parser.add_argument_group("what to measure")),
        *_add_load(parser.add_argument_group("load"), grid=grid),
        *_add_prompts(parser.add_argument_group("prompts")),
        *_add_access(parser.add_argument_group("access")),
    ]
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="folder for the run, new or empty (default: one below runs/)")
    output.add_argument("--slo", metavar="B", help=SLO_HELP)
    output.add_argument("--json", action="store_true", help="print the summary as JSON")
    output.add_argument("--quiet", action="store_true", help="no progress, no preflight screen")
    output.add_argument("--spec", metavar="FILE", help="settings from a TOML file or a run's manifest.json; flags win")
    few = ", ".join(action.option_strings[0] for action in rare)
    parser.add_argument("--help-all", action=_HelpAll, rare=rare, help=f"show all flags, also {few}")


def _add_target(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """The rare ones of them, as of every group."""
    group.add_argument("--url", action="append", metavar="URL", help="base URL, e.g. http://localhost:8000, repeatable")
    group.add_argument(
        "--engine", metavar="PROFILE", help=f"the embedded engine (default, without --url: {DEFAULT_ENGINE})"
    )
    group.add_argument("--virtual", action="store_true", help="run it in virtual time: no waiting, no sockets")
    group.add_argument(
        "--model", action="append", metavar="NAME", help="model, repeatable; 'all' (default: the only one)"
    )
    timing = "timing law of the embedded engine: calibrated (default), calibrated:D, physics, measured"
    return [
        group.add_argument("--timing", metavar="LAW", help=timing),
        group.add_argument("--speed", metavar="X", help="run the embedded engine X times faster than real time"),
        group.add_argument("--api", choices=("chat", "completions"), help="API to speak (default: chat)"),
    ]


def _add_load(group: argparse._ArgumentGroup, *, grid: bool) -> list[argparse.Action]:
    several, one = (",…", "1,2,4,8,16") if grid else ("", "1")
    group.add_argument("-c", "--concurrency", metavar="C" + several, help=f"requests in flight (default: {one})")
    group.add_argument("--rate", metavar="R" + several, help="arrivals per second: open loop, or capped by -c")
    group.add_argument(
        "--requests",
        metavar="N",
        help="measured requests a point, or auto: until throughput, TTFT and TPOT are known to ±5 %% and P95 has its "
        "sample floor (default: auto; of the embedded engine 128, at least 12 a slot)",
    )
    group.add_argument("--max-time", metavar="T", help="all points together, with auto: 90s, 15m, 1h (default: 15m)")
    group.add_argument("--quick", action="store_true", help="the same as --requests auto --max-time 2m")
    group.add_argument("--duration", metavar="S", help="send for S seconds a point instead")
    if grid:
        group.add_argument("--repeat", metavar="K", help="measure the grid K times, in turn forwards and backwards")
    cooldown = "follow measured requests for at most T after the last was due, under the same load (default: 60s)"
    return [
        group.add_argument("--arrivals", metavar="LAW", help="poisson (default), gamma:K or constant"),
        group.add_argument("--warmup", metavar="N", help="unmeasured requests first (default: two a slot)"),
        group.add_argument("--cooldown", metavar="T", help=cooldown),
        group.add_argument("--seed", metavar="S", help="repeat a plan exactly (default: a new one each run)"),
    ]


def _add_prompts(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    group.add_argument(
        "--prompts", metavar="P", help="builtin (default), random:N, random:LO:HI, sharegpt:FILE, jsonl:FILE"
    )
    group.add_argument("--output-tokens", metavar="N", help="N, or LO:HI drawn per request (default: 128:256)")
    cache = "unique (default): no prompt hits a prefix cache"
    return [
        group.add_argument("--cache", choices=("unique", "reuse"), help=cache),
        group.add_argument("--extra-body", metavar="JSON", help="fields to merge into every request body"),
    ]


def _add_access(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    group.add_argument("--api-key-file", metavar="FILE", help=f"file with the API key (or the variable {KEY_VARIABLE})")
    header = "extra header; its value is kept nowhere"
    return [group.add_argument("--header", action="append", metavar="'N: V'", help=header)]


def read_spec(args: argparse.Namespace, *, default_concurrency: tuple[int, ...]) -> Spec:
    """Flags over the spec file over the defaults, as one frozen value. Raises UsageError."""
    fields: dict[str, Any] = {"concurrency": default_concurrency} | (_read_file(args.spec) if args.spec else {})
    for name, (flag, parse) in _FLAGS.items():
        given = getattr(args, name, None)
        if given is not None:
            fields[flag] = parse(given)
    if args.rate is not None and args.concurrency is None:
        fields["concurrency"] = ()
    if args.virtual:
        fields["virtual"] = True
    fields |= _until_enough(args)
    if args.header:
        fields["headers"] = tuple(_split_header(header)[0] for header in args.header)
    fields.setdefault("seed", random.SystemRandom().randrange(1 << 31))
    if not fields.get("urls") and not fields.get("engine"):
        fields["engine"] = DEFAULT_ENGINE
    try:
        spec = msgspec.convert(fields, type=Spec, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the settings do not fit together: {printable(str(error))}") from None
    _check(spec, args)
    return spec


def read_credentials(args: argparse.Namespace) -> Credentials:
    """Key and header values: from the environment, a file, and the command line, into nothing that is written."""
    key = os.environ.get(KEY_VARIABLE) or None
    if args.api_key_file:
        try:
            key = Path(args.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"--api-key-file {args.api_key_file}: {why}") from None
        if not key:
            raise UsageError(f"--api-key-file {args.api_key_file} is empty")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("the API key has characters in it that cannot stand in a header")
    return Credentials(key, tuple(_split_header(header) for header in getattr(args, "header", None) or ()))


def _check(spec: Spec, args: argparse.Namespace) -> None:
    for name, seconds in msgspec.structs.asdict(spec.timeouts).items():
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"{name} = {seconds:g} below timeouts is not a number of seconds above 0")
    if spec.requests == "auto" and spec.duration_s is not None:
        raise UsageError("--requests auto and --duration exclude each other: --max-time bounds the first")
    if spec.urls and spec.engine:
        raise UsageError("--url and --engine exclude each other: measure your server, or the embedded engine")
    if spec.urls and args.speed is not None:
        raise UsageError("--speed is for the embedded engine: a real server runs at its own")
    if spec.urls and spec.virtual:
        raise UsageError("--virtual is for the embedded engine: a real server needs real time")
    if spec.urls and spec.timing is not None:
        raise UsageError("--timing is for the embedded engine: a real server has a timing of its own")
    if spec.virtual and spec.speed != 1:
        raise UsageError("--virtual and --speed exclude each other: virtual time goes as fast as it can")
    if spec.output_tokens is not None and not 1 <= spec.output_tokens[0] <= spec.output_tokens[1]:
        raise UsageError(f"--output-tokens {spec.output_tokens[0]}:{spec.output_tokens[1]}: LO must be from 1 to HI")


def _until_enough(args: argparse.Namespace) -> dict[str, Any]:
    """What --quick and --max-time say: both are of `--requests auto`, whatever a file has."""
    bounded = args.requests not in (None, "auto") or args.duration is not None
    if args.quick and (bounded or args.max_time is not None):
        raise UsageError("--quick sets --requests and --max-time: leave these and --duration out")
    if args.max_time is not None and bounded:
        raise UsageError("--max-time is for --requests auto: leave it out, or --requests N and --duration")
    if args.quick:
        return {"requests": "auto", "max_time_s": QUICK_S, "duration_s": None}
    return {} if args.max_time is None else {"requests": "auto", "duration_s": None}


def _read_file(name: str) -> dict[str, Any]:
    try:
        data = Path(name).read_bytes()
        if name.endswith(".json"):
            value = msgspec.json.decode(data)
            value = value.get("spec", value) if isinstance(value, dict) else value
        else:
            value = tomllib.loads(data.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise UsageError(f"--spec {name}: {printable(str(error))}") from None
    if not isinstance(value, dict):
        raise UsageError(f"--spec {name}: not a table of settings")
    return value


def _split_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError("--header is written 'Name: value'")
    return name.strip(), value.strip()


def _number(flag: str, low: float, *, above: bool = False) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low or (above and value == low):
            raise UsageError(f"{flag} {printable(text, 40)!r} is not a number {'above' if above else 'from'} {low:g}")
        return value

    return parse


def _whole(flag: str, low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.strip().isascii() and text.strip().removeprefix("-").isdigit()) or int(text) < low:
            raise UsageError(f"{flag} {printable(text, 40)!r} is not a whole number from {low} up")
        return int(text)

    return parse


def _requests(text: str) -> int | str:
    if text.strip() == "auto":
        return "auto"
    try:
        return _whole("--requests", 1)(text)
    except UsageError as error:
        raise UsageError(f"{error}, nor auto") from None


def _time_s(flag: str, low: float, *, above: bool = False) -> Callable[[str], float]:
    """Seconds, or with a unit: 90s, 15m, 1h."""

    def parse(text: str) -> float:
        unit = _UNITS_S.get(text.strip()[-1:])
        number = text.strip()[:-1] if unit else text
        try:
            return (unit or 1) * _number(flag, low, above=above)(number)
        except UsageError:
            kind = "above" if above else "from"
            raise UsageError(f"{flag} {printable(text, 40)!r} is not a time {kind} {low:g} s: 90s, 15m, 1h") from None

    return parse


def _list(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse_list(text: str) -> tuple[Any, ...]:
        # A point measured twice would be two rows that cannot be told apart.
        return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))

    return parse_list


def _timing(text: str) -> str:
    if text.partition(":")[0] not in TIMINGS:
        raise UsageError(f"--timing knows {', '.join(TIMINGS[:-1])} and {TIMINGS[-1]}, not {printable(text, 40)!r}")
    return text


def _range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    parse = _whole("--output-tokens", 1)
    return (parse(low), parse(high)) if colon else (parse(low), parse(low))


def _body(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--extra-body is not JSON: {printable(str(error))}") from None
    if not isinstance(value, dict):
        raise UsageError("--extra-body is not a JSON object: write it as '{\"field\": value}'")
    return value


def parse_slo(text: str) -> Slo:
    """`ttft=500ms,tpot=50ms,latency=9s,attainment=0.95`, any of them; a number without a unit is ms.

    Raises UsageError: an unknown name or unit, a name given twice, a value out of its range, no bound at all.
    """
    values: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _SLO_NAMES:
            raise UsageError(f"--slo knows ttft, tpot, latency and attainment, not {printable(name, 40)!r}")
        if not equals:
            raise UsageError(
                f"--slo {name} has no value: write e.g. {name}={'0.95' if name == 'attainment' else '500ms'}"
            )
        if _SLO_NAMES[name] in values:
            raise UsageError(f"--slo gives {name} twice: give each bound once")
        values[_SLO_NAMES[name]] = _share(value) if name == "attainment" else _bound_ms(name, value)
    try:
        return Slo(**values)
    except ValueError:  # each value is in its range by now
        raise UsageError("--slo attainment needs a bound to be attained: add ttft, tpot or latency") from None


def _bound_ms(name: str, text: str) -> float:
    """A time in ms, without the rounding of a product of floats: 8.2s is the float 8200."""
    given = f"--slo {name} {printable(text, 40)!r}"
    match = _QUANTITY.fullmatch(text)
    if match is not None and match[2] not in _UNITS_MS:
        raise UsageError(f"{given}: the unit {printable(match[2], 20)!r} is not known; use ms or s")
    value_ms = math.nan
    if match is not None and math.isfinite(float(match[1])):  # a Decimal has no infinity to overflow to
        value_ms = float(Decimal(match[1]) * _UNITS_MS[match[2]])
    if not (math.isfinite(value_ms) and value_ms > 0):
        raise UsageError(f"{given} is not a time above 0: write e.g. {name}=500ms or {name}=0.5s")
    return value_ms


def _share(text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] or not 0 < float(match[1]) <= 1:
        raise UsageError(f"--slo attainment {printable(text, 40)!r} is not a share above 0 and at most 1, e.g. 0.95")
    return float(match[1])


# argument → (field of the spec, how its text is read)
_FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "url": ("urls", tuple),
    "engine": ("engine", str),
    "timing": ("timing", _timing),
    "speed": ("speed", _number("--speed", 0, above=True)),
    "model": ("models", tuple),
    "api": ("api", str),
    "concurrency": ("concurrency", _list(_whole("-c", 1))),
    "rate": ("rates_per_s", _list(_number("--rate", 0, above=True))),
    "arrivals": ("arrivals", str),
    "requests": ("requests", _requests),
    "max_time": ("max_time_s", _time_s("--max-time", 0, above=True)),
    "cooldown": ("cooldown_s", _time_s("--cooldown", 0)),
    "repeat": ("repeat", _whole("--repeat", 1)),
    "duration": ("duration_s", _number("--duration", 0, above=True)),
    "warmup": ("warmup", _whole("--warmup", 0)),
    "seed": ("seed", _whole("--seed", 0)),
    "prompts": ("prompts", str),
    "output_tokens": ("output_tokens", _range),
    "cache": ("cache", str),
    "extra_body": ("extra_body", _body),
    "slo": ("slo", parse_slo),
}
