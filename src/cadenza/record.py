"""The words everything else uses: what is asked (`Request`), where it belongs (`Point`), what happened (`Record`).

A record holds raw stamps and counts, never a derived latency: definitions change, stamps do not.
"""

from enum import StrEnum

import msgspec

from cadenza.domain import Domain

# Record and manifest schema, one line a version. Readers accept every version listed here, for ever.
#   1  2026-11: first
#   2  2026-12: figures are of all measured requests, followed to their end under the same load (phase cooldown, and its
#      bound in the point); bytes of text in an answer
SCHEMA = 2


class Outcome(StrEnum):
    """How a request ended. Everything but `ok` is a failure, and still a record with its stamps.

    ok                   tokens came, and the stream was marked complete (finish reason or [DONE])
    truncated            the response ended in good order, but was never marked complete
    http_error           a status other than 200
    stream_error         an error object inside a 200 stream
    malformed            bytes that are not the protocol: bad HTTP, bad JSON, no SSE, no token at all
    timeout_*            longer than the spec allows: to connect, to the first token, between tokens, in total
    connection_lost      refused, reset, or closed before the response was whole
    cancelled            we stopped it: the run was interrupted or its time was over
    dropped              never sent: the run ended before its turn came
    """

    OK = "ok"
    TRUNCATED = "truncated"
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    MALFORMED = "malformed"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"
    CONNECTION_LOST = "connection_lost"
    CANCELLED = "cancelled"
    DROPPED = "dropped"


class Phase(StrEnum):
    """Only `measure` requests are a point's population. The others are the same load, before it and after it.

    cooldown   sent while measured requests were still out, so that the last of these see the load that the first saw
    """

    WARMUP = "warmup"
    MEASURE = "measure"
    COOLDOWN = "cooldown"


class TokenSource(StrEnum):
    """Who counted `Record.output_tokens`: the server (usage), we (events that carried tokens), or a tokenizer."""

    USAGE = "usage"
    EVENTS = "events"
    TOKENIZER = "tokenizer"


class Connection(StrEnum):
    """Whether the request opened its connection (TTFT then includes connecting) or found it open."""

    NEW = "new"
    REUSED = "reused"


class LoadLabel(StrEnum):
    """Who decides when the next request leaves: the plan, the plan within a cap, or the previous answer."""

    OPEN = "OPEN"
    CAPPED = "CAPPED"
    CLOSED = "CLOSED"


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation; role as the API spells it: system, user or assistant."""

    role: str
    content: str


class Request(msgspec.Struct, frozen=True):
    """What to send, and when it is due.

    index          position in the point's plan; warm-up requests come first
    messages       the conversation so far, last turn the user's
    output_tokens  how many tokens to ask for
    prompt_tokens  how many tokens the source aimed at, None where it cannot know
    due_ns         intended start, counted from the start of the point; None in a closed loop (due when a slot frees)
    """

    index: int
    messages: tuple[Message, ...]
    output_tokens: int
    prompt_tokens: int | None = None
    due_ns: int | None = None
    phase: Phase = Phase.MEASURE


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What happened to one request. All stamps are nanoseconds of the run's one monotonic clock.

    intended_ns      when the plan, or the freed slot, wanted it to start
    sent_ns          when the client began to send it; on a new connection, when it began to connect. None: never sent
    connected_ns     when the connection it had to open was open (TLS included); None where it was reused
    headers_ns       when the response's header block was complete
    event_ns         one stamp for each event that carried generated tokens
    event_tokens     tokens in each of those events where the server gives them (running usage); empty: one each
    done_ns          end of the response, or the moment of failure
    prompt_tokens, output_tokens, reasoning_tokens, cached_tokens   as counted by `token_source`; None: not known
    aimed_prompt_tokens   what the prompt source aimed at; None where it could not know
    asked_output_tokens   what was asked for; the server may stop sooner, unless it ignores its end token
    reasoning_events     events that carried thinking and no answer
    text_bytes, first_text_bytes   UTF-8 bytes of the generated text (answer, thinking, tool-call arguments), in all
                     events and in the first one; None: not known. Their ratio estimates the first event's share of the
                     tokens
    detail           one bounded, printable line of evidence, e.g. the server's own error message
    read_lag_ns      the longest that a piece of the answer had lain in the kernel when the client read it: the stamps
                     above are then the kernel's own. None: at least one of them is the read's
    target           position of the base URL in the spec; worker: the process that sent it
    """

    point: int
    index: int
    phase: Phase
    model: str
    outcome: Outcome
    intended_ns: int
    sent_ns: int | None = None
    connected_ns: int | None = None
    headers_ns: int | None = None
    event_ns: list[int] = msgspec.field(default_factory=list)
    event_tokens: list[int] = msgspec.field(default_factory=list)
    done_ns: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    aimed_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    token_source: TokenSource | None = None
    finish_reason: str | None = None
    status: int | None = None
    detail: str | None = None
    connection: Connection | None = None
    read_lag_ns: int | None = None
    reasoning_events: int = 0
    text_bytes: int | None = None
    first_text_bytes: int | None = None
    target: int = 0
    worker: int = 0


class PointStatus(StrEnum):
    """Where a sweep point stands; `failed` is our own failure (disk, code), never the target's."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class WorkerHealth(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one process of the client fared during a point.

    wall_s, cpu_s   how long it worked, and how much of that on a core
    waited_s        ready to run, but something else had the core (Linux: /proc/self/schedstat); None: not known
    away_ms         the longest time between two looks at the sockets
    reads           reads that brought bytes
    clock_steps     jumps of the calendar clock, which make kernel stamps uncertain
    """

    worker: int
    wall_s: float
    cpu_s: float
    waited_s: float | None = None
    away_ms: float = 0.0
    reads: int = 0
    clock_steps: int = 0


class Point(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One cell of the grid, as the manifest keeps it.

    repeat        which time it is that this cell is measured, from 0
    concurrency   requests in flight: the number held (CLOSED), the cap (CAPPED), None (OPEN)
    rate_per_s    intended arrivals per second, None in a closed loop
    planned       measured requests in the plan; None where a duration bounds it, or it is measured until it is enough
    auto          it is measured until it is enough, at most for `budget_s`
    warmup        unmeasured requests sent first, without a pause before the measured ones
    opening_s     over which the first requests of a closed loop were spread, each asking for a residual length
    cooldown_s    how long measured requests were followed under the same load; None: the load was not held for them
    start_ns, end_ns   on the run's clock; None: not begun, not ended
    workers       the client's processes; empty in virtual time, or where the point broke off
    virtual                it was measured in virtual time, where a client has neither lateness nor limits
    ceiling_events_per_s   what one of them can read on this machine, by `cadenza calibrate`; None: not calibrated
    domain                 where the profile of the embedded engine was measured; None: no measured law answered
    arrivals               the arrival law, kept beside a `domain`
    """

    index: int
    model: str
    load: LoadLabel
    repeat: int = 0
    concurrency: int | None = None
    rate_per_s: float | None = None
    planned: int | None = None
    duration_s: float | None = None
    auto: bool = False
    budget_s: float | None = None
    warmup: int = 0
    opening_s: float = 0.0
    cooldown_s: float | None = None
    status: PointStatus = PointStatus.PENDING
    start_ns: int | None = None
    end_ns: int | None = None
    workers: list[WorkerHealth] = []
    ceiling_events_per_s: float | None = None
    virtual: bool = False
    domain: Domain | None = None
    arrivals: str | None = None


def printable(text: str, limit: int = 300) -> str:
    """One line that is safe to show: control characters (terminal escapes too) gone, length bounded.

    Text from a server is hostile; whatever of it reaches a record's `detail` has passed through here.
    """
    kept = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
