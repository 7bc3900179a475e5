"""Readings of a machine and its engine: what a collector returns, and the table that a run or a live view holds.

A series is a name and labels. A value that could not be read is a `Missing` with a reason, never 0.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

# absent         the file, key or function does not exist: this chip, driver or tool does not have it
# not_supported  it exists and reports that it has no value: N/A, all ones, ENODATA
# asleep         the card is suspended or resetting (EPERM counts): a further read would wake it
# denied         no permission
# malformed      bytes that are no such value
# out_of_range   a number outside the range that the quantity can have
# timeout        no answer in time; the read may still be blocked in the kernel
# failed         the tool or the library failed, or gave no output
Reason = Literal["absent", "not_supported", "asleep", "denied", "malformed", "out_of_range", "timeout", "failed"]
Labels = tuple[tuple[str, str], ...]
DEFAULT_INTERVAL_S = 0.5


class Series(NamedTuple):
    """What values belong to: a name, and labels as (label, text) pairs. A text may hold any characters."""

    name: str
    labels: Labels = ()

    def label(self, name: str) -> str:
        """The text of a label; empty where the series does not have it."""
        return next((text for label, text in self.labels if label == name), "")


class Reading(NamedTuple):
    """One value of one series, in the unit that its name ends in. A collector's are of `telemetry.families.FAMILIES`,
    with the labels in that family's order."""

    name: str
    labels: Labels
    value: float

    @property
    def series(self) -> Series:
        """Name and labels."""
        return Series(self.name, self.labels)


class Missing(NamedTuple):
    """A value that could not be read: its name, the card's PCI address ("": of no card), and the reason."""

    name: str
    gpu: str
    reason: Reason


class Collected(NamedTuple):
    """One round of one collector. A collector that fails as a whole is in `missing` under its own name."""

    readings: list[Reading]
    missing: list[Missing]


class Collector(Protocol):
    """A source of readings: files below a root, a tool's output, a library, a page. `name` labels its health.

    `collect` never raises for what the machine does. It takes as long as its reads take, and is called from one thread.
    Whoever makes a collector closes it.
    """

    name: str

    def collect(self) -> Collected: ...

    def close(self) -> None:
        """End its threads and processes and close its files; by default there are none. Never raises."""
        return


class Row(NamedTuple):
    """One row of the table: a time of the run's clock in ns, the collector's name, a series, its value."""

    at_ns: int
    source: str
    series: Series
    value: float


class Sample(NamedTuple):
    """The rows of one source at one time: `values[i]` is of `series[i]`.

    point   index of the point at whose beginning or end it was taken; None: it is one of a sequence at an interval
    """

    at_ns: int
    source: str
    point: int | None
    series: tuple[Series, ...]
    values: Sequence[float]


class Missed(NamedTuple):
    """From `at_ns` on a value of `source` could not be read: its name, the card ("": none) and the reason."""

    at_ns: int
    source: str
    name: str
    gpu: str
    reason: str


class ReadingTable(NamedTuple):
    """All readings of a run or of a live view, kept by sample, in the order in which they were written.

    server_here   cards and host are those of the machine that serves, as far as is known
    interval_s    planned time between two samples of one source
    """

    server_here: bool
    samples: list[Sample]
    missing: list[Missed]
    interval_s: float = DEFAULT_INTERVAL_S

    def rows(self) -> Iterator[Row]:
        """(time, source, series, value), one row a value."""
        for sample in self.samples:
            for series, value in zip(sample.series, sample.values, strict=True):
                yield Row(sample.at_ns, sample.source, series, value)
