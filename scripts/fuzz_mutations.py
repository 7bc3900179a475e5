"""Ways to spoil a sample, each from a seeded generator: of bytes, lines, numbers, JSON values and the files of a tree.

A tree is a dict from path to bytes (None: a folder stands there); a file that is not in it is not there.
"""

import json
import re
from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Any, NamedTuple

Tree = dict[str, bytes | None]
Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]

# What no parser should take for a small number: signs, sentinels, other scripts' digits, other languages' nothing.
NUMBERS = (
    *("NaN", "nan", "inf", "-inf", "Infinity", "-1", "-0", "0", "1e999", "-1e999", "1e-400", "1e308", "0x10", "1_000"),
    *("255", "65535", "4294967295", "18446744073709551615", "-2147483648", "9223372036854775808", "101", "655.35"),
    *("١٢", "１２", "9" * 400, "1" * 5000, "1." + "0" * 300, ".5", "5.", "+7", "1,5", "", "true", "null", "½"),
)
# How tools, drivers and Python say that there is nothing.
NOTHING: tuple[Any, ...] = ("N/A", "None", None, "", "Unsupported", "Not supported on the given system", {}, [])
BEFORE = (
    b"WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n",
    b'Expected integer value from monitor, but got ""\n',
    b"WARN: rsmi_init() is deprecated {\n",
    b"{\n",
    b"[\n",
    b"\xef\xbb\xbf",
    b"\x00\n",
    b"cat: /sys/module/amdgpu/initstate: No such file or directory\n" * 50,
    b'{"error": "Can not find a device: 9", "code": -3}\n',
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_ZERO = re.compile(rb"(?<![\w:.+/-])0(?:\.0+)?(?![\w:./])")
_ROOT = re.compile(r"^[\[{]", re.MULTILINE)
_LARGE = 300 << 10
_HUGE = 9 << 20  # more than any parser here takes


class Json(NamedTuple):
    """A JSON value within a text: what stands before it and behind it."""

    before: str
    value: Any
    after: str


def find_json(data: bytes) -> Json | None:
    """The first that begins a line; None where there is none among the first hundred tries."""
    text = data.decode("utf-8", errors="replace")
    for start in islice(_ROOT.finditer(text), 100):
        try:
            value, end = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        return Json(text[: start.start()], value, text[end:])
    return None


def write_json(found: Json) -> bytes:
    # Lone surrogates cannot be written as UTF-8, and need not be.
    return (found.before + json.dumps(found.value) + found.after).encode("utf-8", errors="replace")


def without_zeros(data: bytes) -> bytes:
    """The same with every 0 a 7, so that a 0 in what is read of it stands for something else."""
    return _ZERO.sub(b"7", data)


def mutate(rng: Random, data: bytes, others: Sequence[bytes], kind: str) -> tuple[bytes, str]:
    """`data` spoilt once to three times, and how. `kind`: json, text or binary."""
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        spoil = rng.choice(_MUTATIONS[kind])
        data = spoil(rng, data, others)
        done.append(spoil.__name__.strip("_"))
        if len(data) > _LARGE:
            break
    return data, "+".join(done)


def truncate(data: bytes, count: int) -> tuple[bytes, str]:
    """The first bytes of it: with growing `count` every place once, in no order."""
    place = count * 7919 % (len(data) + 1)
    return data[:place], f"truncate@{place}"


def _flip(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    spoilt = bytearray(data or b"\0")
    for _each in range(rng.choice((1, 1, 4, 16))):
        spoilt[rng.randrange(len(spoilt))] = rng.choice((0, 0x0A, 0x22, 0x7F, 0xFF, rng.randrange(256)))
    return bytes(spoilt)


def _cut(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted(rng.randint(0, len(data)) for _ in "ab")
    return data[:start] + data[min(end, start + 200) :]


def _repeat(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted(rng.randint(0, len(data)) for _ in "ab")
    size = _HUGE if rng.random() < 0.01 else rng.choice((1, 1, 1, 4096, _LARGE))
    piece = data[start:end] or b" "
    return data[:start] + piece * max(1, size // len(piece)) + data[start:]


def _insert(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    place = rng.randint(0, len(data))
    return data[:place] + rng.choice(NUMBERS).encode() + data[place:]


def _splice(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _lines(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.randrange(6)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(at, lines[other])
    elif how == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif how == 3:
        rng.shuffle(lines)
    elif how == 4:
        lines.insert(at, rng.choice(rng.choice(others).split(b"\n")))
    else:
        return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b" ", b"")))
    return b"\n".join(lines)


def _number(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    places = list(_NUMBER.finditer(data))
    if not places:
        return data
    place = rng.choice(places)
    return data[: place.start()] + rng.choice(NUMBERS).encode() + data[place.end() :]


def _nothing(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    places = list(_NUMBER.finditer(data))
    if not places:
        return data
    place = rng.choice(places)
    return data[: place.start()] + str(rng.choice(NOTHING)).encode() + data[place.end() :]


def _before(rng: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return rng.choice(BEFORE) + data if rng.random() < 0.8 else data + rng.choice(BEFORE)


def _value(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One JSON value becomes another: of the same text, of another sample, a number's text, nothing."""
    found = find_json(data)
    places = [] if found is None else list(_places(found.value))
    if found is None or not places:
        return _flip(rng, data, others)
    holder, key = rng.choice(places)
    strange = find_json(rng.choice(others))
    taken = [*places, *([] if strange is None else _places(strange.value))]
    there, name = rng.choice(taken)
    how = rng.randrange(6)
    if how == 0:
        holder[key] = json.loads(json.dumps(there[name]))
    elif how == 1:
        holder[key] = rng.choice(NUMBERS)
    elif how == 2:
        holder[key] = rng.choice((-1, 1e308, 10**400, 2**64 - 1, 2**32 - 1, True, 0.5, 65535, float("nan")))
    elif how == 3:
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"value": holder[key], "unit": rng.choice(NUMBERS)}
    elif how == 4 and isinstance(holder, dict):
        holder[key.swapcase() if rng.random() < 0.5 else f" {key}:"] = holder.pop(key)
    else:
        del holder[key]
    return write_json(found)


def _nest(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    depth = rng.choice((1, 30, 500, 5000, 100_000))
    opens, closes = rng.choice(((b"[", b"]"), (b'{"value":', b"}"), (b'[{"gpu":', b"}]")))
    return opens * depth + data + closes * (depth if rng.random() < 0.7 else 0)


_BYTES = (_flip, _cut, _repeat, _insert, _splice)
_MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "binary": (*_BYTES, _before),
    "text": (*_BYTES, _lines, _lines, _number, _number, _number, _nothing, _before),
    "json": (*_BYTES, _number, _nothing, _before, _nest, _value, _value, _value, _value),
}


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) below `value`."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        holder = todo.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        todo += [holder[key] for key in keys]
    return found


def erase_value(rng: Random, data: bytes) -> tuple[bytes, str] | None:
    """One JSON value is gone, or says that it is nothing."""
    found = find_json(data)
    places = [] if found is None else _places(found.value)
    if found is None or not places:
        return None
    holder, key = rng.choice(places)
    word = rng.choice((*NOTHING, "deleted", "deleted", {"value": "N/A", "unit": "W"}))
    if word == "deleted":
        del holder[key]
    else:
        holder[key] = word
    return write_json(found), f"erase {key!r} by {word!r}"


def erase_name(rng: Random, data: bytes) -> tuple[bytes, str] | None:
    """One name of an exposition is gone, with what declares it."""
    names = sorted(set(re.findall(rb"^([a-zA-Z_:][\w:]*?)(?:_bucket|_sum|_count)?[ {]", data, re.MULTILINE)))
    if not names:
        return None
    name = rng.choice(names)
    here = re.compile(rb"^(?:# \w+ )?%b(?:_bucket|_sum|_count)?[ {].*\n?" % re.escape(name), re.MULTILINE)
    return here.sub(b"", data), f"erase {name.decode()}"


_ERASURES = ("gone", "empty", "nothing")
_SPOILS = ("gone", "folder", "swap", "other", "spoil", "spoil")


def mutate_tree(rng: Random, tree: Tree, others: Sequence[Tree], erase: bool) -> tuple[Tree, str]:
    """Some files spoilt; with `erase`, one file gone, empty or without a value."""
    spoilt, done = dict(tree), []
    for _ in range(1 if erase else rng.choice((1, 2, 8, 40))):
        path = rng.choice(sorted(spoilt))
        data = spoilt[path] or b""
        how = rng.choice(
            ("gone", "empty", "nothing") if erase else ("gone", "folder", "swap", "other", "spoil", "spoil")
        )
        if how == "gone":
            del spoilt[path]
        elif how == "swap":
            second = rng.choice(sorted(spoilt))
            spoilt[path], spoilt[second] = spoilt[second], spoilt[path]
        elif how == "spoil":
            spoilt[path], name = mutate(rng, data, [one for one in rng.choice(others).values() if one], "text")
            how = f"spoil ({name})"
        else:
            words: dict[str, Callable[[], bytes | None]] = {
                "folder": lambda: None,
                "empty": lambda: b"",
                "nothing": lambda: rng.choice((b"N/A\n", b"Unsupported\n", b"\n", b"unknown\n")),
                "other": lambda: rng.choice([one for one in rng.choice(others).values() if one is not None]),
            }
            spoilt[path] = words[how]()
        done.append(f"{how} {path}")
        if not spoilt:
            break
    return spoilt, ", ".join(done[:3])
