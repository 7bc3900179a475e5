"""Our scheduler driven as vLLM's engine core drives its own, and the first step in which two traces differ."""

from collections import deque
from typing import Any

from cadenza.engine.core.scheduler import Scheduler, Step
from cadenza.engine.core.sequence import Limits, Sequence
from support.scheduler_workloads import Workload, accepted_tokens, block_sum, output_token, prompt_tokens

_KEYS = ("preempted", "scheduled", "admitted", "running", "waiting", "kv_usage", "blocks", "finished")


class _Replay:
    """Our scheduler, driven as vLLM's engine core drives its own."""

    def __init__(self, workload: Workload) -> None:
        self._requests = workload["requests"]
        limits = Limits(**workload["limits"])
        self._scheduler = Scheduler(limits, output_token=lambda sequence, n: output_token(sequence.id, n))
        self._flying: deque[tuple[Step, dict[int, int]]] = deque()
        self._depth = 2 if limits.async_scheduling else 1
        self._produced: dict[int, int] = {}

    def turn(self, number: int) -> dict[str, Any]:
        scheduler = self._scheduler
        for request in self._requests:
            if request["arrives_at_step"] == number:
                scheduler.add(
                    Sequence(
                        id=request["id"],
                        prompt=prompt_tokens(request["prompt"]),
                        output_tokens=request["max_tokens"],
                        priority=request["priority"],
                        arrival_ns=request["id"],
                    )
                )
        self._abort("abort_at_step", number)
        step = scheduler.schedule()
        scheduled = [] if step is None else step.scheduled
        entry: dict[str, Any] = {
            "scheduled": [[sequence.id, tokens] for sequence, tokens in scheduled],
            "admitted": [],
            "preempted": [],
            "finished": [],
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_usage": round(scheduler.kv_usage, 9),
            "blocks": block_sum([sequence.blocks for sequence in scheduler.running]),
        }
        if step is not None:
            starts = {work.sequence.id: work.start for work in step.works}
            entry["admitted"] = [[sequence.id, starts[sequence.id]] for sequence in step.admitted]
            entry["preempted"] = [sequence.id for sequence in step.preempted]
            if scheduled:
                self._flying.append((step, self._accept(step)))
        self._abort("abort_in_step", number)
        if self._flying and (len(self._flying) == self._depth or not scheduled):
            updated = scheduler.update(*self._flying.popleft())
            entry["finished"] = [sequence.id for sequence in updated if sequence.ended]
        return {key: value for key, value in entry.items() if value != []}

    def _accept(self, step: Step) -> dict[int, int]:
        fresh = {sequence.id for sequence in step.admitted}
        accepted = {}
        for work in step.works:
            if work.yields:
                number = work.sequence.id
                produced = self._produced.get(number, 0)
                right = 0 if number in fresh else accepted_tokens(number, produced, work.drafts)
                self._produced[number] = produced + right + 1
                accepted[number] = right
        return accepted

    def _abort(self, key: str, number: int) -> None:
        for request in self._requests:
            if request.get(key) == number:
                self._scheduler.abort(request["id"])


def replay(workload: Workload, steps: int) -> list[dict[str, Any]]:
    """What our scheduler decides in the first `steps` turns, in the form of a trace's "steps"."""
    ours = _Replay(workload)
    return [ours.turn(number) for number in range(steps)]


def first_difference(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str | None:
    """The first step that differs, in words; None where all are alike."""
    for number, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        for key in _KEYS:
            if left.get(key) != right.get(key):
                return f"step {number}, {key}: vLLM {left.get(key, [])}, ours {right.get(key, [])}"
    return None
