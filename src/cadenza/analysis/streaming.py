"""Were the answers streamed to this client, token by token and whole? What else TTFT, TPOT and ITL are of."""

import numpy as np

from cadenza.analysis.finding import Finding, Verdict, unjudged, valid
from cadenza.stats.columns import SAME_STAMP_MS, Bools, Columns, Floats, Ints
from cadenza.stats.latency import itl_ms
from cadenza.stats.later_tokens import HIDDEN, UNKNOWN

# Events from which an answer in few pieces is no chance; answers given whole count from as many tokens.
MIN_EVENTS = 8
# Of an answer: below, most gaps are 0 and the median ITL is no figure of a stream. One event at a time gives 1.
MIN_PIECES_PER_EVENT = 0.5
# Of the answers: fewer may have met a hiccup of the path.
MAX_LUMPED_SHARE = 0.1
# Of the time between two pieces: where answers are read later, the client itself may have gathered them.
MAX_READ_LAG_SHARE = 0.5
# Tokens of the first stamp that are worth a word: two events that happened to share a packet are not.
COALESCED = 1.1


def count_pieces(columns: Columns) -> Ints:
    """**Pieces**: (n,) instants at which an answer's events came; those within 0.1 ms of one another are one.

    As many as events where each token is sent as it is made. Fewer: something gathers events, the server, a proxy or
    gateway, or a client that reads late.
    """
    start = columns.event_start
    events = np.diff(start)
    pieces = np.minimum(events, 1)
    several = events > 1
    if several.any():
        breaks = np.zeros(len(columns.event_ms), dtype=bool)
        breaks[:-1] = np.diff(columns.event_ms) > SAME_STAMP_MS
        # From an answer's first event to its last: the gap after that one leads to the next answer.
        edges = np.stack([start[:-1][several], start[1:][several] - 1], axis=1).ravel()
        pieces[several] += np.add.reduceat(breaks, edges, dtype=np.int64)[::2]
    return pieces


def check_streaming(columns: Columns) -> list[Finding]:
    """Answers that carry no text; that came in few pieces; of which more was counted than was streamed."""
    answers = columns.measured & columns.ok
    if not answers.any():
        return []
    return [_check_text(columns, answers), *_check_pieces(columns, answers), *_check_hidden(columns, answers)]


def notes_streaming(columns: Columns) -> list[Finding]:
    """What TPOT leaves out or could not know."""
    answers = columns.measured & columns.ok
    counted = answers & columns.server_counted
    notes = []
    never = int((columns.output_tok - columns.streamed_tok)[counted].sum())
    if never > 0:
        tokens = int(columns.output_tok[answers].sum())
        message = (
            f"{never} of {tokens} tokens were counted and never streamed (hidden reasoning): TPOT is of the others"
        )
        notes.append(unjudged("tokens-not-streamed", message, unstreamed=never, tokens=tokens))
    first = (columns.streamed_tok - columns.later_tok)[counted & np.isfinite(columns.later_tok)]
    if len(first) and first.mean() > COALESCED:
        message = f"the first stamp has {first.mean():.4g} tokens (mean): TPOT is of those after it"
        notes.append(unjudged("first-stamp-tokens", message, tokens=float(first.mean())))
    unknown = answers & (columns.later_why == UNKNOWN)
    if unknown.any():
        low, high = _bracket_ms(columns, unknown)
        numbers = {"answers": int(unknown.sum()), "of_answers": int(answers.sum())}
        message = f"{numbers['answers']} of {numbers['of_answers']} answers have no TPOT "
        message += f"(mean {low:.4g} to {high:.4g} ms): the tokens of their first event are not known"
        notes.append(unjudged("tpot-unknown", message, **numbers, lowest_ms=low, highest_ms=high))
    return notes


def _bracket_ms(columns: Columns, chosen: Bools) -> tuple[float, float]:
    """Mean TPOT if the first event has one token, and if each later event has."""
    span: Floats = (columns.last_ms - columns.first_ms)[chosen]
    events = np.diff(columns.event_start)[chosen]
    return float((span / (columns.streamed_tok[chosen] - 1)).mean()), float((span / (events - 1)).mean())


def _check_text(columns: Columns, answers: Bools) -> Finding:
    """An answer without text has tokens by the server's count alone: nothing of it was seen, no latency is known."""
    n, empty = int(answers.sum()), int((answers & (np.diff(columns.event_start) == 0)).sum())
    if not empty:
        return valid("answer-text", f"each of {n} answers carried text", empty=0, answers=n)
    message = f"{empty} of {n} answers carried no text, although the server counted tokens: they have no latency"
    verdict = Verdict.INVALID if empty == n else Verdict.SUSPECT
    return Finding("answer-text", verdict, message, {"empty": empty, "answers": n})


def _check_pieces(columns: Columns, answers: Bools) -> list[Finding]:
    events, pieces = np.diff(columns.event_start), count_pieces(columns)
    tokens = np.maximum(columns.output_tok, events)
    streamed = answers & (events > 0) & (tokens > 1)
    whole = streamed & (pieces == 1)
    judged = streamed & (tokens >= MIN_EVENTS)
    allowed = MAX_LUMPED_SHARE
    if not judged.any():  # a short answer may fit into one event of several tokens; that most of them do is a finding
        judged, allowed = streamed, 0.5
    lumped = judged & (whole | ((events >= MIN_EVENTS) & (pieces < MIN_PIECES_PER_EVENT * events)))
    n, bad = int(judged.sum()), int(lumped.sum())
    if not n:
        return []
    if bad <= allowed * n:
        return [valid("buffered-stream", f"{n - bad} of {n} answers came event by event", lumped=bad, answers=n)]
    medians = {"piece": float(np.median(pieces[lumped])), "event": float(np.median(events[lumped]))}
    numbers = {"lumped": bad, "answers": n, "pieces": medians["piece"], "events": medians["event"]}
    counts = [f"{count:.0f} {noun}" if count == 1 else f"{count:.0f} {noun}s" for noun, count in medians.items()]
    message = f"{bad} of {n} answers came in {counts[0]} of {counts[1]} (medians)"
    lag = float(np.median(columns.read_lag_ms[lumped]))
    gaps = itl_ms(columns, lumped)
    apart = gaps[gaps > SAME_STAMP_MS]
    if len(apart) and lag > MAX_READ_LAG_SHARE * float(np.median(apart)):
        message += "; the client read late and may have gathered them itself"
        return [unjudged("buffered-stream", message, **numbers)]
    cause = "the server, or something between it and here, buffers the stream"
    if not np.isfinite(lag):
        cause += " (or the client read late: the stamps are not the kernel's)"
    message += f": {cause}; TTFT, TPOT and ITL are the buffer's"
    return [Finding("buffered-stream", Verdict.SUSPECT, message, numbers)]


def _check_hidden(columns: Columns, answers: Bools) -> list[Finding]:
    """Counted tokens that cannot all have been streamed, and nobody knows how many: no TPOT."""
    hidden = answers & (columns.later_why == HIDDEN)
    if not hidden.any():
        return []
    text, tokens = int(columns.text_bytes[hidden].sum()), int(columns.output_tok[hidden].sum())
    n = int(hidden.sum())
    message = f"in {n} answers more tokens were counted than were streamed (hidden reasoning?)"
    message += f": {text} bytes of text for {tokens} tokens; they have no TPOT"
    return [Finding("hidden-tokens", Verdict.SUSPECT, message, {"answers": n, "text_bytes": text, "tokens": tokens})]
