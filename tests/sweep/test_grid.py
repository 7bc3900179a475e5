"""The grid: which cells, in which order, with which label and how many requests."""

from cadenza.record import LoadLabel
from cadenza.spec import Spec
from cadenza.sweep.grid import lay_out


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


def test_by_default_128_requests_and_at_least_eight_rounds() -> None:
    assert [p.planned for p in lay_out(Spec(concurrency=(1, 16, 64)), ["a"])] == [128, 128, 512]
    assert [p.planned for p in lay_out(Spec(concurrency=(64,), requests=10), ["a"])] == [10]
    assert [p.planned for p in lay_out(Spec(concurrency=(1,), duration_s=5.0), ["a"])] == [None]


def test_warm_up_fills_the_slots_or_a_second() -> None:
    assert [p.warmup for p in lay_out(Spec(concurrency=(1, 16)), ["a"])] == [1, 16]
    assert [p.warmup for p in lay_out(Spec(concurrency=(), rates_per_s=(0.1, 7.6)), ["a"])] == [1, 8]
    assert [p.warmup for p in lay_out(Spec(concurrency=(4,), warmup=0), ["a"])] == [0]


def test_repeats_go_forwards_and_backwards_model_by_model() -> None:
    points = lay_out(Spec(concurrency=(1, 4), repeat=3), ["a", "b"])
    cells = [(p.model, p.repeat, p.concurrency) for p in points]
    assert cells[:6] == [("a", 0, 1), ("a", 0, 4), ("a", 1, 4), ("a", 1, 1), ("a", 2, 1), ("a", 2, 4)]
    assert cells[6:] == [("b", repeat, concurrency) for _, repeat, concurrency in cells[:6]]
    assert [p.index for p in points] == list(range(12))
