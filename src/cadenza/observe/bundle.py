"""Writes the bundle, without overwriting files that a user changed."""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from cadenza.errors import CadenzaError, UsageError
from cadenza.observe.settings import Settings, check
from cadenza.observe.shipped import lay_out
from cadenza.record import printable

MANIFEST = ".cadenza-observe.json"
_SCHEMA = 1
# Patterns for Prometheus, variables for compose and Grafana, control characters and lone surrogates.
_ODD = re.compile(r"[*?\[\]\\$\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last `init`: its settings, and the hash of each file, by which a user's change is recognized."""

    schema: int = _SCHEMA
    settings: Settings
    files: dict[str, str]


class Written(NamedTuple):
    """Files by action; `kept`: changed by a user and left so, although this `init` would write another text."""

    created: list[str]
    updated: list[str]
    unchanged: list[str]
    kept: list[str]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the last `init`, None: there is none. UsageError: invalid; CadenzaError: unreadable."""
    text = _read(folder / MANIFEST)
    if text is None:
        return None
    try:
        manifest = msgspec.json.decode(text.encode("utf-8", "surrogateescape"), type=Manifest)
    except msgspec.MsgspecError:
        manifest = None
    if manifest is None or manifest.schema > _SCHEMA:
        raise UsageError(
            f"{folder / MANIFEST} is no manifest of this version of cadenza: remove it, or choose another folder"
        )
    return manifest


def write(settings: Settings, folder: Path, *, force: bool = False) -> Written:
    """Write the bundle. A file that was changed since the last `init` is kept, unless `force`.

    UsageError: invalid settings, or the folder has other files of the same names that no `init` wrote; CadenzaError: a
    file cannot be written.
    """
    settings = check(settings)
    files = lay_out(settings, _check_folder(folder))
    before = read_manifest(folder)
    known = before.files if before is not None else {}
    if before is None and not force:
        _refuse_foreign(folder, files)
    written = Written([], [], [], [])
    hashes: dict[str, str] = {}
    for name, text in files.items():
        path = folder / name
        current = _read(path)
        if current == text:
            outcome = written.unchanged
        elif current is None:
            outcome = written.created
        elif force or _hash(current) == known.get(name):
            outcome = written.updated
        else:
            written.kept.append(name)
            # The hash of the last `init`, so that the change is recognized the next time as well.
            hashes[name] = known.get(name, "")
            continue
        if outcome is not written.unchanged:
            _put(path, text)
        outcome.append(name)
        hashes[name] = _hash(text)
    _put_manifest(folder, Manifest(settings=settings, files=hashes))
    return written


def _check_folder(folder: Path) -> Path:
    """Its absolute path. UsageError if Prometheus, compose or Grafana would read it as a pattern or variable."""
    whole = folder.resolve()
    if odd := _ODD.search(str(whole)):
        raise UsageError(
            f"{printable(str(whole), 200)!r} contains {odd[0]!r}, which Prometheus or compose reads as a pattern or a "
            "variable: choose another folder"
        )
    if whole.exists() and not whole.is_dir():
        raise UsageError(f"{folder} is a file: name a folder, new or empty")
    return whole


def _refuse_foreign(folder: Path, files: Mapping[str, str]) -> None:
    """UsageError if the folder has a file with the name of one of the bundle, but no manifest."""
    foreign = [name for name, text in files.items() if _read(folder / name) not in (None, text)]
    if foreign:
        raise UsageError(
            f"{folder} has files that `cadenza observe init` did not write ({', '.join(foreign)}): choose a new or "
            "empty folder, or overwrite them with --force"
        )


def _put_manifest(folder: Path, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n"
    if _read(folder / MANIFEST) != text:
        _put(folder / MANIFEST, text)


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CadenzaError(f"{path} cannot be read: {error.strerror}") from None


def _put(path: Path, text: str) -> None:
    """Replace the file atomically: Prometheus may be reading it."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise CadenzaError(f"{path} cannot be written: {error.strerror}") from None
