"""How much came in a window, per second of it."""

import numpy as np

from cadenza.stats.columns import Columns, Floats
from cadenza.stats.window import Window


def throughput_tok_per_s(columns: Columns, window: Window) -> float:
    """**Throughput**: output tokens whose event falls in the window / the window's length.

    Tokens of every request count, warm-up and later failures too: the server made them in that time. NaN: the window
    has no length.
    """
    tokens = float(np.sum(columns.event_tok[window.holds(columns.event_ms)]))
    return tokens / window.length_s if window.length_s > 0 else float("nan")


def requests_per_s(columns: Columns, window: Window) -> float:
    """**Request rate**: throughput / mean output tokens of the measured `ok` requests.

    Counting the answers that end in a window counts short ones too often, since long ones are cut off at its edges.
    Its bias is that of 1 / (the mean of n lengths), + CV² / n: 1 % of 128 lengths with a CV of 1.3.
    NaN: no throughput, or no tokens.
    """
    lengths = columns.output_tok[columns.measured & columns.ok]
    mean = float(lengths.mean()) if len(lengths) else 0.0
    return throughput_tok_per_s(columns, window) / mean if mean > 0 else float("nan")


def tokens_per_event(columns: Columns) -> float:
    """**Tokens per event**: streamed tokens / events over `ok` measured requests whose tokens the server counted.

    Above 1, ITL is per event and not per token. NaN: there is no such request.
    """
    known = columns.measured & columns.ok & columns.server_counted
    events = int(np.diff(columns.event_start)[known].sum())
    return float(columns.streamed_tok[known].sum()) / events if events else float("nan")


def rate_per_s(stamps_ms: Floats) -> float:
    """**Offered and achieved rate**: (n − 1) / (last − first) of n stamps, requests per second.

    Of the intended starts it is the offered rate as the plan drew it, of the dispatches the achieved one. Measured
    requests that were sent; NaN: fewer than two, or all at one instant.
    """
    kept = stamps_ms[np.isfinite(stamps_ms)]
    span_ms = float(kept.max() - kept.min()) if len(kept) else 0.0
    return 1000 * (len(kept) - 1) / span_ms if span_ms > 0 else float("nan")
