"""The grid: which cells, in which order, with which label and how many requests."""

import pytest

from cadenza.measure.grid import lay_out
from cadenza.record import LoadLabel
from cadenza.spec import Spec


def test_concurrency_alone_is_closed() -> None:
    points = lay_out(Spec(concurrency=(1, 16)), ["a", "b"])
    assert [(p.index, p.model, p.concurrency, p.rate_per_s, p.load) for p in points] == [
        (0, "a", 1, None, LoadLabel.CLOSED),
        (1, "a", 16, None, LoadLabel.CLOSED),
        (2, "b", 1, None, LoadLabel.CLOSED),
        (3, "b", 16, None, LoadLabel.CLOSED),
    ]


def test_rates_alone_are_open_and_both_are_capped() -> None:
    (alone,) = lay_out(Spec(concurrency=(), rates_per_s=(2.0,)), ["a"])
    assert (alone.load, alone.concurrency, alone.rate_per_s) == (LoadLabel.OPEN, None, 2.0)
    both = lay_out(Spec(concurrency=(4, 8), rates_per_s=(1.0, 2.0)), ["a"])
    assert [(p.concurrency, p.rate_per_s) for p in both] == [(4, 1.0), (8, 1.0), (4, 2.0), (8, 2.0)]
    assert {p.load for p in both} == {LoadLabel.CAPPED}


ENGINE = "mi50-rx6900xt"


def test_of_the_embedded_engine_128_requests_and_at_least_twelve_rounds() -> None:
    assert [p.planned for p in lay_out(Spec(engine=ENGINE, concurrency=(1, 10, 11, 64)), ["a"])] == [128, 128, 132, 768]
    assert [p.planned for p in lay_out(Spec(engine=ENGINE, concurrency=(), rates_per_s=(50.0,)), ["a"])] == [128]
    assert [p.planned for p in lay_out(Spec(concurrency=(64,), requests=10), ["a"])] == [10]
    assert [p.planned for p in lay_out(Spec(concurrency=(1,), duration_s=5.0), ["a"])] == [None]


@pytest.mark.parametrize(
    ("spec", "auto"),
    [
        (Spec(urls=("http://a:1",)), True),
        (Spec(urls=("http://a:1",), requests=5), False),
        (Spec(urls=("http://a:1",), duration_s=5.0), False),
        (Spec(engine=ENGINE), False),
        (Spec(engine=ENGINE, requests="auto"), True),
    ],
)
def test_a_real_server_is_measured_until_that_is_enough(spec: Spec, auto: bool) -> None:
    points = lay_out(spec, ["a"])
    assert {p.auto for p in points} == {auto}
    assert not auto or {p.planned for p in points} == {None}


def test_warm_up_is_two_rounds_of_the_slots() -> None:
    assert [p.warmup for p in lay_out(Spec(concurrency=(1, 16)), ["a"])] == [2, 32]
    assert [p.warmup for p in lay_out(Spec(concurrency=(4,), duration_s=1.0), ["a"])] == [8]
    assert [p.warmup for p in lay_out(Spec(concurrency=(4,), warmup=0), ["a"])] == [0]


@pytest.mark.parametrize(
    ("response_s", "duration_s", "warmup"),
    [
        (None, None, [1, 8]),  # one second: ⌈0.1⌉, ⌈7.6⌉
        (0.2, None, [1, 8]),  # three answers of 0.2 s take less than that
        (4.0, None, [2, 92]),  # three of 4 s: ⌈0.1 · 12⌉, ⌈7.6 · 12⌉
        (4.0, 10.0, [1, 16]),  # a fifth of 10 s: ⌈0.2⌉, ⌈15.2⌉
    ],
)
@pytest.mark.parametrize("concurrency", [(), (4,)], ids=["open", "capped"])
def test_or_three_response_times_of_arrivals(
    concurrency: tuple[int, ...], response_s: float | None, duration_s: float | None, warmup: list[int]
) -> None:
    spec = Spec(concurrency=concurrency, rates_per_s=(0.1, 7.6), duration_s=duration_s)
    assert [p.warmup for p in lay_out(spec, ["a"], response_s)] == warmup


def test_the_cooldowns_bound_is_kept_with_the_point() -> None:
    assert {p.cooldown_s for p in lay_out(Spec(), ["a"])} == {60.0}
    assert {p.cooldown_s for p in lay_out(Spec(cooldown_s=5.0), ["a"])} == {5.0}


def test_repeats_go_forwards_and_backwards_model_by_model() -> None:
    points = lay_out(Spec(concurrency=(1, 4), repeat=3), ["a", "b"])
    cells = [(p.model, p.repeat, p.concurrency) for p in points]
    assert cells[:6] == [("a", 0, 1), ("a", 0, 4), ("a", 1, 4), ("a", 1, 1), ("a", 2, 1), ("a", 2, 4)]
    assert cells[6:] == [("b", repeat, concurrency) for _, repeat, concurrency in cells[:6]]
    assert [p.index for p in points] == list(range(12))
