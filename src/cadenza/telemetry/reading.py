"""What a collector brings home: readings, and what was not to be had, with the reason. Missing is never 0."""

from typing import Literal, NamedTuple, Protocol

# absent         the file, key or function is not there: this chip, driver or tool does not have it
# not_supported  it is there and says so: N/A, all ones, ENODATA
# asleep         the card is suspended or resetting (EPERM counts): reading on would wake it
# denied         no permission
# malformed      bytes that are no such value
# out_of_range   a number that cannot be one
# timeout        no answer in time; the question may still be stuck in the kernel
# failed         the tool or the library failed, or said nothing
Reason = Literal["absent", "not_supported", "asleep", "denied", "malformed", "out_of_range", "timeout", "failed"]
Labels = tuple[tuple[str, str], ...]


class Reading(NamedTuple):
    """One value of one series: a family of `families.FAMILIES`, its labels in that family's order, in its unit."""

    name: str
    labels: Labels
    value: float


class Missing(NamedTuple):
    """What could not be read: the family, of which card (PCI address; empty: of none), and why."""

    name: str
    gpu: str
    reason: Reason


class Collected(NamedTuple):
    """One round of one collector. A collector that fails as a whole says so in `missing`, with its own name."""

    readings: list[Reading]
    missing: list[Missing]


class Collector(Protocol):
    """A source of readings: files below a root, a tool's text, a library, a page. `name` is what its health is told by.

    `collect` never raises for what the machine does; it takes as long as its reads take, and is called from one thread.
    """

    name: str

    def collect(self) -> Collected: ...
