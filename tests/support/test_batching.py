"""The simulated server against closed forms, and its two ways to be driven against each other."""

import numpy as np
import pytest

from cadenza.load.client import Client
from cadenza.load.exchange import Exchange
from cadenza.load.issue import open_loop
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import Target
from cadenza.load.transport import Origin
from cadenza.measure.grid import lay_out
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.record import Outcome, Phase, Record
from cadenza.spec import Credentials, Spec
from support.batching import (
    MS,
    Batching,
    BatchingPeer,
    Lengths,
    Server,
    closed_records,
    fixed,
    heavy,
    open_records,
    uniform,
)

TARGET = Target("http://batching", Origin("batching", ("127.0.0.1", 1)), "batching", "")


def ended(records: list[Record], phase: Phase = Phase.MEASURE) -> list[Record]:
    return [record for record in records if record.phase is phase and record.outcome is Outcome.OK]


def test_one_slot_is_prefill_and_steps() -> None:
    """base 8, 0.5 a sequence, prefill 4: the first token after 12.5 ms, each further one 8.5 ms later."""
    server = Server(slots=1, base_ms=8, per_seq_ms=0.5, prefill_ms=4, noise_cv=0)
    records = closed_records(server, 1, fixed(10), opening="together", warmup=0, measured=5, seed=1)
    whole = 12.5 + 9 * 8.5
    for i, record in enumerate(ended(records)):
        assert record.sent_ns == round(i * whole * MS)
        assert record.event_ns == [round((i * whole + 12.5 + 8.5 * k) * MS) for k in range(10)]
        assert record.done_ns == record.event_ns[-1]


def test_a_join_lengthens_the_step_of_all() -> None:
    """The first runs alone in steps of 10 + 1; the second comes at 30, joins at 33 and shares that step: 12 + 5."""
    server = Server(slots=2, base_ms=10, per_seq_ms=1, prefill_ms=5, noise_cv=0)
    first, second = open_records(server, np.array([0.0, 30.0]), np.array([5, 2]), warmup=0, measured=2)
    assert [ns / MS for ns in first.event_ns] == [16, 27, 38, 55, 67]
    assert [ns / MS for ns in second.event_ns] == [55, 67]


def test_a_full_server_serves_in_order_of_arrival() -> None:
    server = Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0)
    records = open_records(server, np.array([0.0, 1, 2, 100]), np.array([2, 1, 3, 1]), warmup=1, measured=2)
    assert [[ns / MS for ns in record.event_ns] for record in records] == [[10, 20], [30], [40, 50, 60]]
    assert [record.phase for record in records] == [Phase.WARMUP, Phase.MEASURE, Phase.MEASURE]


def test_prompt_tokens_cost_time() -> None:
    core = Batching(Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=1, prefill_per_token_ms=0.5, noise_cv=0))
    request = core.arrive(0, 1, None, prompt_tokens=20)
    assert core.run(1) == [request]
    assert core.now_ns == 21 * MS


def test_nothing_is_emitted_in_the_silence() -> None:
    """Steps of 10 ms; from 25 to 100 none ends: the one that would end at 30 ends at 100."""
    server = Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0, silence=(25, 100))
    records = open_records(server, np.array([0.0, 41.0]), np.array([4, 2]), warmup=0, measured=2)
    assert [[ns / MS for ns in record.event_ns] for record in records] == [[10, 20, 100, 110], [120, 130]]
    # Idle when it begins: a request that comes within waits for its end.
    (alone,) = open_records(server, np.array([50.0]), np.array([2]), warmup=0, measured=1)
    assert [ns / MS for ns in alone.event_ns] == [100, 110]


@pytest.mark.parametrize("law", [uniform(), fixed(), heavy()])
def test_littles_law_in_a_closed_loop(law: Lengths) -> None:
    """C = X · R: 8 in flight at all times."""
    server = Server(slots=8)
    records = closed_records(server, 8, law, warmup=40, measured=1500, seed=3)
    mine = ended(records)
    assert len(mine) == 1500
    sent = np.array([record.sent_ns for record in mine], dtype=np.float64)
    latency = np.array([record.event_ns[-1] - (record.sent_ns or 0) for record in mine])
    rate = (len(mine) - 1) / (sent[-1] - sent[0])
    assert rate * latency.mean() == pytest.approx(8, rel=0.02)


def test_the_capacity_of_a_full_server() -> None:
    server = Server(slots=16, noise_cv=0.02)
    mine = ended(closed_records(server, 16, uniform(), warmup=64, measured=2000, seed=5))
    sent = [record.sent_ns or 0 for record in mine]
    assert 1e9 * (len(mine) - 1) / (sent[-1] - sent[0]) == pytest.approx(server.capacity_per_s(32), rel=0.02)


def test_the_wait_of_m_d_1() -> None:
    """One slot, four tokens each: service S = 4 · 10 ms, constant; W_q = ρ S / 2 (1 − ρ) (Pollaczek and Khinchine)."""
    server = Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0.001)
    n, rho, service = 25_000, 0.5, 40.0
    due = np.cumsum(np.random.default_rng(7).exponential(service / rho, n))
    records = open_records(server, due, np.full(n, 4), warmup=500, measured=n - 500)
    waits = [(record.event_ns[0] - (record.sent_ns or 0)) / MS - 10 for record in ended(records)]
    assert np.mean(waits) == pytest.approx(rho * service / 2 / (1 - rho), rel=0.05)


def test_the_noise_has_its_coefficient_of_variation() -> None:
    core = Batching(Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0.2))
    request = core.arrive(0, 20_000)
    core.run(1 << 62)
    steps = np.diff(core.ends_ns(request)) / MS
    assert steps.mean() == pytest.approx(10, rel=0.01)
    assert steps.std() / steps.mean() == pytest.approx(0.2, rel=0.05)
    assert abs(np.corrcoef(steps[1:], steps[:-1])[0, 1]) < 0.03


def test_the_phases_and_the_end_of_an_open_loop() -> None:
    """Slower than it is asked: the backlog is what there is when the last measured one ends."""
    server = Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0)
    records = open_records(server, np.linspace(0, 95, 20), np.ones(20, dtype=np.int64), warmup=2, measured=4)
    # Request i ends at 10 (i + 1); the last measured, number 5, at 60; by then 0 … 12 are due.
    assert [record.phase for record in records] == [Phase.WARMUP] * 2 + [Phase.MEASURE] * 4 + [Phase.COOLDOWN] * 7
    assert [record.outcome for record in records] == [Outcome.OK] * 6 + [Outcome.CANCELLED] * 7
    assert all(record.done_ns == 60 * MS for record in records[5:])


def test_a_cap_keeps_the_rest_at_the_client() -> None:
    server = Server(slots=4, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0)
    records = open_records(server, np.linspace(0, 5, 6), np.full(6, 2), warmup=0, measured=6, cap=2)
    # 0 runs in the steps ending at 10 and 20; 1 joins at 10 and ends at 30. 2 leaves the client when 0 has ended.
    assert [(record.sent_ns or 0) / MS for record in records] == [0, 1, 20, 30, 40, 50]
    assert [record.intended_ns / MS for record in records] == [0, 1, 2, 3, 4, 5]
    # Due within the step at whose end a slot falls free: sent then, not when it was due.
    late = open_records(server, np.array([0.0, 1, 25]), np.full(3, 2), warmup=0, measured=3, cap=2)
    assert [(record.sent_ns or 0) / MS for record in late] == [0, 1, 25]
    late = open_records(server, np.array([0.0, 1, 15]), np.full(3, 2), warmup=0, measured=3, cap=2)
    assert [(record.sent_ns or 0) / MS for record in late] == [0, 1, 20]


def test_a_closed_loop_refills_until_the_last_measured_ends() -> None:
    records = closed_records(Server(slots=4), 4, heavy(), warmup=8, measured=60, seed=2)
    assert [record.index for record in records] == list(range(len(records)))
    assert sum(record.phase is Phase.WARMUP for record in records) == 8
    assert len(ended(records)) == 60
    assert all(record.outcome is Outcome.OK for record in records)
    last = max(record.event_ns[-1] for record in ended(records))
    # Four are in flight at any time from the opening to the end of the last measured one.
    for at in np.linspace(records[8].sent_ns or 0, last - 1, 50):
        assert sum((record.sent_ns or 0) <= at < record.event_ns[-1] for record in records) == 4
    assert all((record.sent_ns or 0) < last for record in records)


def test_the_opening_in_equilibrium_spreads_the_starts() -> None:
    together = closed_records(Server(slots=16), 16, fixed(), opening="together", warmup=0, measured=160, seed=1)
    residual = closed_records(Server(slots=16), 16, fixed(), warmup=32, measured=160, seed=1)
    assert len({record.sent_ns for record in together}) == 10  # the 16 stay in step, round by round
    assert len({record.sent_ns for record in ended(residual)}) > 100


@pytest.mark.parametrize("slots", [4, 64])
def test_the_client_in_virtual_time_sees_what_the_fast_path_says(slots: int) -> None:
    spec = Spec(concurrency=(), rates_per_s=(20.0,), requests=60, warmup=10, output_tokens=(4, 40), seed=9)
    (point,) = lay_out(spec, ["m"])
    phrasing = Phrasing(spec, Credentials(), [TARGET])
    planned = list(draw_requests(spec, point))[:70]
    server = Server(slots=slots, noise_cv=0.2, silence=(400, 900))
    client = Client(MemoryTransport(BatchingPeer(server)), [TARGET.origin], phrasing.dialect, spec.timeouts)
    seen: list[Record] = []

    def keep(exchange: Exchange) -> None:
        seen.append(exchange.record(0, "m"))

    open_loop(client, (phrasing.put(r, options_for(spec, "m")) for r in planned), 0, keep, stop=lambda: False)
    due = np.array([(request.due_ns or 0) / MS for request in planned])
    asked = np.array([request.output_tokens for request in planned])
    fast = open_records(server, due, asked, warmup=10, measured=60)
    assert len(seen) == len(fast) == 70
    for record, other in zip(sorted(seen, key=lambda record: record.index), fast, strict=True):
        assert (record.outcome, record.sent_ns, record.done_ns) == (Outcome.OK, other.sent_ns, other.done_ns)
        assert (record.event_ns, record.output_tokens) == (other.event_ns, other.output_tokens)


def test_a_connection_that_closes_aborts_its_request() -> None:
    body = b'{"max_tokens": 3}'
    peer = BatchingPeer(Server(slots=1, base_ms=10, per_seq_ms=0, prefill_ms=0, noise_cv=0))
    ask = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    peer.receive(1, ask[:30], 0)
    peer.receive(1, ask[30:], 0)
    peer.receive(2, ask, 0)
    peer.receive(3, ask, 0)
    assert peer.next_ns() == 10 * MS
    assert [connection for connection, _ in peer.take(10 * MS)] == [1]
    peer.receive(1, b"", 12 * MS)  # the step under way, begun at 10, ends at 20 without a token of it
    peer.receive(2, b"", 13 * MS)  # had not begun
    assert peer.next_ns() == 20 * MS
    assert peer.take(20 * MS) == []
    assert peer.next_ns() == 30 * MS
    (taken,) = peer.take(30 * MS)
    assert taken[0] == 3
