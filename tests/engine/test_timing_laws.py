import msgspec
import pytest

from cadenza.engine.laws.calibrated import Calibrated, FitB, FitD
from cadenza.engine.laws.physics import Physics
from cadenza.engine.profile import load
from cadenza.engine.timing_laws import LAWS, make_law
from cadenza.errors import UsageError

PROFILE = load("mi50-rx6900xt")
QWEN3 = PROFILE.models[0]


def test_the_default_is_the_best_that_the_profile_has_data_for() -> None:
    assert isinstance(make_law(PROFILE, QWEN3), Calibrated)
    assert isinstance(make_law(PROFILE, msgspec.structs.replace(QWEN3, calibrated=None)), Physics)


def test_laws_are_chosen_by_name() -> None:
    assert isinstance(QWEN3.calibrated, FitB)
    assert isinstance(QWEN3.calibrated_d, FitD)
    b, d = (make_law(PROFILE, QWEN3, name).prefill_ns(1, 1, 0.5) for name in ("calibrated", "calibrated:D"))
    assert b != d
    assert isinstance(make_law(PROFILE, QWEN3, "physics"), Physics)


@pytest.mark.parametrize("name", ["nope", "", "Calibrated"])
def test_an_unknown_law_is_a_usage_error_that_names_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=", ".join(LAWS)):
        make_law(PROFILE, QWEN3, name)


def test_a_law_without_data_says_which_ones_there_are() -> None:
    with pytest.raises(UsageError, match=r"'measured' of Qwen/Qwen3-8B; it has: calibrated, calibrated:D, physics"):
        make_law(PROFILE, QWEN3, "measured")
    with pytest.raises(UsageError, match="no data for the timing law 'calibrated'"):
        make_law(load("h100"), load("h100").models[0], "calibrated")
