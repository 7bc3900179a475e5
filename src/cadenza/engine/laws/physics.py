"""The physics law: a step takes what its bytes, FLOP, launches and collectives take. Nothing is fitted to a sweep."""

from cadenza.clock import NS_PER_S
from cadenza.hardware.architecture import Architecture
from cadenza.hardware.batch import Batch
from cadenza.hardware.step import StepModel
from cadenza.hardware.system import System


class Physics:
    """`TimingLaw` over `hardware.step.StepModel`: no spread, and the prefill is part of the steps."""

    def __init__(self, system: System, architecture: Architecture) -> None:
        self._seconds = StepModel(system, architecture).seconds
        self._request_ns = round(system.host.request_s * NS_PER_S)

    def step_ns(self, batch: Batch, quantile: float) -> int:
        """The slowest rank, the collectives and the host; `quantile` changes nothing."""
        return round(self._seconds(batch) * NS_PER_S)

    def prefill_ns(self, prompt_tok: int, in_system: int, quantile: float) -> None:
        """None: a prompt is computed in steps, beside whoever decodes in them."""

    def request_ns(self) -> int:
        """HTTP, tokenising and the way to the scheduler."""
        return self._request_ns
