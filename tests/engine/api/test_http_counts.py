"""Answers counted by route, method and class of status."""

from cadenza.clock import NS_PER_MS
from cadenza.engine.api.http_counts import HttpCounts
from cadenza.engine.core.metrics import Histogram


def bucket_of(histogram: Histogram) -> dict[str, int]:
    """Upper bound → observations in that bucket alone, where there are any."""
    names = [*map(str, histogram.bounds), "inf"]
    return {name: count for name, count in zip(names, histogram.counts, strict=True) if count}


def test_answers_are_counted_by_route_and_class_of_status() -> None:
    answers = HttpCounts()
    answers.answered("/v1/chat/completions", "POST", 200, 400 * NS_PER_MS)
    answers.answered("/v1/chat/completions", "POST", 503, 1 * NS_PER_MS)
    answers.answered("/v1/models", "GET", 200, 20_000 * NS_PER_MS)
    assert answers.counts == {
        ("/v1/chat/completions", "POST", "2xx"): 1,
        ("/v1/chat/completions", "POST", "5xx"): 1,
        ("/v1/models", "GET", "2xx"): 1,
    }
    assert bucket_of(answers.durations) == {"0.01": 1, "0.5": 1, "30.0": 1}
    assert bucket_of(answers.durations_by["/v1/chat/completions", "POST"]) == {"0.1": 1, "0.5": 1}
    assert bucket_of(answers.durations_by["/v1/models", "GET"]) == {"inf": 1}
