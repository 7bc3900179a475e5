"""Plans: one seed is one plan, warm-up first, bytes that a server reads as meant."""

from itertools import islice

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.record import Phase, Point
from cadenza.spec import Credentials, Spec
from cadenza.sweep.grid import lay_out
from cadenza.sweep.plan import Phrasing, draw_requests, options_for
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
    assert len(set(prompts)) == len(prompts) == 150 + 1 + 2 + 4
    reused = msgspec.structs.replace(spec, cache="reuse")
    prompts = [r.messages for p in lay_out(reused, ["m"]) for r in draw_requests(reused, p)]
    assert len(set(prompts)) < 157


def test_a_duration_bounds_an_open_plan_and_leaves_a_closed_one_endless() -> None:
    spec = Spec(concurrency=(), rates_per_s=(100.0,), duration_s=2.0, arrivals="constant")
    due = [r.due_ns for r in draw_requests(spec, point(spec))]
    assert len(due) == 200
    assert all(ns is not None and ns < 2e9 for ns in due)
    spec = Spec(concurrency=(2,), duration_s=2.0)
    assert len(list(islice(draw_requests(spec, point(spec)), 5000))) == 5000


def test_bytes_hold_what_was_meant() -> None:
    spec = Spec(concurrency=(1,), output_tokens=(7, 7), extra_body={"top_k": 3})
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
