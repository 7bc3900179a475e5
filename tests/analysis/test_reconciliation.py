"""Client against server: agreement, other people's traffic, failures that may or may not count, and times explained."""

import msgspec
import pytest

from cadenza.analysis.finding import Verdict
from cadenza.analysis.reconciliation import Count, Reconciliation, check_server, reconcile
from cadenza.record import Outcome, Phase, Record
from support.columns import rec
from support.telemetry import edges, log

ZERO = dict.fromkeys(
    ("requests_total", "prompt_tokens_total", "generation_tokens_total", "ttft_s_sum", "ttft_s_count", "itl_s_sum"), 0.0
) | dict.fromkeys(
    ("itl_s_count", "e2e_s_sum", "e2e_s_count", "queue_s_sum", "queue_s_count", "prefill_s_sum", "prefill_s_count"), 0.0
)


def answers(n: int = 10) -> list[Record]:
    """n answers to 20-token prompts: 100 ms to the first of 5 tokens, 10 ms from one to the next; two are warm-up."""
    made = []
    for k in range(n):
        one = rec(k, 200 * k, [200 * k + 100 + 10 * i for i in range(5)], tokens=5)
        phase = Phase.WARMUP if k < 2 else Phase.MEASURE
        made.append(msgspec.structs.replace(one, prompt_tokens=20, phase=phase))
    return made


def counted(records: list[Record], **server: float) -> Reconciliation:
    """Held against a page that grew by `server`, and by what the answers say where that is not given."""
    grown = {"requests_total": 10, "prompt_tokens_total": 200, "generation_tokens_total": 50} | server
    start = {name: 1000 + value for name, value in ZERO.items()}
    end = {name: start[name] + grown.get(name, 0) for name in start}
    found = reconcile(log(edges(start, end)), 0, "m", records)
    assert found is not None
    return found


def test_everything_sent_counts_warm_up_included() -> None:
    found = counted(answers())
    assert found.requests == Count(client=10, client_most=10, server=10, difference=0)
    assert found.prompt_tokens == Count(client=200, client_most=200, server=200, difference=0)
    assert found.generation_tokens == Count(client=50, client_most=50, server=50, difference=0)
    assert [check.verdict for check in check_server(found)] == [Verdict.VALID] * 3


def test_someone_elses_requests_are_a_finding() -> None:
    found = counted(answers(), requests_total=13, generation_tokens_total=80)
    assert found.requests is not None
    assert found.requests.difference == pytest.approx(0.3)
    wrong = [check for check in check_server(found) if check.verdict is Verdict.SUSPECT]
    assert [check.name for check in wrong] == ["server's requests", "server's generation tokens"]
    assert wrong[0].message == "13 requests at the server, 10 at the client (+30.00 %): did others use the server?"


def test_a_server_that_counts_less_is_one_too() -> None:
    (wrong,) = (
        check for check in check_server(counted(answers(), generation_tokens_total=49)) if check.verdict == "SUSPECT"
    )
    assert wrong.message == "49 generation tokens at the server, 50 at the client (-2.00 %): the server counted less"


@pytest.mark.parametrize(("tokens", "agrees"), [(99, True), (101, True), (98.9, False), (101.1, False)])
def test_one_percent_is_allowed(tokens: float, agrees: bool) -> None:
    found = counted(answers(20), requests_total=20, prompt_tokens_total=400, generation_tokens_total=tokens)
    assert found.generation_tokens is not None
    assert found.generation_tokens.agrees is agrees


@pytest.mark.parametrize(("requests", "tokens"), [(9, 47), (10, 49), (10, 45 + 30)])
def test_what_failed_may_have_been_counted_in_whole_in_part_or_not(requests: int, tokens: int) -> None:
    records = answers()
    records[-1] = msgspec.structs.replace(
        records[-1],
        outcome=Outcome.CONNECTION_LOST,
        event_ns=records[-1].event_ns[:2],
        output_tokens=2,
        asked_output_tokens=30,
    )
    found = counted(
        records,
        requests_total=requests,
        prompt_tokens_total=180 + 20 * (requests == 10),
        generation_tokens_total=tokens,
    )
    assert found.requests == Count(client=9, client_most=10, server=requests, difference=0)
    assert found.generation_tokens is not None
    assert (found.generation_tokens.client, found.generation_tokens.client_most) == (45 + 2, 45 + 30)
    assert found.generation_tokens.difference == 0
    assert found.prompt_tokens is not None
    assert found.prompt_tokens.difference == 0


def test_what_was_never_sent_is_not_expected() -> None:
    dropped = msgspec.structs.replace(rec(10, None, []), outcome=Outcome.DROPPED)
    found = counted([*answers(), dropped])
    assert found.requests == Count(client=10, client_most=10, server=10, difference=0)


def test_tokens_that_only_we_counted_confirm_nothing() -> None:
    records = [rec(k, 200 * k, [200 * k + 100, 200 * k + 110]) for k in range(10)]
    found = counted(records)
    assert (found.generation_tokens, found.prompt_tokens) == (None, None)
    assert found.requests is not None


def test_times_are_compared_and_the_difference_is_network_and_client() -> None:
    # The engine: 90 ms to the first token, of which 30 in the queue; 9 ms from one to the next, 4 gaps a request.
    found = counted(
        answers(),
        ttft_s_sum=0.9,
        ttft_s_count=10,
        itl_s_sum=0.36,
        itl_s_count=40,
        queue_s_sum=0.3,
        queue_s_count=10,
        prefill_s_sum=0.6,
        prefill_s_count=10,
    )
    assert found.ttft is not None
    assert found.itl is not None
    for time, figures in ((found.ttft, (100, 90, 10)), (found.itl, (10, 9, 1))):
        assert (time.client_ms, time.server_ms, time.beyond_ms) == pytest.approx(figures)
    assert (found.queue_ms, found.prefill_ms) == pytest.approx((30, 60))
    assert found.decode_ms is None
    told = {check.name: check.message for check in check_server(found)}
    assert told["engine's TTFT"] == (
        "TTFT 100.00 ms at the client, 90.00 ms by the engine's own histogram: +10.00 ms outside the engine "
        "(> 10 %); in the engine queue 30.0 ms, prefill 60.0 ms"
    )
    assert all(check.verdict is not Verdict.SUSPECT for check in check_server(found))


def test_latency_is_to_the_last_event_and_to_the_end_by_the_engines_clock() -> None:
    # Ten answers of 100 ms to the first of 5 tokens, 10 ms from one to the next: 140 ms. The engine: 126 ms.
    server = {"e2e_s_sum": 1.26, "e2e_s_count": 10.0}
    latency = counted(answers(), **server).latency
    assert latency is not None
    assert (latency.client_ms, latency.server_ms, latency.beyond_ms) == pytest.approx((140, 126, 14))
    # Where one of ten was left, the engine's mean is of other requests than the client's.
    records = answers()
    records[-1] = msgspec.structs.replace(records[-1], outcome=Outcome.TIMEOUT_STALL)
    assert counted(records, **server).latency is None


def test_itl_is_a_tokens_even_where_an_event_carries_several() -> None:
    records = [rec(k, 200 * k, [200 * k + 100, 200 * k + 140], tokens=5) for k in range(10)]
    found = counted(records, itl_s_sum=0.4, itl_s_count=40)
    assert found.itl is not None
    assert (found.itl.client_ms, found.itl.server_ms) == pytest.approx((10, 10))


def test_an_engine_that_was_started_anew_is_told() -> None:
    found = reconcile(log(edges({"requests_total": 50.0}, {"requests_total": 3.0})), 0, "m", answers())
    assert found == Reconciliation(restarted=True)
    (check,) = check_server(found)
    assert check.verdict is Verdict.SUSPECT


def test_without_both_edges_there_is_nothing_to_hold_against() -> None:
    both = edges(ZERO, ZERO)
    assert reconcile(log([]), 0, "m", answers()) is None
    assert reconcile(log(both[:1]), 0, "m", answers()) is None
    assert reconcile(log(both), 1, "m", answers()) is None
    assert reconcile(log(both), 0, "m", []) is None


def test_an_engine_that_says_little_gives_little() -> None:
    found = reconcile(log(edges({"running": 0.0}, {"running": 0.0})), 0, "m", answers())
    assert found == Reconciliation()
    assert check_server(Reconciliation()) == check_server(None) == []
