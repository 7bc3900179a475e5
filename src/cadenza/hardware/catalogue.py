"""Devices, links and models by name, from the data files beside this one or from the text of a user's own."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import msgspec

from cadenza.errors import UsageError, did_you_mean
from cadenza.hardware.architecture import Architecture
from cadenza.hardware.device import Device
from cadenza.hardware.link import Link
from cadenza.record import printable

Entry = TypeVar("Entry", Device, Link, Architecture)


def device(name: str) -> Device:
    """The device called `name` (letter case aside); UsageError, naming those there are, if there is none."""
    return _find("device", name, _devices())


def link(name: str) -> Link:
    """The link called `name`; UsageError as for `device`."""
    return _find("link", name, _links())


def model(name: str) -> Architecture:
    """The model called `name`: ours (qwen3-8b) or the hub's (Qwen/Qwen3-8B); UsageError as for `device`."""
    known = _models()
    hub = {entry.hf_name.casefold(): entry for entry in known.values()}
    return hub.get(name.strip().casefold()) or _find("model", name, known)


def names(kind: str) -> list[str]:
    """Names of a kind, `device`, `link` or `model`, sorted."""
    return sorted({"device": _devices, "link": _links, "model": _models}[kind]())


def parse_device(text: str, name: str = "device") -> Device:
    """A device from TOML; `name` stands in messages, and for the field where it has none. Raises UsageError."""
    return _parse(text, name, Device)


def parse_link(text: str, name: str = "link") -> Link:
    """A link from TOML, as `parse_device`."""
    return _parse(text, name, Link)


def parse_model(text: str, name: str = "model") -> Architecture:
    """A model from TOML, as `parse_device`; its hub name defaults to its name."""
    return _parse(text, name, Architecture)


@cache
def _devices() -> Mapping[str, Device]:
    return {name: parse_device(text, name) for name, text in _read("devices")}


@cache
def _links() -> Mapping[str, Link]:
    return {name: parse_link(text, name) for name, text in _read("links")}


@cache
def _models() -> Mapping[str, Architecture]:
    return {name: parse_model(text, name) for name, text in _read("models")}


def _read(folder: str) -> list[tuple[str, str]]:
    found = (resources.files(__package__) / folder).iterdir()
    return sorted(
        (entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8"))
        for entry in found
        if entry.name.endswith(".toml")
    )


def _find(kind: str, name: str, known: Mapping[str, Entry]) -> Entry:
    wanted = name.strip().casefold()
    if wanted in known:
        return known[wanted]
    hint = did_you_mean(wanted, known)
    raise UsageError(f"no {kind} is called {printable(name, 60)!r}{hint}; there are: {', '.join(sorted(known))}")


def _parse(text: str, name: str, kind: type[Entry]) -> Entry:
    word = "model" if kind is Architecture else kind.__name__.lower()
    try:
        fields: dict[str, Any] = tomllib.loads(text)
        fields.setdefault("name", name)
        fields.setdefault("title", fields["name"])
        if kind is Architecture:
            fields.setdefault("hf_name", fields["name"])
        return msgspec.convert(fields, kind)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{printable(name, 160)} describes no {word}: {printable(str(error))}") from None
