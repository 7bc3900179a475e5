"""Plans: one seed is one plan, warm-up first, bytes that a server reads as meant."""

from itertools import islice

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.record import LoadLabel, Phase, Point
from cadenza.spec import Credentials, Spec
from support.runs import server


def target(prefix: str = "") -> Target:
    return Target("http://h:1", Origin("h", ("127.0.0.1", 1)), "h:1", prefix)


def point(spec: Spec) -> Point:
    return lay_out(spec, ["m"])[0]


@given(seed=st.integers(0, 2**31), requests=st.integers(1, 30), warmup=st.integers(0, 5))
def test_one_seed_is_one_plan(seed: int, requests: int, warmup: int) -> None:
    spec = Spec(seed=seed, requests=requests, warmup=warmup, concurrency=(), rates_per_s=(3.0,), prompts="random:5:9")
    plan = list(draw_requests(spec, point(spec)))
    assert plan == list(draw_requests(spec, point(spec)))
    assert [r.index for r in plan] == list(range(warmup + requests))
    assert [r.phase for r in plan] == [Phase.WARMUP] * warmup + [Phase.MEASURE] * requests
    due = [r.due_ns for r in plan]
    assert due == sorted(due, key=lambda ns: ns or 0)


def test_another_seed_is_another_plan() -> None:
    one, two = (Spec(seed=seed, concurrency=(1,), requests=4) for seed in (1, 2))
    assert list(draw_requests(one, point(one))) != list(draw_requests(two, point(two)))


def test_prompts_are_unique_over_the_points_unless_reused() -> None:
    spec = Spec(concurrency=(1, 2, 4), requests=50)
    prompts = [r.messages for p in lay_out(spec, ["m"]) for r in draw_requests(spec, p)]
    assert len(set(prompts)) == len(prompts) == 150 + 2 * (1 + 2 + 4)
    reused = msgspec.structs.replace(spec, cache="reuse")
    prompts = [r.messages for p in lay_out(reused, ["m"]) for r in draw_requests(reused, p)]
    assert len(set(prompts)) < 164


def test_a_duration_bounds_an_open_plan_and_leaves_a_closed_one_endless() -> None:
    spec = Spec(concurrency=(), rates_per_s=(100.0,), duration_s=2.0, arrivals="constant")
    due = [r.due_ns for r in draw_requests(spec, point(spec))]
    assert len(due) == 200
    assert all(ns is not None and ns < 2e9 for ns in due)
    spec = Spec(concurrency=(2,), duration_s=2.0)
    assert len(list(islice(draw_requests(spec, point(spec)), 5000))) == 5000


def test_bytes_hold_what_was_meant() -> None:
    spec = Spec(concurrency=(1,), output_tokens=(7, 7), extra_body={"top_k": 3}, warmup=0)
    request = next(draw_requests(spec, point(spec)))
    outgoing = Phrasing(spec, Credentials("s3cret"), [target("/base")]).put(request, options_for(spec, "m"))
    head, _, body = outgoing.data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nHost: h:1\r\n")
    assert b"Authorization: Bearer s3cret" in head
    sent = msgspec.json.decode(body)
    assert sent["model"] == "m"
    assert (sent["max_tokens"], sent["stream"], sent["top_k"]) == (7, True, 3)
    assert sent["messages"] == [{"role": m.role, "content": m.content} for m in request.messages]


@pytest.mark.parametrize(
    ("field", "absent"), [("accepts_ignore_eos", "ignore_eos"), ("accepts_include_usage", "stream_options")]
)
def test_what_the_server_refused_is_left_out(field: str, absent: str) -> None:
    spec = Spec(concurrency=(1,))
    request = next(draw_requests(spec, point(spec)))
    put = Phrasing(spec, Credentials(), [target()]).put
    assert absent in msgspec.json.decode(put(request, options_for(spec, "m", server())).data.partition(b"\r\n\r\n")[2])
    options = options_for(spec, "m", server(**{field: False}))
    assert absent not in msgspec.json.decode(put(request, options).data.partition(b"\r\n\r\n")[2])


def test_targets_take_turns() -> None:
    spec = Spec(concurrency=(1,), requests=4, warmup=0)
    phrasing = Phrasing(spec, Credentials(), [target(), target()])
    assert [phrasing.put(r, options_for(spec, "m")).target for r in draw_requests(spec, point(spec))] == [0, 1, 0, 1]


def residuals(spec: Spec, whole: Point, first: int = 0, step: int = 1) -> list[int]:
    """Output tokens of the share's requests among the first of each slot."""
    drawn = draw_requests(spec, whole, first, step)
    return [r.output_tokens for r in islice(drawn, len(range(first, whole.concurrency or 0, step)))]


@pytest.mark.parametrize(("low", "high"), [(100, 100), (16, 48), (1, 399)])
def test_the_first_request_of_each_slot_asks_for_what_is_left_of_an_answer(low: int, high: int) -> None:
    """Renewal theory (Cox 1962): the residual of lengths L has mean E[L²] / (2 E[L]), rounded up ½ more.

    For fixed lengths it is uniform on 1 … L. Lengths are drawn among 64, whose own spread adds to that of the mean.
    """
    spec = Spec(concurrency=(2000,), output_tokens=(low, high), requests=1, warmup=2000, prompts="builtin", seed=4)
    (whole,) = lay_out(spec, ["m"])
    got = np.array(residuals(spec, whole))
    lengths = np.arange(low, high + 1)
    mean = (lengths**2).mean() / (2 * lengths.mean()) + 0.5
    assert got.mean() == pytest.approx(mean, rel=0.08)
    assert 1 <= got.min() <= got.max() <= high
    if low == high:  # each tenth of the length holds a tenth of them, within 4 standard errors
        counts = np.histogram(got, np.arange(0.5, 101, 10))[0]
        assert np.abs(counts - 200).max() < 4 * np.sqrt(2000 * 0.1 * 0.9)


def test_residual_lengths_are_of_the_warm_ups_first_round_only() -> None:
    spec = Spec(concurrency=(8,), output_tokens=(100, 100), requests=20)
    lengths = [r.output_tokens for r in draw_requests(spec, point(spec))]
    assert lengths[8:] == [100] * (8 + 20)  # two rounds of warm-up
    assert min(lengths[:8]) < 100
    for changes in ({"warmup": 0}, {"concurrency": (), "rates_per_s": (2.0,)}, {"rates_per_s": (2.0,)}):
        other = msgspec.structs.replace(spec, **changes)
        assert {r.output_tokens for r in draw_requests(other, point(other))} == {100}
    few = msgspec.structs.replace(spec, warmup=3)
    assert [r.output_tokens for r in draw_requests(few, point(few))][3:] == [100] * 20


def test_they_are_the_same_for_any_number_of_workers_and_another_seed_has_others() -> None:
    spec = Spec(concurrency=(16,), output_tokens=(16, 200), requests=20, seed=1)
    whole = point(spec)
    alone = residuals(spec, whole)
    assert alone == residuals(spec, whole)
    for workers in (2, 8):
        shared = [residuals(spec, whole, worker, workers) for worker in range(workers)]
        assert [shared[n % workers][n // workers] for n in range(16)] == alone
    assert residuals(msgspec.structs.replace(spec, seed=2), whole) != alone


@pytest.mark.parametrize("load", [{"requests": 30}, {"duration_s": 3.0}], ids=["requests", "duration"])
@pytest.mark.parametrize("arrivals", ["poisson", "gamma:0.5", "constant"])
def test_the_cooldown_goes_on_with_the_same_process(load: dict[str, object], arrivals: str) -> None:
    """The times of the plan alone, and then those of a longer plan of the same seed."""
    spec = Spec(concurrency=(), rates_per_s=(10.0,), arrivals=arrivals, warmup=5, seed=3, **load)  # type: ignore[arg-type]
    whole = point(spec)
    planned = list(draw_requests(spec, whole))
    drawn = list(islice(draw_requests(spec, whole, cooldown=True), 500))
    assert drawn[: len(planned)] == planned
    assert {r.phase for r in drawn[len(planned) :]} == {Phase.COOLDOWN}
    longer = Spec(concurrency=(), rates_per_s=(10.0,), arrivals=arrivals, warmup=5, seed=3, requests=495)
    assert [r.due_ns for r in drawn] == [r.due_ns for r in draw_requests(longer, point(longer))]


def test_auto_is_measured_without_end() -> None:
    spec = Spec(concurrency=(), rates_per_s=(100.0,), requests="auto", warmup=2)
    whole = point(spec)
    assert (whole.load, whole.planned, whole.auto) == (LoadLabel.OPEN, None, True)
    drawn = list(islice(draw_requests(spec, whole, cooldown=True), 5000))  # more than are drawn at once
    assert [r.phase for r in drawn] == [Phase.WARMUP] * 2 + [Phase.MEASURE] * 4998
    due = [r.due_ns or 0 for r in drawn]
    assert due == sorted(due)
    assert due[-1] / 1e9 == pytest.approx(50, rel=0.06)  # four standard errors of 5,000 gaps
