"""Timing laws by name, each made for one model of a profile. To add one: a file here, a line in `LAWS`, a test."""

from collections.abc import Callable

from cadenza.domain import Domain
from cadenza.engine.laws.calibrated import Calibrated
from cadenza.engine.laws.measured import Measured
from cadenza.engine.laws.physics import Physics
from cadenza.engine.laws.timing import TimingLaw
from cadenza.engine.profile import Model, Profile
from cadenza.errors import UsageError
from cadenza.hardware.catalogue import model as architecture

DEFAULT_ORDER = ("calibrated", "measured", "physics")


def _calibrated(profile: Profile, model: Model) -> TimingLaw | None:
    return None if model.calibrated is None else Calibrated(model.calibrated, model.rows)


def _calibrated_d(profile: Profile, model: Model) -> TimingLaw | None:
    return None if model.calibrated_d is None else Calibrated(model.calibrated_d, model.rows)


def _measured(profile: Profile, model: Model) -> TimingLaw | None:
    return None if model.measured is None else Measured(model.measured)


def _physics(profile: Profile, model: Model) -> TimingLaw | None:
    if profile.system is None or model.architecture is None:
        return None
    return Physics(profile.system.system(), architecture(model.architecture))


LAWS: dict[str, Callable[[Profile, Model], TimingLaw | None]] = {
    "calibrated": _calibrated,
    "calibrated:D": _calibrated_d,
    "measured": _measured,
    "physics": _physics,
}


def make_law(profile: Profile, model: Model, timing: str | None = None) -> TimingLaw:
    """The law called `timing`; None: the first of calibrated, measured and physics that the profile has data for.

    UsageError: there is no such law, or the profile has nothing for it.
    """
    if timing is not None and timing not in LAWS:
        raise UsageError(f"no timing law is called '{timing}'; there are: {', '.join(LAWS)}")
    for name in DEFAULT_ORDER if timing is None else (timing,):
        law = LAWS[name](profile, model)
        if law is not None:
            return law
    raise UsageError(
        f"the profile '{profile.name}' has no data for the timing law '{timing or 'any'}' of {model.name}; "
        f"it has: {', '.join(laws_of(profile, model)) or 'none'}"
    )


def laws_of(profile: Profile, model: Model) -> list[str]:
    """Names of the laws that there is data for."""
    return [name for name, make in LAWS.items() if make(profile, model) is not None]


def find_domains(profile: Profile, timing: str | None = None) -> dict[str, Domain]:
    """Model → where its profile was measured, for the models that run by the measured law.

    A profile that does not record it has the loads of its rows only. Raises what `make_law` raises.
    """
    laws = {model.name: make_law(profile, model, timing) for model in profile.models}
    return {name: law.domain for name, law in laws.items() if isinstance(law, Measured)}
