"""The prompt sources by the names that `Spec.prompts` gives them: builtin, random:…, sharegpt:FILE, jsonl:FILE."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from cadenza.errors import UsageError
from cadenza.prompts.builtin import ROWS
from cadenza.prompts.dataset import hash_dataset
from cadenza.prompts.jsonl import load_jsonl
from cadenza.prompts.random import parse_random
from cadenza.prompts.sharegpt import load_sharegpt
from cadenza.prompts.source import Draw, PromptSource, Row, RowSource
from cadenza.record import printable

_FILES: dict[str, Callable[[Path], tuple[list[Row], int]]] = {"sharegpt": load_sharegpt, "jsonl": load_jsonl}


def parse(
    text: str, *, seed: int, point: int, output_tokens: tuple[int, int] | None = None, unique: bool = True
) -> PromptSource:
    """The source that `text` names, for one point of one run. Raises `UsageError`: bad text, or a bad file.

    A dataset is read once a process, not once a point.
    """
    if output_tokens is not None and not 1 <= output_tokens[0] <= output_tokens[1]:
        raise UsageError(
            f"output tokens {output_tokens[0]} to {output_tokens[1]} are no range: give LOW:HIGH from 1 up"
        )
    name, colon, argument = text.strip().partition(":")
    if name not in SOURCES:
        raise UsageError(
            f"prompts {printable(text, 60)!r} are not known: "
            "give builtin, random:N, random:LO:HI, sharegpt:FILE or jsonl:FILE"
        )
    draw = Draw(seed=seed, point=point, output_tokens=output_tokens, unique=unique)
    return SOURCES[name](argument if colon else None, draw)


def digest(text: str) -> str | None:
    """SHA-256 of the dataset file that `text` names; None where it names none. Raises `UsageError`."""
    name, _, argument = text.strip().partition(":")
    return hash_dataset(_path(name, argument)) if name in _FILES else None


def _parse_builtin(argument: str | None, draw: Draw) -> PromptSource:
    if argument is not None:
        raise UsageError(f"prompts builtin take no argument: {printable(argument, 40)!r} has no meaning here")
    return RowSource(ROWS, draw)


def _parse_file(kind: str) -> Callable[[str | None, Draw], PromptSource]:
    def parse_file(argument: str | None, draw: Draw) -> PromptSource:
        rows, skipped = _load(kind, _path(kind, argument))
        return RowSource(rows, draw, skipped)

    return parse_file


def _path(kind: str, argument: str | None) -> Path:
    if not argument:
        raise UsageError(f"prompts {kind} need a file: give {kind}:FILE")
    return Path(argument).expanduser()


def _load(kind: str, path: Path) -> tuple[list[Row], int]:
    """Through the cache, unless the file has changed since (or is not there: the loader then says so)."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return _FILES[kind](path)
    return _load_version(kind, path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _load_version(kind: str, path: Path, size_bytes: int, modified_ns: int) -> tuple[list[Row], int]:
    return _FILES[kind](path)


# Each takes what follows the colon, None where there is none.
SOURCES: dict[str, Callable[[str | None, Draw], PromptSource]] = {
    "builtin": _parse_builtin,
    "random": parse_random,
    "sharegpt": _parse_file("sharegpt"),
    "jsonl": _parse_file("jsonl"),
}
