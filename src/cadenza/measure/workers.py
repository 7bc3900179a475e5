"""How many processes put a point's load on: as many as it needs, no more than the machine has cores for."""

import ipaddress
from collections.abc import Sequence

from cadenza.load.target import Target
from cadenza.record import Point
from cadenza.spec import Spec

# What one process holds with room to spare on a slow core: `cadenza calibrate` measures it on this machine.
STREAMS_A_WORKER = 512
REQUESTS_PER_S_A_WORKER = 1000.0


def count_workers(spec: Spec, point: Point, cores: int, *, server_here: bool) -> int:
    """The spec's `workers`, else by the load: one for each 512 streams or 1,000 requests a second, or part of them.

    Bounded by the cores that this process may use, and, where the server runs on this machine too, by one less. Never
    more than there are slots.
    """
    slots = point.concurrency
    if spec.workers is not None:
        wanted = spec.workers
    else:
        load = 0.0 if slots is None else slots / STREAMS_A_WORKER
        if point.rate_per_s is not None:
            by_rate = point.rate_per_s / REQUESTS_PER_S_A_WORKER
            load = by_rate if slots is None else min(load, by_rate)
        wanted = min(max(1, -int(-load * spec.speed // 1)), max(1, cores - server_here))
    return wanted if slots is None else min(wanted, slots)


def is_here(targets: Sequence[Target]) -> bool:
    """Whether any of them is on this machine, by its address."""
    return any(ipaddress.ip_address(target.origin.address[0]).is_loopback for target in targets)
