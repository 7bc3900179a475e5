"""Profiles: which models an embedded engine serves and how fast, as data files beside this one (`profiles/*.toml`)."""

import tomllib
from importlib import resources

import msgspec

from cadenza.errors import UsageError


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published row: (mean, P50, P99) in ms of TTFT over requests and of token gaps, at one concurrency."""

    concurrency: int
    ttft_ms: tuple[float, float, float]
    tpot_ms: tuple[float, float, float]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A served model: `t0_ms` its step alone, `growth` (q) the share a step gains from 8 to 16 requests.

    thinking   it reasons before it answers, unless the request says otherwise
    rows       published rows by rising concurrency; only their shape (percentiles over mean) is used
    """

    name: str
    t0_ms: float
    growth: float
    rows: tuple[Row, ...]
    thinking: bool = False


class Law(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `timing.Calibrated` that all models of a profile share: alpha, beta and b of the fit."""

    ttft_steps: float
    ttft_growth: float
    pair_bump: float


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine as `cadenza engine NAME` runs it; `max_model_len` is prompt plus output, in tokens."""

    name: str
    hardware: str
    max_model_len: int
    law: Law
    models: tuple[Model, ...]

    def model(self, name: str) -> Model:
        """The model called `name`; KeyError if it is not served."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)


def names() -> list[str]:
    """Profiles that come with the package, sorted."""
    folder = resources.files(__package__) / "profiles"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Profile:
    """The profile called `name`; UsageError, naming those there are, if there is none."""
    known = names()
    if name not in known:
        raise UsageError(f"no engine profile is called '{name}'; there are: {', '.join(known)}")
    text = (resources.files(__package__) / "profiles" / f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Profile)
