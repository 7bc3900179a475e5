"""A server seen from outside: what grew between two pages, one that goes and comes back, and cards beside it."""

import math
from collections.abc import Iterator

import pytest

from cadenza.analysis.snapshot import Stream, Times
from cadenza.clock import ManualClock
from cadenza.engine import profile
from cadenza.engine.api.http_api import HttpApi
from cadenza.errors import TargetError
from cadenza.live import server as live_server
from cadenza.live.server import EngineScrapes, ServerView, describe_stream
from cadenza.load.fetch import Answer, Page
from cadenza.load.memory import MemoryTransport
from cadenza.load.target import IN_PROCESS
from cadenza.readings import Collected, Collector, Missing, Reading
from cadenza.telemetry.engine_state import EngineState, Histogram
from cadenza.telemetry.sampler import Sampler

S = 1_000_000_000
CARD = "0000:43:00.0"


def page(tokens: int, running: int = 1, model: str = "m") -> Answer:
    lines = f'vllm:num_requests_running{{model_name="{model}"}} {running}\n'
    lines += f'vllm:generation_tokens_total{{model_name="{model}"}} {tokens}\n'
    lines += "# TYPE vllm:time_to_first_token_seconds histogram\n"
    return Answer(200, "text/plain", lines.encode())


GONE = TargetError("http://h:8000/metrics: Connection refused")


class Network:
    """Answers as a script has them; a second passes between two."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.script: Iterator[Answer | TargetError] = iter(())

    def fetch(self, *arguments: object, **options: object) -> Answer:
        self.clock.advance_to(self.clock.now_ns() + S)
        answer = next(self.script)
        if isinstance(answer, TargetError):
            raise answer
        return answer


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(live_server, "fetch", made.fetch)
    return made


def scraped(network: Network, *answers: Answer | TargetError, window_s: float = 10) -> EngineScrapes:
    network.script = iter(answers)
    found = EngineScrapes(network, Page(IN_PROCESS, "/metrics", ()), window_s)  # type: ignore[arg-type]
    for _ in answers:
        assert found.collect() == Collected([], [])
    return found


def view(network: Network, *answers: Answer | TargetError, **options: object) -> ServerView:
    network.script = iter([*answers, Answer(404, "", b"")])
    return ServerView(
        network,  # type: ignore[arg-type]
        IN_PROCESS,
        (),
        1.0,
        10.0,
        now_s=lambda: 1000.0,
        **options,  # type: ignore[arg-type]
    )


def test_what_grew_is_told_a_second_and_in_milliseconds() -> None:
    # Four requests: three took at most 0.1 s, one between 0.1 and 0.2 s.
    first_s = Histogram((0.1, 0.2, math.inf), (3.0, 4.0, 4.0), 0.4)
    grown = EngineState(
        engine="vllm",
        running=2.0,
        kv_usage=0.25,
        preemptions_total=1.0,
        prompt_tokens_total=50.0,
        generation_tokens_total=100.0,
        requests_total=4.0,
        prefix_queries_tok=40.0,
        prefix_hits_tok=10.0,
        ttft_s=first_s,
        itl_s=Histogram((0.1, math.inf), (0.0, 2.0), 1.0),
    )
    found = describe_stream("m", grown, 5.0)
    assert (found.generation_tok_per_s, found.prompt_tok_per_s, found.requests_per_s) == (20, 10, 0.8)
    assert (found.running, found.waiting, found.kv_usage) == (2, None, 0.25)
    assert (found.preemptions, found.prefix_hit_rate) == (1, 0.25)
    assert found.ttft_ms is not None
    # Rank 2 is in the first bucket, at most 0.1 s; rank 3.96 is 0.96 of the way through the second.
    assert found.ttft_ms.mean == pytest.approx(100)
    assert found.ttft_ms.p50 == pytest.approx(100)
    assert found.ttft_ms.p99 == pytest.approx(196)
    assert (found.ttft_ms.at_least, found.ttft_ms.at_most) == ((), ("p50",))
    # Beyond the last bound nothing is known but that.
    assert found.itl_ms == Times(n=2, mean=500, p50=100, p99=100, at_least=("p50", "p99"))
    assert found.tpot_ms is None


def test_nothing_looked_up_is_no_hit_rate_and_no_request_no_latency() -> None:
    empty = Histogram((0.1, math.inf), (0.0, 0.0), 0.0)
    found = describe_stream(
        "m", EngineState(engine="vllm", prefix_queries_tok=0.0, prefix_hits_tok=0.0, ttft_s=empty), 1.0
    )
    assert found == Stream(model="m", engine="vllm", rates_from="engine")


def test_the_window_slides(network: Network) -> None:
    found = scraped(network, *(page(100 * second) for second in range(30))).window()
    assert found.last is not None
    assert found.base is not None
    assert found.last.at_ns - found.base.at_ns == 10 * S
    assert found.last.states["m"].generation_tokens_total == 2900


def test_a_long_window_keeps_few_pages(network: Network) -> None:
    scrapes = scraped(network, *(page(second) for second in range(2000)), window_s=1000)
    found = scrapes.window()
    assert found.last is not None
    assert found.base is not None
    assert 1000 * S <= found.last.at_ns - found.base.at_ns <= 1032 * S
    assert len(scrapes._history) <= 34


def test_an_engine_that_begins_anew_is_measured_from_then_on(network: Network) -> None:
    found = scraped(network, page(100), page(200), page(5), page(25)).window()
    assert found.base is not None
    assert found.base.states["m"].generation_tokens_total == 5
    assert found.restarted_ns == 3 * S


def test_a_server_that_goes_away_is_said_to_have_and_its_last_figures_are_not_its_present_ones(
    network: Network,
) -> None:
    with pytest.raises(TargetError, match="Connection refused"):
        view(network, GONE)
    seen = view(network, page(100))
    before = seen.describe(seen._scrapes.window(), [])
    assert (before.status, before.streams) == ("up", [Stream(model="m", engine="vllm", running=1)])
    network.script = iter([GONE, GONE, page(220)])
    seen._scrapes.collect()
    seen._scrapes.collect()
    gone = seen.describe(seen._scrapes.window(), [])
    assert (gone.status, gone.window_s) == ("down", None)
    assert gone.streams == [Stream(model="m", engine="vllm")]
    # One second for /version, two for the two tries.
    assert gone.notes[0].startswith("No answer for 3 s, still trying: http://h:8000/metrics: Connection refused")
    seen._scrapes.collect()
    back = seen.describe(seen._scrapes.window(), [])
    assert (back.status, back.window_s) == ("up", 4)
    assert back.streams[0].generation_tok_per_s == 30


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(404, "", b""), "HTTP 404: is it the engine itself"),
        (Answer(501, "", b""), "llama.cpp: --metrics"),
        (Answer(503, "", b""), "HTTP 503$"),
        (Answer(401, "", b""), "API key"),
        (Answer(200, "text/html", b"<html>"), "--enable-metrics"),
    ],
)
def test_a_server_without_metrics_is_refused_with_what_to_do(network: Network, answer: Answer, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        view(network, answer)


class Scripted(Collector):
    name = "amdgpu"

    def __init__(self, *readings: Reading) -> None:
        self.readings = list(readings)

    def collect(self) -> Collected:
        return Collected(self.readings, [] if self.readings else [Missing("amdgpu", "", "absent")])


def test_cards_are_seen_where_there_are_collectors_and_missed_with_the_reason(network: Network) -> None:
    busy, nothing = Scripted(Reading("gpu_busy_ratio", (("gpu", CARD), ("vendor", "amd")), 0.5)), Scripted()
    for collector, cards, notes in ((busy, [CARD], []), (nothing, [], ["No GPU is seen here (amdgpu: absent)."])):
        seen = view(network, page(1))
        states = Sampler([collector], 1.0)
        states.poll()
        found = seen.describe(seen._scrapes.window(), states.states())
        assert [card.gpu for card in found.cards] == cards
        assert found.notes == notes
        assert found.local


def test_an_engine_without_latencies_is_said_to_have_none(network: Network) -> None:
    llama = Answer(200, "text/plain", b"llamacpp:requests_processing 2\nllamacpp:tokens_predicted_total 9\n")
    seen = view(network, llama)
    told = "llamacpp has no latencies on its page: a run against it measures them."
    assert told in seen.snapshot().notes
    network.script = iter([GONE])
    seen._scrapes.collect()
    assert told not in seen.snapshot().notes  # nothing is known of one that is away
    assert not any("latencies" in note for note in view(network, page(1)).snapshot().notes)


def test_a_server_elsewhere_has_neither_cards_nor_host(network: Network) -> None:
    found = view(network, page(1), why_not="It is elsewhere.").snapshot()
    assert (found.local, found.cards, found.host, found.notes) == (False, [], None, ["It is elsewhere."])


def test_a_models_name_is_shown_without_escapes(network: Network) -> None:
    found = view(network, page(1, model="a\x1b[2Jb")).snapshot()
    assert found.streams[0].model == "a [2Jb"


def test_the_embedded_engine_says_that_it_is_simulated() -> None:
    transport = MemoryTransport(HttpApi(profile.load("mi50-rx6900xt")))
    found = ServerView(transport, IN_PROCESS, (), 1.0, 10.0, now_s=lambda: 0.0).snapshot()
    assert found.simulated
    assert {stream.running for stream in found.streams} == {0}
