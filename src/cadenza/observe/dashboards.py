"""All dashboards, by the name of their file."""

from collections.abc import Callable

from cadenza.observe.cards import gpu
from cadenza.observe.cluster import cluster
from cadenza.observe.engines import engine
from cadenza.observe.grafana import Json
from cadenza.observe.runs import runs

DASHBOARDS: dict[str, Callable[[], Json]] = {"cluster": cluster, "engine": engine, "gpu": gpu, "runs": runs}
