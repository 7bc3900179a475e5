"""The scheduler against recorded decisions of vLLM 0.32's own, driven without a model (bench/scheduler)."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.scheduler_replay import first_difference, replay
from support.scheduler_workloads import GOLDEN, NAMED

FOLDER = Path(__file__).parents[2] / "golden" / "scheduler"


def read(name: str) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return trace


@pytest.mark.parametrize("name", GOLDEN)
def test_every_step_is_the_one_vllm_decided(name: str) -> None:
    trace = read(name)

    ours = replay(trace, len(trace["steps"]))

    assert trace["vllm"] == "0.32.0"
    assert first_difference(trace["steps"], ours) is None


@pytest.mark.parametrize("name", GOLDEN)
def test_a_trace_is_of_the_workload_of_its_name(name: str) -> None:
    trace = read(name)

    assert {key: trace[key] for key in ("limits", "requests")} == NAMED[name]


@pytest.mark.parametrize("name", GOLDEN)
def test_every_request_that_was_not_aborted_ended_in_the_trace_and_nothing_is_left(name: str) -> None:
    trace = read(name)
    stays = [request["id"] for request in trace["requests"] if not any("abort" in key for key in request)]
    ended = [number for step in trace["steps"] for number in step.get("finished", [])]

    assert sorted(ended) == sorted(set(ended))
    assert set(stays) <= set(ended)
    last = trace["steps"][-1]
    assert last["waiting"] == 0
    assert not replay(trace, len(trace["steps"]) + 1)[-1]["running"]


def test_the_traces_hold_what_is_hard_to_get_right() -> None:
    traces = {name: read(name) for name in GOLDEN}
    preempted = {name for name, trace in traces.items() if any("preempted" in step for step in trace["steps"])}
    hits = {
        name
        for name, trace in traces.items()
        if any(cached for step in trace["steps"] for _, cached in step.get("admitted", []))
    }

    assert {"pressure", "pressure-no-caching", "full-length", "ranked", "speculative-padded"} <= preempted
    assert {"pressure", "shared-async", "turns-async", "speculative-turns-async"} <= hits
    assert "pressure-no-caching" not in hits
    assert traces["ranked"]["limits"]["scheduling_policy"] == "priority"
    assert not traces["chunked-off"]["limits"]["enable_chunked_prefill"]


def test_the_first_difference_is_named_with_its_step_and_both_sides() -> None:
    theirs = read("chunked-off")["steps"]
    ours = [dict(step) for step in theirs]
    ours[3] = ours[3] | {"waiting": 99}
    ours[5] = ours[5] | {"running": 99}

    assert first_difference(theirs, ours) == f"step 3, waiting: vLLM {theirs[3]['waiting']}, ours 99"
