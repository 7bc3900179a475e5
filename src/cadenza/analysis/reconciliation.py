"""The client's count held against the server's own, over the same point: requests, tokens, TTFT and ITL.

The engine's page is read right before and right after a point, so everything that it counted in between is compared
with everything that was sent, warm-up and failures included. What the client cannot know of a request that failed (did
the engine begin it, how many tokens did it make before it noticed) makes a range; a count inside it agrees.
"""

from collections.abc import Sequence

import msgspec

from cadenza.analysis.finding import Finding, Verdict, check, unjudged
from cadenza.analysis.tracks import Tracks, edges_of, growth
from cadenza.clock import NS_PER_MS
from cadenza.readings import ReadingTable
from cadenza.record import Outcome, Record, TokenSource

# Counts further apart are not of the same requests: someone else used the server, or one of the two is wrong.
MAX_DIFFERENCE = 0.01
# A time that the engine has not seen is worth a word above this, and above this share of the client's.
WORTH_MS, WORTH_SHARE = 2.0, 0.1


class Count(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's count, or the range from `client` to `client_most`, and the server's.

    difference   of the server's from the nearest that the client can mean, over that; 0 inside the range
    """

    client: int
    client_most: int
    server: int
    difference: float

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= MAX_DIFFERENCE


class Time(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Means in ms over the same requests. beyond_ms: what the engine did not see: network and client."""

    client_ms: float
    server_ms: float
    beyond_ms: float


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One point's. A field that is not there was given neither by the engine nor by the answers' usage.

    latency   to the last event, and to the end by the engine's clock; not where more than 1 % failed
    queue_ms, prefill_ms, decode_ms   means of the engine's own, of the requests that ended well
    """

    requests: Count | None = None
    prompt_tokens: Count | None = None
    generation_tokens: Count | None = None
    ttft: Time | None = None
    itl: Time | None = None
    latency: Time | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    restarted: bool = False


def reconcile(telemetry: ReadingTable, index: int, model: str, records: Sequence[Record]) -> Reconciliation | None:
    """**Reconciliation**: what the engine counted between the two edges of the point, against all that was sent in it.

    TTFT at the engine begins when the request has reached it, so the client's mean minus the engine's is network,
    HTTP and client. ITL is compared per token: Σ (last − first event) / Σ (tokens − 1) against the mean of the engine's
    gaps. None: the engine gave no page, or no page before and after.
    """
    edges = edges_of(telemetry, index)
    if len(edges) < 2 or not records:
        return None
    requests = growth(edges, model, "requests_total")
    fell = any(
        growth(edges, model, name) is None and _is_shown(edges[-1], name)
        for name in ("requests_total", "generation_tokens_total")
    )
    if fell:
        return Reconciliation(restarted=True)
    sent = [record for record in records if record.sent_ns is not None]
    ok = [record for record in sent if record.outcome is Outcome.OK]
    rest = [record for record in sent if record.outcome is not Outcome.OK]
    few_failed = len(rest) <= MAX_DIFFERENCE * len(sent)  # where a request was left, the engine's time ends there
    counted = bool(ok) and all(record.token_source is TokenSource.USAGE for record in ok)
    return Reconciliation(
        requests=_count(requests, len(ok), len(sent)),
        prompt_tokens=_prompts(growth(edges, model, "prompt_tokens_total"), ok, rest),
        generation_tokens=_generated(growth(edges, model, "generation_tokens_total"), ok, rest) if counted else None,
        ttft=_time(_ttft_ms(sent), _mean_ms(edges, model, "ttft_s")),
        itl=_time(_itl_ms(ok), _mean_ms(edges, model, "itl_s")),
        latency=_time(_latency_ms(ok), _mean_ms(edges, model, "e2e_s")) if few_failed else None,
        queue_ms=_mean_ms(edges, model, "queue_s"),
        prefill_ms=_mean_ms(edges, model, "prefill_s"),
        decode_ms=_mean_ms(edges, model, "decode_s"),
    )


def check_server(found: Reconciliation | None) -> list[Finding]:
    """The server's counts and times against the client's, as checks; none where the engine gave no page."""
    if found is None:
        return []
    if found.restarted:
        message = "the engine's counters fell back: it was started anew meanwhile"
        return [Finding("engine-restarted", Verdict.SUSPECT, message)]
    named = (
        ("requests", found.requests),
        ("prompt tokens", found.prompt_tokens),
        ("generation tokens", found.generation_tokens),
    )
    findings = [_check_count(name, count) for name, count in named if count is not None]
    if found.ttft is not None:
        parts = (("queue", found.queue_ms), ("prefill", found.prefill_ms))
        inside = ", ".join(f"{name} {value:.1f} ms" for name, value in parts if value is not None)
        findings.append(_compare_times("TTFT", found.ttft, f"; in the engine {inside}" if inside else ""))
    if found.itl is not None:
        findings.append(_compare_times("ITL", found.itl))
    return findings


def _check_count(name: str, count: Count) -> Finding:
    client = f"{count.client:,}" + (f" to {count.client_most:,}" if count.client_most > count.client else "")
    message = f"{count.server:,} {name} at the server, {client} at the client ({100 * count.difference:+.2f} %)"
    if not count.agrees:
        message += ": did others use the server?" if count.difference > 0 else ": the server counted less"
    numbers = {
        "server": count.server,
        "client": count.client,
        "client_most": count.client_most,
        "difference_share": count.difference,
    }
    return check(f"server-{name.replace(' ', '-')}", message, not count.agrees, Verdict.SUSPECT, **numbers)


def _compare_times(name: str, time: Time, inside: str = "") -> Finding:
    message = f"{name} {time.client_ms:.2f} ms at the client, {time.server_ms:.2f} ms by the engine's own histogram"
    large = abs(time.beyond_ms) > WORTH_MS and abs(time.beyond_ms) > WORTH_SHARE * time.client_ms
    message += f": {round(time.beyond_ms, 2) + 0.0:+.2f} ms outside the engine"
    message += f" (> {100 * WORTH_SHARE:.0f} %)" if large else ""
    numbers = {"client_ms": time.client_ms, "server_ms": time.server_ms, "beyond_ms": time.beyond_ms}
    return unjudged(f"engine-{name.lower()}", message + inside, **numbers)


def _is_shown(edge: Tracks, name: str) -> bool:
    return any(series.name == name for series in edge)


def _mean_ms(edges: Sequence[Tracks], model: str, name: str) -> float | None:
    total, count = growth(edges, model, f"{name}_sum"), growth(edges, model, f"{name}_count")
    return None if total is None or not count else 1000 * total / count


def _count(server: float | None, least: int, most: int) -> Count | None:
    if server is None:
        return None
    nearest = min(max(server, least), most)
    difference = (server - nearest) / max(nearest, 1)
    return Count(client=least, client_most=most, server=round(server), difference=difference)


def _prompts(server: float | None, ok: Sequence[Record], rest: Sequence[Record]) -> Count | None:
    """None where an answer does not say how long its prompt was. One that failed may count, by up to the longest."""
    known = [record.prompt_tokens for record in ok if record.prompt_tokens is not None]
    if not known or len(known) < len(ok):
        return None
    longest = max(known)
    least = sum(known)
    return _count(server, least, least + sum(record.prompt_tokens or longest for record in rest))


def _generated(server: float | None, ok: Sequence[Record], rest: Sequence[Record]) -> Count | None:
    """What failed made at least what came of it, and at most what was asked for."""
    came = [record.output_tokens or len(record.event_ns) for record in rest]
    made = [max(n, record.asked_output_tokens or n) for n, record in zip(came, rest, strict=True)]
    whole = sum(record.output_tokens or 0 for record in ok)
    return _count(server, whole + sum(came), whole + sum(made))


def _ttft_ms(sent: Sequence[Record]) -> float | None:
    spans = [record.event_ns[0] - record.sent_ns for record in sent if record.event_ns and record.sent_ns is not None]
    return sum(spans) / len(spans) / NS_PER_MS if spans else None


def _latency_ms(ok: Sequence[Record]) -> float | None:
    spans = [record.event_ns[-1] - record.sent_ns for record in ok if record.event_ns and record.sent_ns is not None]
    return sum(spans) / len(spans) / NS_PER_MS if spans else None


def _itl_ms(ok: Sequence[Record]) -> float | None:
    long = [record for record in ok if len(record.event_ns) > 1 and (record.output_tokens or 0) > 1]
    gaps = sum((record.output_tokens or 0) - 1 for record in long)
    return sum(record.event_ns[-1] - record.event_ns[0] for record in long) / gaps / NS_PER_MS if gaps else None


def _time(client_ms: float | None, server_ms: float | None) -> Time | None:
    if client_ms is None or server_ms is None:
        return None
    return Time(client_ms=client_ms, server_ms=server_ms, beyond_ms=client_ms - server_ms)
