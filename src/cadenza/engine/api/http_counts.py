"""HTTP requests and their durations, as a metrics page shows them."""

from cadenza.clock import NS_PER_S
from cadenza.engine.core.metrics import Histogram

# Buckets of prometheus-fastapi-instrumentator, which counts vLLM's HTTP requests, in seconds.
_HTTP_FINE_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5),
    *(2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0),
)
_HTTP_COARSE_S = (0.1, 0.5, 1.0)


class HttpCounts:
    """HTTP requests answered, as vLLM's server counts them: not those to /metrics, /health, /load, /ping, /version."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], int] = {}
        self.durations = Histogram(_HTTP_FINE_S, NS_PER_S)
        self.durations_by: dict[tuple[str, str], Histogram] = {}

    def answered(self, handler: str, method: str, status: int, duration_ns: int) -> None:
        """`handler` is the route's path ("none": no route's); the duration runs to the last byte of the answer."""
        key = (handler, method, f"{status // 100}xx")
        self.counts[key] = self.counts.get(key, 0) + 1
        self.durations.observe(duration_ns)
        by = self.durations_by.get(key[:2])
        if by is None:
            by = self.durations_by[key[:2]] = Histogram(_HTTP_COARSE_S, NS_PER_S)
        by.observe(duration_ns)
