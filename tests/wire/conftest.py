"""How bytes may arrive, for every test of a parser: whole, byte by byte, event by event, and at every two-way cut."""

import re
from collections.abc import Callable, Iterator

import pytest

Deliveries = Callable[[bytes], Iterator[list[bytes]]]

# Above this size the two-way cuts are thinned: all of the first and last 600 bytes, then every 7th.
EVERY_CUT_BYTES = 1500


def _deliver(stream: bytes) -> Iterator[list[bytes]]:
    yield [stream]
    yield [stream[at : at + 1] for at in range(len(stream))]
    yield [b"", *(piece for at in range(0, len(stream), 3) for piece in (stream[at : at + 3], b""))]
    yield re.split(rb"(?<=\n\n)", stream)  # an event a read, as a server that flushes after each one sends them
    size = len(stream)
    for cut in range(1, size):
        if size <= EVERY_CUT_BYTES or cut < 600 or size - cut < 600 or cut % 7 == 0:
            yield [stream[:cut], stream[cut:]]


@pytest.fixture(scope="session")
def deliveries() -> Deliveries:
    """A function from a stream to all the ways in which it may arrive, as lists of reads."""
    return _deliver
