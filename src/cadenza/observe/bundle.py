"""The bundle: which files it has, and how it is written without losing what somebody changed in it."""

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
# Prometheus takes the first for patterns, compose and Grafana the next for a variable; of the rest nobody is sure.
_ODD = re.compile(r"[*?\[\]\\$\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was written last: for which settings, and the hash of each file, by which a change of somebody's is told."""

    schema: int = _SCHEMA
    settings: Settings
    files: dict[str, str]


class Written(NamedTuple):
    """Files by what became of them; `kept`: changed by somebody, and left so, although they would now be other."""

    created: list[str]
    updated: list[str]
    unchanged: list[str]
    kept: list[str]


def read_manifest(folder: Path) -> Manifest | None:
    """What an earlier init left, None: nothing. UsageError: it makes no sense; CadenzaError: it cannot be read."""
    text = _read(folder / MANIFEST)
    if text is None:
        return None
    try:
        manifest = msgspec.json.decode(text.encode("utf-8", "surrogateescape"), type=Manifest)
    except msgspec.MsgspecError:
        manifest = None
    if manifest is None or manifest.schema > _SCHEMA:
        raise UsageError(f"{folder / MANIFEST} is not one that this cadenza wrote: remove it, or take another folder")
    return manifest


def write(settings: Settings, folder: Path, *, force: bool = False) -> Written:
    """Write the bundle. A file that is not as it was written last stays, unless `force`; files as they should be too.

    UsageError: the settings make no sense, or the folder has files of somebody's in the places of ours; CadenzaError: a
    file cannot be written.
    """
    settings = check(settings)
    files = lay_out(settings, _check_folder(folder))
    before = read_manifest(folder)
    known = before.files if before is not None else {}
    if before is None and not force:
        _look_for_others(folder, files)
    written = Written([], [], [], [])
    hashes: dict[str, str] = {}
    for name, text in files.items():
        path = folder / name
        there = _read(path)
        if there == text:
            fate = written.unchanged
        elif there is None:
            fate = written.created
        elif force or _hash(there) == known.get(name):
            fate = written.updated
        else:
            written.kept.append(name)
            # As it was written last, so that it is told from its own text the next time as well.
            hashes[name] = known.get(name, "")
            continue
        if fate is not written.unchanged:
            _put(path, text)
        fate.append(name)
        hashes[name] = _hash(text)
    _put_manifest(folder, Manifest(settings=settings, files=hashes))
    return written


def _check_folder(folder: Path) -> Path:
    """Its whole path. UsageError for one that Prometheus, compose or Grafana would read as another."""
    whole = folder.resolve()
    if odd := _ODD.search(str(whole)):
        raise UsageError(
            f"{printable(str(whole), 200)!r} has {odd[0]!r} in it, which Prometheus or compose takes for a pattern or "
            "a variable: take another folder"
        )
    if whole.exists() and not whole.is_dir():
        raise UsageError(f"{folder} is a file: name a folder, new or empty")
    return whole


def _look_for_others(folder: Path, files: Mapping[str, str]) -> None:
    """UsageError where the folder is somebody's: it has a file in the place of one of ours, and no init wrote it."""
    theirs = [name for name, text in files.items() if _read(folder / name) not in (None, text)]
    if theirs:
        raise UsageError(
            f"{folder} has files that `cadenza observe init` did not write ({', '.join(theirs)}): take a new or empty "
            "folder, or overwrite them with --force"
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
    """Whole or not at all: Prometheus may be reading it."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise CadenzaError(f"{path} cannot be written: {error.strerror}") from None
