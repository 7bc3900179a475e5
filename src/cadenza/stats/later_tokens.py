"""TPOT's denominator: how many tokens of an answer were streamed after its first stamp, and when that is not known."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# Of the denominator: as much as it may be uncertain by before TPOT is not known.
MAX_UNCERTAINTY = 0.01
# Answers below which the scatter of their texts is no guide to an uncertainty.
MIN_ANSWERS = 8
# Answers below which it may be by chance that one way of streaming explains all of them.
MIN_ALIKE = 4
# Tokens by which answers of a point must differ in length, so that one distance between tokens and events is no chance.
VARIED_TOK = 4
# Why an answer has no TPOT, by `LaterTokens.why`.
DEFINED, WHOLE, HIDDEN, UNKNOWN = range(4)
REASONS = (
    "",
    "the answers have one token, or came in one event or at one instant",
    "more tokens were counted than were streamed",
    "the tokens of the first event are not known",
)


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of n answers of one point, arrays of (n,).

    ok            their streams ended well
    ended         the model ended them, not a limit: `output_tok` may count an end token, which no event carries
    counted       the server counted `output_tok` (usage), not we
    output_tok    tokens
    reasoning_tok, reasoning_events   thinking: tokens by usage, NaN: it does not say; events that carried it
    events, first_events   events, and those of them that came at the first stamp
    running_tok   tokens after the first stamp by usage in each event, NaN: it is not there
    text_bytes, first_text_bytes   size of the text of all events, and of the first one; NaN: not known
    """

    ok: Bools
    ended: Bools
    counted: Bools
    output_tok: Ints
    reasoning_tok: Floats
    reasoning_events: Ints
    events: Ints
    first_events: Ints
    running_tok: Floats
    text_bytes: Floats
    first_text_bytes: Floats


class LaterTokens(msgspec.Struct, frozen=True, kw_only=True):
    """(n,) `streamed_tok`: tokens that came in events; `later_tok`: those after the first stamp, NaN: see `why`."""

    streamed_tok: Floats
    later_tok: Floats
    why: Ints


class _First(msgspec.Struct, frozen=True):
    """What the first event of every answer may hold: `best` tokens, surely `low` to `high`, and `each` later event.

    best   NaN: not known at all; then low and high do not count. Infinite: as many as leave one for each later event
    each   NaN: it varies
    """

    best: float
    low: float
    high: float
    each: float = math.nan


_Z99 = 2.5758  # the normal law leaves 0.5 % beyond it, on each side
_NOT_KNOWN = _First(math.nan, math.nan, math.nan)


def count_later(answers: Answers) -> LaterTokens:
    """**Tokens after the first stamp**, TPOT's denominator: streamed tokens − tokens of the events at the first stamp.

    Streamed are the output tokens, less the reasoning tokens of usage where no event carried thinking. Where text is
    smaller than a byte a token, more was counted than was streamed, nobody knows how much, and TPOT is undefined.

    Tokens of the first event: what usage in each event says; one, where there is an event for each streamed token or
    events were counted. Else, for N tokens in E events, one of the ways in which servers stream, if it explains every
    answer of the point: k tokens an event, E = ⌈N / k⌉; the first token alone, then k an event, E = 1 + ⌈(N − 1) / k⌉;
    k tokens, then one an event, E = 1 + N − k (always taken where N varies, as then N − E tokens come with the first
    event or never: both leave E − 1). An answer that the model ended may count an end token that no event carries.
    Between these the text decides: N · bytes of the first event / bytes of all, averaged over the answers, whose
    expectation is the tokens of the first event where tokens are alike, ± the 99 % half width and two standard
    deviations of a token's size (one token at most), as a first word may be shorter or longer than others. Where no way
    explains every answer, or the text contradicts it, the first event has one token if the text allows that (a server's
    first step makes one), else as many as the text says.

    Undefined where what is left open is more than 1 % of the result; so too without text (records of old, fewer than 8
    answers) unless a single way fits, and with fewer than 4 answers. Several events at the first stamp: the others have
    a later event's tokens each.
    """
    known = np.isfinite(answers.text_bytes)
    tokens, events = answers.output_tok.astype(np.float64), answers.events
    hidden = np.where(answers.counted & _hides_thinking(answers, known), answers.reasoning_tok, 0.0)
    streamed = np.where(answers.counted, tokens - hidden, events)
    why = np.where((answers.first_events >= events) | (streamed < 2), WHOLE, DEFINED)
    several = answers.counted & (streamed > events) & ~np.isfinite(answers.running_tok) & (events > 0)
    why[several & (why == DEFINED) & known & (answers.text_bytes < streamed)] = HIDDEN
    open_ = several & (why == DEFINED)
    later = np.where(np.isfinite(answers.running_tok), answers.running_tok, streamed - answers.first_events)
    if open_.any():
        first = _find_first(answers, streamed, open_)
        later[open_], sure = _leave(first, streamed[open_], events[open_], answers.first_events[open_])
        why[np.flatnonzero(open_)[~sure]] = UNKNOWN
    why[(why == DEFINED) & (later <= 0)] = WHOLE
    return LaterTokens(streamed_tok=streamed, later_tok=np.where(why == DEFINED, later, np.nan), why=why)


def _hides_thinking(answers: Answers, known: Bools) -> Bools:
    """Thinking was counted and not streamed. Records of old do not count its events; there one event a token shows it.

    Fewer tokens than events would be left: the thinking came as plain text.
    """
    left = answers.output_tok - np.nan_to_num(answers.reasoning_tok)
    fits = np.where(known, left >= answers.events, left == answers.events)
    return np.asarray((answers.reasoning_tok > 0) & (answers.reasoning_events == 0) & (answers.events > 0) & fits)


def _leave(first: _First, streamed: Floats, events: Ints, first_events: Ints) -> tuple[Floats, Bools]:
    """Tokens after the first stamp, and whether they are known to 1 %. Every event has a token at least."""
    most = streamed - events + 1
    if math.isnan(first.best):
        best, low, high = (1 + most) / 2, np.ones_like(most), most
    else:
        best, low, high = (np.clip(value, 1, most) for value in (first.best, first.low, first.high))
    each = (streamed - best) / (events - 1) if math.isnan(first.each) else first.each
    later = streamed - best - (first_events - 1) * each
    return later, np.maximum(high - best, best - low) <= MAX_UNCERTAINTY * later


def _find_first(answers: Answers, streamed: Floats, open_: Bools) -> _First:
    """From the answers that ended well: by the ways that fit all of them, and by their text."""
    usable = answers.ok & open_
    if usable.sum() < MIN_ALIKE:
        return _NOT_KNOWN
    # Those with an event a token, too: a way has to explain them.
    judged = answers.ok & answers.counted & ~np.isfinite(answers.running_tok) & (answers.events > 1)
    judged &= (streamed >= answers.events) & ~(np.isfinite(answers.text_bytes) & (answers.text_bytes < streamed))
    ended = answers.ended[judged].astype(np.float64)
    tokens, events, ended = np.unique(np.stack([streamed[judged], answers.events[judged], ended]), axis=1)
    apart = np.unique(tokens - events)
    if np.ptp(tokens) >= VARIED_TOK and (len(apart) == 1 or len(np.unique(tokens - events - ended)) == 1):
        return _First(math.inf, math.inf, math.inf, 1.0)
    text = _read_text(answers, streamed, usable)
    ways = _ways(tokens, tokens - ended, events)
    if text is None:  # two events fit a first token and all the others, whatever they hold
        return _choose(ways, ways[0].best) if ways and (events > 2).any() else _NOT_KNOWN
    if len(apart) == 1:
        ways.append(_First(float(apart[0]) + 1, 0, 0, 1.0))
    estimate, half, word = text
    near = [way for way in ways if abs(way.best - estimate) <= half + word]
    if near:
        return _choose(near, estimate)
    if half <= 1 and estimate - half - word <= 1:
        return _First(1.0, 1.0, 1.0)
    return _First(estimate, estimate - half - word, estimate + half + word)


def _ways(tokens: Floats, without_end: Floats, events: Floats) -> list[_First]:
    """k tokens an event, for each k that explains all answers; the first token alone, then k an event.

    ⌈N / k⌉ = E where N / E ≤ k < N / (E − 1), with one token less at the lower end where an end token may be counted.
    """
    found = []
    low, high = np.ceil(without_end / events).max(), np.floor((tokens - 1) / (events - 1)).min()
    if low <= high:
        found += [_First(float(k), 0, 0, float(k)) for k in np.arange(max(low, 2), high + 1)]
    long = events > 2
    low = np.ceil((without_end - 1) / (events - 1)).max()
    high = np.floor((tokens[long] - 2) / (events[long] - 2)).min() if long.any() else math.inf
    if low <= high:
        found.append(_First(1.0, 0, 0, float(low) if low == high else math.nan))
    return found


def _choose(ways: list[_First], estimate: float) -> _First:
    """The nearest to the estimate; all that remain say how sure it is."""
    best = min(ways, key=lambda way: abs(way.best - estimate))
    return _First(best.best, min(way.best for way in ways), max(way.best for way in ways), best.each)


def _read_text(answers: Answers, streamed: Floats, usable: Bools) -> tuple[float, float, float] | None:
    """(tokens of the first event by its text, half width of the estimate, what a first word may differ by)."""
    text, first, tokens = answers.text_bytes[usable], answers.first_text_bytes[usable], streamed[usable]
    n = len(text)
    if n < MIN_ANSWERS or not np.isfinite(text + first).all():
        return None
    each = tokens * first / text
    estimate = float(each.mean())
    half = _Z99 * float(each.std(ddof=1)) / math.sqrt(n)
    size = text / tokens
    # Scatter of a mean of N sizes is 1 / √N of one token's.
    scatter = float(size.std(ddof=1) / size.mean() * math.sqrt(tokens.mean()))
    # An estimate that is no whole number says that sizes differ, though all answers may be alike.
    word = min(1.0, max(0.05, 2 * scatter, 2 * abs(estimate - round(estimate))))
    return estimate, half, word
