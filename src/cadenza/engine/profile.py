"""Profiles: which models an embedded engine serves, on what, and how fast. Data files beside this one, or a user's."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from cadenza.engine.core.sequence import Limits
from cadenza.engine.laws.calibrated import CalibratedRow, FitB, FitD
from cadenza.engine.laws.measured import MeasuredFit
from cadenza.errors import UsageError, did_you_mean
from cadenza.hardware import catalogue
from cadenza.hardware.memory import room
from cadenza.hardware.predict import default_limits
from cadenza.hardware.system import EAGER, GRAPH, System, system
from cadenza.record import printable

_SUFFIX = ".toml"


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A served model, and what is known of its timing; each law takes its own table.

    architecture   its name in `cadenza.hardware`: what the physics law and the KV cache's size are reckoned from
    thinking       it reasons before it answers, unless the request says otherwise
    rows           a published sweep by rising concurrency: the spread around the calibrated laws' means
    """

    name: str
    architecture: str | None = None
    thinking: bool = False
    rows: tuple[CalibratedRow, ...] = ()
    calibrated: FitB | None = None
    calibrated_d: FitD | None = None
    measured: MeasuredFit | None = None


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names in `cadenza.hardware`; one tensor-parallel rank a device.

    link    None: what joins cards of that kind
    split   parts of the weights by rank, like "2:1"; None: even, the only one that vLLM has
    host    graph | eager: how kernels are launched
    """

    devices: tuple[str, ...]
    link: str | None = None
    split: str | None = None
    host: Literal["graph", "eager"] = "graph"

    def system(self) -> System:
        """What the physics reckons with. UsageError where a name is unknown."""
        host = {"graph": GRAPH, "eager": EAGER}[self.host]
        return system(",".join(self.devices), split=self.split, link=self.link, host=host)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine as `cadenza engine NAME` runs it. `hardware` is for the reader, `system` for the physics."""

    name: str
    hardware: str
    models: tuple[Model, ...]
    limits: Limits = Limits()
    system: Hardware | None = None

    @property
    def max_model_len(self) -> int:
        """Prompt plus output at most, in tokens."""
        return self.limits.max_model_len

    def model(self, name: str) -> Model:
        """The model called `name`; KeyError if it is not served."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)


def names() -> list[str]:
    """Profiles that come with the package, sorted."""
    folder = resources.files(__package__) / "profiles"
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))


def load(name: str) -> Profile:
    """The profile called `name`; or in the file `name`, where it ends in .toml or has a slash; or made of devices.

    Devices are `cadenza.hardware`'s, joined by commas: such a profile serves every model that fits, by the physics law.
    UsageError: there is none, naming those there are; or the file cannot be read as one, saying why.
    """
    if name.endswith(_SUFFIX) or "/" in name:
        return _read(Path(name))
    known = names()
    if name not in known:
        devices = tuple(part.strip() for part in name.split(","))
        if not set(devices) <= set(catalogue.names("device")):
            raise UsageError(
                f"no engine profile is called '{printable(name, 60)}'{did_you_mean(name, known)}; there are: "
                f"{', '.join(known)}; devices, joined by commas: {', '.join(catalogue.names('device'))}; "
                f"or a file whose name ends in {_SUFFIX}"
            )
        return _of_devices(name, Hardware(devices))
    return parse((resources.files(__package__) / "profiles" / f"{name}{_SUFFIX}").read_text(encoding="utf-8"))


def parse(text: str) -> Profile:
    """A profile from TOML; tomllib.TOMLDecodeError and msgspec.ValidationError say what is wrong with it."""
    profile = msgspec.convert(tomllib.loads(text), Profile)
    if not profile.models:
        raise msgspec.ValidationError("it serves no model: `[[models]]` is missing")
    return profile


def _of_devices(name: str, hardware: Hardware) -> Profile:
    machine = hardware.system()
    defaults = default_limits(machine)
    limits = Limits(
        max_num_seqs=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        gpu_memory_utilization=defaults.gpu_memory_utilization,
    )
    models = []
    for architecture in map(catalogue.model, catalogue.names("model")):
        try:
            plan = room(machine, architecture, limits.gpu_memory_utilization, limits.block_size)
        except UsageError:  # its heads do not divide among the ranks
            continue
        if plan.fits and plan.kv_tok > limits.max_model_len:
            models.append(Model(architecture.hf_name, architecture.name))
    if not models:
        raise UsageError(f"no model that is known here fits {machine.title} with a context of {limits.max_model_len}")
    return Profile(name, f"{machine.title} (physics)", tuple(models), limits, hardware)


def _read(file: Path) -> Profile:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the engine profile {file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the engine profile {file} is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"the engine profile {file} is not as it should be: {error}") from None
