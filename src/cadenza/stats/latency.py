"""How long a request took, in milliseconds. Each function gives one value a request (n,), NaN where undefined.

Nothing here selects: which requests count is the window's business (`stats.window`).
"""

import numpy as np

from cadenza.stats.columns import Bools, Columns, Floats


def ttft_ms(columns: Columns) -> Floats:
    """**TTFT**, time to first token: first event − sent.

    An event is a stream event that carries generated tokens: content, reasoning or tool-call arguments, not a role
    and not usage. `sent` is when the client began to send; on a new connection, when it began to connect, so that a
    server that is slow to accept does not look fast. NaN: no event came.
    """
    return columns.first_ms - columns.sent_ms


def user_ttft_ms(columns: Columns) -> Floats:
    """**User TTFT**: first event − intended start. What a user felt, with any queueing at the client in it.

    Under an open loop this is the headline: `TTFT` alone leaves out the wait of requests that a full server kept
    from being sent (coordinated omission). In a closed loop the intended start is when the slot fell free. NaN: no
    event came.
    """
    return columns.first_ms - columns.intended_ms


def tpot_ms(columns: Columns) -> Floats:
    """**TPOT**, time per output token: (last event − first event) / tokens that came after the first event's stamp.

    One value a request. The tokens are those that were streamed, less those of the first event, and of the others at
    its stamp: see `later_tokens.count_later`. So it is exact with several tokens in an event, or it is NaN, never 0:
    one token; an answer that came whole, in one event or at one instant (all within 0.1 ms of one another); tokens
    that were counted but never streamed, an unknown number of them; a first event whose tokens are not known to 1 %.
    """
    return np.asarray((columns.last_ms - columns.first_ms) / columns.later_tok)


def latency_ms(columns: Columns) -> Floats:
    """**Latency**: last event − sent. So latency − TTFT is exactly the sum of the request's gaps. NaN: no event."""
    return columns.last_ms - columns.sent_ms


def user_latency_ms(columns: Columns) -> Floats:
    """**User latency**: last event − intended start: latency with any queueing at the client in it. NaN: no event.

    Under an open or capped loop it is the user's response time; in a closed loop it is latency + dispatch lag.
    """
    return columns.last_ms - columns.intended_ms


def dispatch_lag_ms(columns: Columns) -> Floats:
    """**Dispatch lag**: sent − intended start: the client's own lateness, or, under a cap, its queue. NaN: not sent."""
    return columns.sent_ms - columns.intended_ms


def read_lag_ms(columns: Columns) -> Floats:
    """**Read lag**: the longest time that a piece of the answer lay in the kernel before the client read it.

    The kernel's stamps do not suffer from it, until it reaches the gap between two tokens: pieces read together carry
    one stamp, the last one's. NaN: the stamps are the reads' own (no kernel stamps here), and nobody knows.
    """
    return columns.read_lag_ms


def connect_ms(columns: Columns) -> Floats:
    """**Connect time**: connection open (TLS included) − sent. NaN: the connection was reused, or never opened."""
    return columns.connected_ms - columns.sent_ms


def itl_ms(columns: Columns, selected: Bools, *, in_time_order: bool = False) -> Floats:
    """**ITL**, inter-token latency: gaps between successive events of a request, pooled over the `selected` requests.

    (k,) values, k the number of gaps, request by request, or in the order in which they ended. Per event: where an
    event carries several tokens it is not a time per token, and is labelled so. Empty: no request has two events.
    """
    owner = columns.event_owner()
    if not len(owner):
        return np.zeros(0)
    inside = (owner[1:] == owner[:-1]) & selected[owner[1:]]
    gaps = np.diff(columns.event_ms)[inside]
    if in_time_order:
        gaps = gaps[np.argsort(columns.event_ms[1:][inside], kind="stable")]
    return np.asarray(gaps)
