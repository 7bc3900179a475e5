"""What the server did per second of a window. Any phase, any outcome: a token for a warm-up is work all the same."""

import math

from cadenza.record import Outcome, TokenSource
from cadenza.stats.columns import SOURCES, Columns, Mask
from cadenza.stats.window import Window


def throughput_tok_per_s(columns: Columns, window: Window) -> float:
    """Output tokens per second.

    Unit: tokens/s. Start and stop: the window's. Population: every token whose event is stamped inside the window, of
    warm-up and of measured requests, finally failing ones too, since they use the server as well. Where the server
    counts in `usage`, a request's events share its count in proportion to what each is known to carry.
    NaN: a window of no length. No token inside: 0, which is then what was measured.
    Source: output token throughput of vLLM's `benchmark_serving`, which divides all tokens by the whole run; see the
    whole-run value beside it.
    """
    if window.end_ns <= window.start_ns:
        return float("nan")
    return math.fsum(columns.event_tok[window.holds(columns.event_ns)].tolist()) / window.length_s


def requests_per_s(columns: Columns, window: Window) -> float:
    """Completed requests per second.

    Unit: requests/s. Start and stop: the window's. Population: requests with outcome `ok` that ended inside the window,
    warm-up included, as for tokens. Failed requests do not count.
    NaN: a window of no length. None ended: 0.
    Source: request throughput of vLLM's `benchmark_serving`.
    """
    if window.end_ns <= window.start_ns:
        return float("nan")
    return int((columns.of_outcome(Outcome.OK) & window.holds(columns.ended_ns)).sum()) / window.length_s


def tokens_per_event(columns: Columns) -> float:
    """Output tokens that an event carries on average; above 1, ITL is per event and no longer per token.

    Unit: tokens per event. Population: measured `ok` requests whose tokens the server counted (`usage`) and that had
    an event, over the whole run. NaN: there is none. Source: the definition.
    """
    known = columns.select(counted_by_usage(columns))
    return float(known.output_tok.sum() / known.event_counts.sum()) if len(known) else float("nan")


def counted_by_usage(columns: Columns) -> Mask:
    """Measured `ok` requests with at least one event whose tokens the server counted, bool[n]."""
    usage = columns.source == SOURCES.index(TokenSource.USAGE)
    return columns.measured & columns.of_outcome(Outcome.OK) & usage & (columns.event_counts > 0)
