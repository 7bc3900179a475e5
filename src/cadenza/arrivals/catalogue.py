"""The arrival laws by the names that `Spec.arrivals` gives them: poisson, constant, gamma:K.

A closed loop has none: a spec without rates is one, and there the freed slot says when the next request is due.
"""

import math
from collections.abc import Callable

from cadenza.arrivals.arrival import Arrival
from cadenza.arrivals.constant import Constant
from cadenza.arrivals.gamma import Gamma
from cadenza.arrivals.poisson import Poisson
from cadenza.errors import UsageError
from cadenza.record import printable

# Beyond these a shape is a slip of the pen, and its gaps are no longer numbers that a plan can hold.
SHAPES = (0.01, 10_000.0)


def parse(text: str) -> Arrival:
    """The law that `text` names. Raises `UsageError` with a sentence that says what would be right."""
    name, colon, argument = text.strip().partition(":")
    if name not in ARRIVALS:
        raise UsageError(f"arrivals {printable(text, 40)!r} are not known: give poisson, constant or gamma:K")
    return ARRIVALS[name](argument if colon else None)


def _poisson(argument: str | None) -> Arrival:
    _take_none("poisson", argument)
    return Poisson()


def _constant(argument: str | None) -> Arrival:
    _take_none("constant", argument)
    return Constant()


def _gamma(argument: str | None) -> Arrival:
    try:
        shape = float(argument or "")
    except ValueError:
        shape = math.nan
    if not SHAPES[0] <= shape <= SHAPES[1]:
        raise UsageError(
            f"arrivals gamma need a shape K from {SHAPES[0]:g} to {SHAPES[1]:g}, e.g. gamma:0.5 "
            "(K < 1 is burstier than poisson, K > 1 steadier)"
        )
    return Gamma(shape)


def _take_none(name: str, argument: str | None) -> None:
    if argument is not None:
        raise UsageError(f"arrivals {name} take no argument: {printable(argument, 40)!r} has no meaning here")


# Each takes what follows the colon, None where there is none.
ARRIVALS: dict[str, Callable[[str | None], Arrival]] = {"poisson": _poisson, "constant": _constant, "gamma": _gamma}
