"""Faults: how they are written, whom they hit, and what each looks like to a client, in virtual time."""

import json
import math
from fractions import Fraction

import pytest

from cadenza.clock import NS_PER_S
from cadenza.engine.api.faults import HEADER, KINDS, TIMES, Fault, Faults
from cadenza.engine.api.fields import RefusalError
from cadenza.engine.api.http import Output
from cadenza.engine.api.http_api import HttpApi
from cadenza.engine.core.core import Core
from cadenza.engine.core.pace import Stretch
from cadenza.errors import UsageError
from support.engine import PROFILE, QWEN25, STEP_NS, TTFT_NS, Client, answers, converse, get, post, steady_core

TOKENS = 10
MIDDLE = 5  # tokens before a fault that a header asks for


def ask(kind: str | None, stream: bool = True, tokens: int = TOKENS) -> bytes:
    body = {"model": QWEN25, "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": stream}
    return post("/v1/chat/completions", body, *([] if kind is None else [f"X-Cadenza-Fault: {kind}"]))


def suffer(kind: str, stream: bool = True, tokens: int = TOKENS) -> tuple[Client, Core]:
    """What a client sees of a fault, and the core behind it, at the end."""
    core = steady_core()
    return converse(HttpApi(PROFILE, core=core), {1: [ask(kind, stream, tokens)]})[1], core


def events(client: Client) -> list[str]:
    """The data of all events that came, whether the answer ended or not."""
    text = b"".join(data for _, data in client.stamps).decode()
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def words(told: list[str]) -> int:
    """How many tokens events carry, those that are no JSON left out."""
    count = 0
    for event in told:
        try:
            choices = json.loads(event).get("choices", [])
        except json.JSONDecodeError:
            continue
        count += sum(len(choice["delta"]["content"].split()) for choice in choices)
    return count


@pytest.mark.parametrize(
    ("kind", "status", "type_", "retry"),
    [
        ("http-429", 429, "Too Many Requests", "1"),
        ("http-429:2.5", 429, "Too Many Requests", "3"),
        ("http-503", 503, "Service Unavailable", None),
        ("http-503:7", 503, "Service Unavailable", "7"),
        ("http-400", 400, "BadRequestError", None),
        ("http-500", 500, "InternalServerError", None),
    ],
)
def test_refusals(kind: str, status: int, type_: str, retry: str | None) -> None:
    client, core = suffer(kind)
    ((got, body),) = client.answers
    error = json.loads(body)["error"]
    assert (got, error["code"], error["type"], error["param"]) == (status, status, type_, None)
    assert client.headers.get("retry-after") == retry
    assert client.headers[HEADER] == kind.partition(":")[0]
    assert core.in_system() == 0
    assert client.stamps[0][0] == 0


def test_a_refusal_for_want_of_room_has_vllms_words() -> None:
    message = json.loads(suffer("http-503")[0].answers[0][1])["error"]["message"]
    # vllm/exceptions.py, QueueOverflowError.
    assert message == (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_reset_breaks_the_connection_in_the_middle(stream: bool) -> None:
    client, core = suffer("reset", stream)
    assert client.is_broken
    assert not client.closed
    assert not client.answers
    assert words(events(client)) == (MIDDLE if stream else 0)
    assert core.in_system() == 0


def test_nothing_is_heard_of_a_connection_after_its_reset() -> None:
    api = HttpApi(PROFILE, core=steady_core())
    api.receive(1, ask("reset") + get("/health"), 0)
    said: list[tuple[int, Output]] = []
    while (due := api.next_ns()) is not None:
        said += api.take(due)
    assert isinstance(said[-1][1], ConnectionResetError)
    assert sum(data is None for _, data in said) == 0


def test_a_truncated_stream_is_a_whole_answer_to_http_alone() -> None:
    api = HttpApi(PROFILE, core=steady_core())
    client = converse(api, {1: [ask("truncation") + get("/health")]})[1]
    assert [status for status, _ in client.answers] == [200, 200]
    told = events(client)
    assert words(told) == MIDDLE
    assert "[DONE]" not in told
    assert all(choice["finish_reason"] is None for event in told for choice in json.loads(event)["choices"])
    assert not client.closed
    assert api.core.in_system() == 0


def test_a_truncated_body_is_shorter_than_it_said_and_then_the_connection_closes() -> None:
    client, _ = suffer("truncation", stream=False)
    assert client.closed
    assert not client.answers
    ((at, data),) = client.stamps
    _, _, body = data.partition(b"\r\n\r\n")
    assert len(body) < int(client.headers["content-length"]) <= 2 * len(body)
    assert at == TTFT_NS + (TOKENS - 1) * STEP_NS


def test_an_error_event_ends_the_stream_as_vllm_ends_it() -> None:
    client, core = suffer("error-event")
    told = events(client)
    assert words(told) == MIDDLE
    # create_streaming_error_response of vLLM dumps with json's own separators.
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert told[-2:] == [json.dumps({"error": error}), "[DONE]"]
    assert client.answers[0][0] == 200
    assert core.in_system() == 0


def test_an_engine_that_fails_an_unstreamed_answer_says_500() -> None:
    client, _ = suffer("error-event", stream=False)
    assert client.answers[0][0] == 500
    assert json.loads(client.answers[0][1])["error"]["type"] == "InternalServerError"
    assert client.stamps[0][0] == TTFT_NS + MIDDLE * STEP_NS


def test_a_malformed_chunk_is_no_json_and_all_the_rest_is_there() -> None:
    client, _ = suffer("malformed")
    told = events(client)
    broken = [event for event in told[:-1] if not event.endswith("}")]
    assert len(broken) == 1
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken[0])
    assert words(told[: told.index(broken[0])]) == MIDDLE
    assert words(told[:-1]) == TOKENS
    assert told[-1] == "[DONE]"


def test_a_malformed_body_is_no_json() -> None:
    client, _ = suffer("malformed", stream=False)
    assert client.answers[0][0] == 200
    with pytest.raises(json.JSONDecodeError):
        json.loads(client.answers[0][1])


@pytest.mark.parametrize("stream", [True, False])
def test_a_stall_for_ever_frees_the_engine_and_keeps_the_connection(stream: bool) -> None:
    api = HttpApi(PROFILE, core=steady_core())
    client = converse(api, {1: [ask("stall", stream) + get("/health")]})[1]
    assert words(events(client)) == (MIDDLE if stream else 0)
    assert not client.answers
    assert not client.closed
    assert api.core.in_system() == 0
    assert json.loads(converse(api, {2: [get("/load")]})[2].answers[0][1]) == {"server_load": 1}
    api.receive(1, b"", NS_PER_S)
    assert json.loads(converse(api, {3: [get("/load")]})[3].answers[0][1]) == {"server_load": 0}


@pytest.mark.parametrize("seconds", [0.015, 3])
def test_a_stall_of_some_seconds_gives_back_what_it_held(seconds: float) -> None:
    client, _ = suffer(f"stall:{seconds}")
    well = converse(HttpApi(PROFILE, core=steady_core()), {1: [ask(None)]})[1]
    assert client.answers[0][1] == well.answers[0][1]
    strikes_ns = TTFT_NS + MIDDLE * STEP_NS
    over_ns = strikes_ns + round(seconds * NS_PER_S)
    due_ns = [TTFT_NS + n * STEP_NS for n in range(TOKENS)]
    expected = [at for at in due_ns if at < strikes_ns] + [over_ns] + [at for at in due_ns if at > over_ns]
    assert [at for at, _ in client.stamps[1:]] == expected


def test_a_stall_of_an_unstreamed_answer_delays_it_to_its_end() -> None:
    client, _ = suffer("stall:3", stream=False)
    assert client.stamps[0][0] == TTFT_NS + MIDDLE * STEP_NS + 3 * NS_PER_S
    assert client.answers[0][0] == 200


@pytest.mark.parametrize(("kind", "late_s"), [("slow-first-token", 5), ("slow-first-token:0.25", 0.25)])
def test_a_slow_first_token_is_late_and_the_rest_keeps_its_pace(kind: str, late_s: float) -> None:
    client, _ = suffer(kind)
    late_ns = round(late_s * NS_PER_S)
    assert [at for at, _ in client.stamps] == [0, *(late_ns + TTFT_NS + n * STEP_NS for n in range(TOKENS))]
    assert words(events(client)[:-1]) == TOKENS


@pytest.mark.parametrize("kind", ["slow-first-token", "stall:1", "stall", "malformed", "reset"])
@pytest.mark.parametrize("leaves_ns", [1, TTFT_NS + 1, TTFT_NS + 7 * STEP_NS + 1])
def test_a_client_that_leaves_is_forgotten(kind: str, leaves_ns: int) -> None:
    api = HttpApi(PROFILE, core=steady_core())
    api.receive(1, ask(kind), 0)
    while (due := api.next_ns()) is not None and due < leaves_ns:
        api.take(due)
    api.receive(1, b"", leaves_ns)
    assert api.core.in_system() == 0
    while (due := api.next_ns()) is not None:
        assert api.take(due) == []
    assert json.loads(converse(api, {2: [get("/load")]})[2].answers[0][1]) == {"server_load": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [1, 2])
def test_every_fault_has_a_place_in_the_shortest_answers(kind: str, stream: bool, tokens: int) -> None:
    client, core = suffer(kind, stream, tokens)
    assert core.in_system() == 0
    ends = {"reset": client.is_broken, "stall": not client.answers, "truncation": stream or client.closed}
    assert ends.get(kind, len(client.answers) == 1)


def test_a_late_server_kills_no_more_than_the_faulty() -> None:
    """All that happened since is taken at once: tokens of the dead among it."""
    api = HttpApi(PROFILE, core=steady_core())
    api.receive(1, ask("reset"), 0)
    api.receive(2, ask(None), 0)
    client = Client()
    for connection, data in api.take(10 * NS_PER_S):
        if connection == 2:
            client.hear(0, data)
    assert words(events(client)[:-1]) == TOKENS


def test_the_engine_freezes_and_says_all_of_it_afterwards() -> None:
    at_ns, until_ns = TTFT_NS + 2 * STEP_NS, TTFT_NS + 6 * STEP_NS + 1
    text = f"freeze:{(until_ns - at_ns) / NS_PER_S}@{at_ns / NS_PER_S}"
    api = HttpApi(PROFILE, core=steady_core(), faults=Faults.parse([text]))
    client = converse(api, {1: [ask(None)]})[1]
    well = [TTFT_NS + n * STEP_NS for n in range(TOKENS)]
    assert [at for at, _ in client.stamps[1:]] == [max(at, until_ns) if at >= at_ns else at for at in well]
    assert words(events(client)[:-1]) == TOKENS


def test_a_frozen_engine_answers_no_page_either() -> None:
    api = HttpApi(PROFILE, core=steady_core(), faults=Faults.parse(["freeze:1@3", "freeze:2@1"]))
    api.receive(1, get("/health"), NS_PER_S)
    assert api.next_ns() == 4 * NS_PER_S
    assert api.take(4 * NS_PER_S - 1) == []
    assert len(api.take(4 * NS_PER_S)) == 1
    api.receive(1, get("/health"), 5 * NS_PER_S)
    assert api.next_ns() == 5 * NS_PER_S


def test_rates_are_kept_and_seeded() -> None:
    rates = {"http-429": 0.1, "reset": 0.05, "stall": 0.2}
    faults = Faults.parse([f"{kind}:{rate}" for kind, rate in rates.items()], seed=7)
    drawn = [fault and fault.kind for fault in map(faults.of, range(1, 20_001))]
    for kind, rate in rates.items():
        # A binomial count: within 4 standard deviations.
        assert abs(drawn.count(kind) - 20_000 * rate) < 4 * math.sqrt(20_000 * rate * (1 - rate))
    again = Faults.parse([f"{kind}:{rate}" for kind, rate in rates.items()], seed=7)
    assert [fault and fault.kind for fault in map(again.of, range(1, 20_001))] == drawn
    other = Faults.parse([f"{kind}:{rate}" for kind, rate in rates.items()], seed=8)
    assert [fault and fault.kind for fault in map(other.of, range(1, 20_001))] != drawn


def test_faults_strike_anywhere_in_the_answer() -> None:
    faults = Faults.parse(["reset:1"])
    shares = [fault.after for n in range(1, 2001) if (fault := faults.of(n)) is not None]
    assert len(shares) == 2000
    assert 0 <= min(shares) < 0.01
    assert 0.99 < max(shares) < 1
    assert abs(sum(shares) / 2000 - 0.5) < 4 / math.sqrt(12 * 2000)


def test_the_same_seed_fails_the_same_requests_over_the_wire() -> None:
    def run(seed: int) -> list[int]:
        api = HttpApi(PROFILE, core=steady_core(), faults=Faults.parse(["http-503:0.5"], seed))
        return [status for status, _ in answers(ask(None, tokens=1) * 30, api)]

    assert run(1) == run(1)
    assert set(run(1)) == {200, 503}
    assert run(1) != run(2)


def test_a_header_overrides_the_rates() -> None:
    api = HttpApi(PROFILE, core=steady_core(), faults=Faults.parse(["http-500:1"]))
    assert [status for status, _ in answers(ask("http-400") + ask(None), api)] == [400, 500]


@pytest.mark.parametrize(
    "kind",
    ["nope", "freeze:1@1", "hang:1@1", "slow:1@1x2", "reset:3", "stall:x", "stall:-1", "stall:1e300", "http-404"],
)
def test_a_header_that_makes_no_sense_is_refused(kind: str) -> None:
    api = HttpApi(PROFILE, core=steady_core())
    status, body = answers(ask(kind), api)[0]
    assert status == 400
    assert all(known in json.loads(body)["error"]["message"] for known in KINDS)
    with pytest.raises(RefusalError):
        Faults().of(1, kind)


def test_seconds_are_read_or_have_their_defaults() -> None:
    assert Faults().of(1, "stall") == Fault("stall", None)
    assert Faults().of(1, " stall:2.5 ") == Fault("stall", 2.5)
    assert Faults().of(1, "http-429") == Fault("http-429", 1.0)
    assert Faults().of(1) is None
    assert Faults.parse(["stall:1:4"]).of(3) == Fault("stall", 4.0, after=Faults.parse(["stall:1"]).of(3).after)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "texts",
    [
        ["nope:0.1"],
        ["stall"],
        ["stall:"],
        ["stall:2"],
        ["stall:-0.1"],
        ["stall:nan"],
        ["stall:0.1:x"],
        ["stall:0.1:inf"],
        ["stall:0.1:1e300"],
        ["reset:0.1:5"],
        ["freeze:1"],
        ["freeze:1@"],
        ["freeze:-1@3"],
        ["hang:1"],
        ["hang:@1"],
        ["hang:1@x"],
        ["hang:1e300@0"],
        ["freeze:1@1e300"],
        ["hang:1@1x2"],
        ["slow:1@1"],
        ["slow:1@1x"],
        ["slow:1@1x0.5"],
        ["slow:1@1xinf"],
        ["slow:1x2"],
        [""],
    ],
)
def test_bad_syntax_is_a_usage_error_that_lists_the_kinds(texts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        Faults.parse(texts)
    assert all(kind in str(caught.value) for kind in (*KINDS, *TIMES, repr(texts[0])))


def test_times_of_the_whole_engine_are_read_in_ns() -> None:
    faults = Faults.parse(["hang:1.5@60", "slow:60@0x20", "slow:1e1@0.25x2.5"])
    assert faults.stretches == (
        Stretch(60 * NS_PER_S, 61_500_000_000, Fraction(0)),
        Stretch(0, 60 * NS_PER_S, Fraction(1, 20)),
        Stretch(250_000_000, 10_250_000_000, Fraction(2, 5)),
    )
    assert faults.of(1) is None
    assert faults.silent_until_ns(60 * NS_PER_S) is None


def test_rates_above_one_are_a_usage_error() -> None:
    with pytest.raises(UsageError):
        Faults.parse(["stall:0.6", "reset:0.5"])
    assert Faults.parse(["stall:0.6", "reset:0.4"]).of(1) is not None
