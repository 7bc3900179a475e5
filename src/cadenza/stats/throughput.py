"""How much came in a window, per second of it."""

import numpy as np

from cadenza.stats.columns import Columns
from cadenza.stats.window import Window, ended_inside


def throughput_tok_per_s(columns: Columns, window: Window) -> float:
    """**Throughput**: output tokens whose event falls in the window / the window's length.

    Tokens of every request count, warm-up and later failures too: the server made them in that time. NaN: the window
    has no length.
    """
    tokens = float(np.sum(columns.event_tok[window.holds(columns.event_ms)]))
    return tokens / window.length_s if window.length_s > 0 else float("nan")


def requests_per_s(columns: Columns, window: Window) -> float:
    """**Request rate**: measured `ok` requests that ended inside the window / its length. NaN: it has no length."""
    ended = int((ended_inside(columns, window) & columns.ok).sum())
    return ended / window.length_s if window.length_s > 0 else float("nan")


def tokens_per_event(columns: Columns) -> float:
    """**Tokens per event**: output tokens / events over `ok` measured requests whose tokens the server counted.

    Above 1, ITL is per event and not per token. NaN: there is no such request.
    """
    known = columns.measured & columns.ok & columns.told
    events = int(np.diff(columns.event_start)[known].sum())
    return float(columns.output_tok[known].sum()) / events if events else float("nan")
