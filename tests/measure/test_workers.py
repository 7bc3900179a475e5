"""How many processes, and that they share one plan whatever their number."""

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.load.exchange import Outgoing
from cadenza.load.shard import Share
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing, draw_requests
from cadenza.measure.share import plan_share
from cadenza.measure.workers import count_workers, is_here
from cadenza.record import LoadLabel, Phase, Point
from cadenza.spec import Credentials, Spec
from support.runs import server

TARGET = Target("http://engine", Origin("engine", ("127.0.0.1", 1)), "engine", "")


def point(concurrency: int | None = None, rate: float | None = None) -> Point:
    label = LoadLabel.OPEN if concurrency is None else LoadLabel.CLOSED if rate is None else LoadLabel.CAPPED
    return Point(index=0, model="m", load=label, concurrency=concurrency, rate_per_s=rate)


@pytest.mark.parametrize(
    ("concurrency", "rate", "cores", "here", "workers"),
    [
        (1, None, 8, False, 1),
        (512, None, 8, False, 1),
        (513, None, 8, False, 2),
        (4096, None, 8, False, 8),
        (4096, None, 8, True, 7),
        (4096, None, 1, True, 1),
        (None, 1000.0, 8, False, 1),
        (None, 2500.0, 8, False, 3),
        (4096, 10.0, 8, False, 1),
        (10, 5000.0, 8, False, 1),
    ],
)
def test_as_many_as_the_load_needs_and_the_machine_has(
    concurrency: int | None, rate: float | None, cores: int, here: bool, workers: int
) -> None:
    assert count_workers(Spec(), point(concurrency, rate), cores, server_here=here) == workers


def test_the_specs_word_counts_but_every_worker_has_a_slot() -> None:
    assert count_workers(Spec(workers=4), point(100), 1, server_here=True) == 4
    assert count_workers(Spec(workers=4), point(3), 8, server_here=False) == 3
    assert count_workers(Spec(speed=100.0), point(64), 8, server_here=False) == 8


def test_here_is_loopback() -> None:
    assert is_here([TARGET])
    assert not is_here([TARGET._replace(origin=Origin("x", ("192.0.2.1", 80)))])


@given(workers=st.integers(1, 9), rate=st.sampled_from([None, 50.0]), seed=st.integers(0, 1000))
def test_the_same_seed_gives_the_same_plan_whatever_the_number_of_workers(
    workers: int, rate: float | None, seed: int
) -> None:
    spec = Spec(
        concurrency=() if rate else (8,),
        rates_per_s=(rate,) if rate else (),
        requests=30,
        seed=seed,
        prompts="random:20",
    )
    (whole,) = lay_out(spec, ["m"])
    phrasing = Phrasing(spec, Credentials(), [TARGET, TARGET])
    total = whole.warmup + 30

    def planned(share: Share) -> list[Outgoing]:
        """What comes before the cooldown, which has no end, and one request of that."""
        plan = plan_share(spec, phrasing, server(), whole, share)
        taken = list(takewhile(lambda outgoing: outgoing.request.phase is not Phase.COOLDOWN, plan))
        assert next(plan).request.phase is Phase.COOLDOWN
        return taken

    alone = planned(Share())
    shared = [outgoing for worker in range(workers) for outgoing in planned(Share(worker, workers))]
    assert sorted(shared, key=lambda outgoing: outgoing.request.index) == alone
    assert [outgoing.request.index for outgoing in alone] == list(range(total))


def test_a_plan_without_end_is_shared_too() -> None:
    spec = Spec(concurrency=(4,), duration_s=1.0)
    (endless,) = lay_out(spec, ["m"])
    drawn = draw_requests(spec, endless, 1, 3)
    assert [next(drawn).index for _ in range(4)] == [1, 4, 7, 10]
