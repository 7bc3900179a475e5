"""The texts of flags as values. A text that is not of its kind is returned as it is: the spec names the range."""

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from cadenza.errors import UsageError, did_you_mean
from cadenza.record import printable
from cadenza.spec import Slo

_UNITS_S = {"": Decimal(1), "ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_SLO_NAMES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "latency": "latency_ms", "attainment": "attainment"}
_UNITS_MS = {"ms": 1, "s": 1000, "": 1}
_NUMBER = r"[0-9]+\.?[0-9]*|\.[0-9]+"
_QUANTITY = re.compile(rf"([-+]?(?:{_NUMBER})(?:[eE][-+]?[0-9]+)?)\s*([^0-9\s]*)")
_RANGE = re.compile(rf"({_NUMBER})(?:-({_NUMBER})|:({_NUMBER}):([x+])({_NUMBER}))")
# More points than anybody means; a step of nothing would never end.
MAX_LIST = 1000


def whole(text: str) -> int | str:
    """`8` as a number."""
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and re.fullmatch(r"[-+]?[0-9]+", stripped) else text


def number(text: str) -> float | str:
    """`0.5` as a number."""
    try:
        return float(text)
    except ValueError:
        return text


def requests(text: str) -> int | str:
    """`128`, or `auto`."""
    return "auto" if text.strip() == "auto" else whole(text)


def duration_s(text: str) -> float | str:
    """`90`, `90s`, `5m` or `1h` in seconds."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return number(text) if text.strip().lower() in ("inf", "nan") else text
    unit = _UNITS_S.get(match[2])
    return text if unit is None else float(Decimal(match[1]) * unit)


def values(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A list: `1,2,4`; `1-8` in steps of one; `1:64:x2` doubling; `1:10:+3` in steps of three; any of them joined."""

    def parse_values(text: str) -> tuple[Any, ...]:
        parts: list[Any] = []
        for part in text.split(","):
            match = _RANGE.fullmatch(part.strip())
            parts += [parse(part.strip())] if match is None else [parse(step) for step in _steps(part, match)]
        return tuple(dict.fromkeys(parts))

    return parse_values


def _steps(text: str, match: re.Match[str]) -> list[str]:
    try:
        low, high = Decimal(match[1]), Decimal(match[2] or match[3])
        by = Decimal(match[5] or 1)
    except InvalidOperation:
        return [text]
    factor = match[4] == "x"
    if low > high or (factor and (by <= 1 or low <= 0)) or by <= 0:
        raise UsageError(
            f"{printable(text, 40)!r} is not a range: write LO-HI, LO:HI:xF (F above 1) or LO:HI:+S (S above 0)"
        )
    steps: list[str] = []
    while low <= high:
        if len(steps) == MAX_LIST:
            raise UsageError(f"{printable(text, 40)!r} has more than {MAX_LIST} values")
        steps.append(f"{low.normalize():f}")
        low = low * by if factor else low + by
    return steps


def token_range(text: str) -> tuple[int | str, int | str]:
    """`N`, or `LO:HI`."""
    low, colon, high = text.partition(":")
    return (whole(low), whole(high)) if colon else (whole(low), whole(low))


def body(text: str) -> dict[str, Any]:
    """A JSON object. UsageError: it is not one."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--extra-body is not JSON: {printable(str(error))}") from None
    if not isinstance(value, dict):
        raise UsageError("--extra-body is not a JSON object: write it as '{\"field\": value}'")
    return value


def split_header(text: str) -> tuple[str, str]:
    """`Name: value` as both. UsageError: it has no colon or no name."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError("--header is written 'Name: value'")
    return name.strip(), value.strip()


def header_names(texts: list[str]) -> tuple[str, ...]:
    """The names alone: values are secret."""
    return tuple(split_header(text)[0] for text in texts)


def parse_slo(text: str) -> Slo:
    """`ttft=500ms,tpot=50ms,latency=9s,attainment=0.95`, any of them; a number without a unit is ms.

    Raises UsageError: an unknown name or unit, a name given twice, a value out of its range, no bound at all.
    """
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _SLO_NAMES:
            close = did_you_mean(name, _SLO_NAMES)
            raise UsageError(f"--slo takes ttft, tpot, latency and attainment, not {printable(name, 40)!r}{close}")
        if not equals:
            raise UsageError(
                f"--slo {name} has no value: write e.g. {name}={'0.95' if name == 'attainment' else '500ms'}"
            )
        if _SLO_NAMES[name] in given:
            raise UsageError(f"--slo gives {name} twice: give each bound once")
        given[_SLO_NAMES[name]] = _share(value) if name == "attainment" else _bound_ms(name, value)
    try:
        return Slo(**given)
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
