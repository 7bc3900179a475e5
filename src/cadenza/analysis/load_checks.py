"""Was the load what was asked for, for long enough, and did anything move while it was?"""

import math

import numpy as np

from cadenza.analysis.finding import Finding, Verdict, check, unjudged, valid
from cadenza.record import LoadLabel, Point
from cadenza.stats import latency
from cadenza.stats.columns import Columns, Floats
from cadenza.stats.concurrency import in_flight, mean_in_flight, peak_in_flight
from cadenza.stats.intervals import mean_interval
from cadenza.stats.population import Followed, censored, follow_tpot, follow_ttft, population, was_held
from cadenza.stats.rounds import rounds_of
from cadenza.stats.stability import Stability, assess_stability
from cadenza.stats.steady import LONGER_MEMORY, Change, can_judge, closed_round, find_change, memory_of
from cadenza.stats.window import Window

# A closed loop refills a slot within its own dispatch lag; less than this in flight means that it did not.
MIN_IN_FLIGHT_SHARE = 0.95
# Changes that count, as fractions. TTFT scatters more than TPOT, and swings without the server having changed.
MATERIAL = {"TPOT": 0.05, "TTFT": 0.25}
# In an open loop TPOT is judged by a quarter of a round, which is eight times the requests in flight.
OPEN_TPOT_SHARE = 4
# A silence of this share of a point, and of so many usual times to the first token, is a server that has stopped.
MAX_SILENT_SHARE, SILENT_TTFTS, SILENT_STEPS = 0.05, 10.0, 200
# Of a mean: less than this makes no difference to anybody.
MOVED = 0.01
# TTFT by two rounds: by one, 5 % of healthy points of 500 requests at a load of 0.6 would seem to change.
OPEN_TTFT_ROUNDS = 2
# Slots in step: the mean resultant length of their dispatch times within a round. By chance C uniform phases have one
# of r with a probability of exp(−C r²) (Rayleigh), so that few slots look like slots in step.
MIN_LOCKSTEP, LOCKSTEP_CHANCE = 0.8, 0.005


def check_load(point: Point, columns: Columns, window: Window) -> list[Finding]:
    """The checks of the load, in the order in which `cadenza check` lists them."""
    return [
        *_check_window(window, columns),
        *_check_steady(point, columns, window),
        *_check_silence(columns),
        *_check_end(point, columns, window),
        *_check_stability(point, columns),
        *_check_lockstep(point, columns),
        *_check_in_flight(point, columns, window),
    ]


def _check_window(window: Window, columns: Columns) -> list[Finding]:
    if not len(columns):
        return []
    if window.kind == "whole":
        return [Finding("no-window", Verdict.SUSPECT, f"no steady state: {window.rule}")]
    message = f"the load was held for {window.length_s:.1f} s: {window.rule}"
    return [valid("window", message, window_s=window.length_s)]


def _check_steady(point: Point, columns: Columns, window: Window) -> list[Finding]:
    """Neither TPOT nor TTFT (user TTFT where the plan sets the times) moves in the order of dispatch."""
    if not len(columns) or window.kind == "whole":
        return []
    series = [(name, values.values) for name, values in _series(point, columns) if np.isfinite(values.values).any()]
    if not series:
        return [unjudged("steady-state", "no answer has a TPOT or a TTFT")]
    sizes, memory = _round_sizes(point, columns, window), _memory(point, columns)
    changes = [
        (name, find_change(values, round_size=sizes[name], material=MATERIAL[name], memory=memory))
        for name, values in series
    ]
    changed = [_describe(name, change) for name, change in changes if change is not None]
    if changed:
        return changed
    judged = [name for name, values in series if can_judge(len(values), sizes[name])]
    short = "; ".join(
        f"{name}: {len(values)} requests, {sizes[name]} to a round: too few to judge"
        for name, values in series
        if name not in judged
    )
    if not judged:
        return [unjudged("steady-state", short)]
    subject = "neither TPOT nor TTFT changes" if len(judged) == 2 else f"{judged[0]} does not change"
    sentence = f"{subject} in the order of dispatch" + (f"; {short}" if short else "")
    return [valid("steady-state", sentence)]


def _round_sizes(point: Point, columns: Columns, window: Window) -> dict[str, int]:
    """Requests that share their circumstances, for either series.

    In an open loop TPOT follows the number in flight, whose memory is that of the requests in flight, and user TTFT
    follows the backlog, whose memory is longer than `intervals.round_of` says, twice as long.
    """
    rounds = rounds_of(point, columns, window)
    if point.load is LoadLabel.CLOSED:
        size = closed_round(rounds.in_flight, _lengths(columns))
        return {"TPOT": size, "TTFT": size}
    return {"TPOT": max(rounds.in_flight, -(-rounds.size // OPEN_TPOT_SHARE)), "TTFT": OPEN_TTFT_ROUNDS * rounds.size}


def _memory(point: Point, columns: Columns) -> float:
    """What is added to the lag-1 correlation of the series. An open loop's longer memory is in its longer rounds."""
    if point.load is not LoadLabel.CLOSED:
        return LONGER_MEMORY
    return memory_of(point.concurrency or 1, _lengths(columns))


def _lengths(columns: Columns) -> Floats:
    """(n,) output tokens of the measured `ok` requests."""
    return columns.output_tok[columns.measured & columns.ok].astype(np.float64)


def _series(point: Point, columns: Columns) -> list[tuple[str, Followed]]:
    return [
        ("TPOT", follow_tpot(columns)),
        ("TTFT", follow_ttft(columns, user=point.load is not LoadLabel.CLOSED)),
    ]


def _describe(name: str, change: Change) -> Finding:
    moved = f"{change.before:.4g} to {change.after:.4g} ms ({100 * change.relative:+.0f} %)"
    numbers = {"before_ms": change.before, "after_ms": change.after, "change_share": change.relative}
    return Finding("steady-state", Verdict.SUSPECT, f"no steady state: {name} {change.kind}: {moved}", numbers)


def _check_silence(columns: Columns) -> list[Finding]:
    """A server that sends nothing to anybody while requests wait has stopped, however fast it is before and after."""
    lasted_ms, share = silence(columns)
    if lasted_ms != lasted_ms:
        return []
    ttft = latency.ttft_ms(columns)[columns.measured & columns.ok]
    ttft = ttft[np.isfinite(ttft)]
    # Few requests can be slow to begin; a quarter of them is not.
    usual_ms = float(np.percentile(ttft, 25)) if len(ttft) else 0.0
    wrong = share > MAX_SILENT_SHARE and lasted_ms > SILENT_TTFTS * usual_ms
    lasted = f"{lasted_ms / 1000:.1f} s ({100 * share:.1f} % of the point)"
    sentence = f"while requests waited, the server sent nothing for {lasted}" + ("" if wrong else " at most")
    numbers = {"silent_s": lasted_ms / 1000, "silent_share": share}
    return [check("silence", sentence, wrong, Verdict.SUSPECT, **numbers)]


def silence(columns: Columns) -> tuple[float, float]:
    """**Silence**: the longest time without an event of any request while at least one is in flight; ms, and its share.

    Of the time from the first dispatch of any phase to the last end of a measured request, in steps of 0.5 %: a silence
    is a run of steps without an event, throughout which a request is in flight. NaN: nothing was sent, or has ended.
    """
    sent = columns.sent_ms[np.isfinite(columns.sent_ms)]
    ended = columns.done_ms[columns.measured & np.isfinite(columns.done_ms)]
    if not len(sent) or not len(ended) or not ended.max() > sent.min():
        return float("nan"), float("nan")
    start, end = float(sent.min()), float(ended.max())
    edges = np.linspace(start, end, SILENT_STEPS + 1)
    heard = np.histogram(columns.event_ms, SILENT_STEPS, (start, end))[0]
    times, level = in_flight(columns)
    # The least level in each step: at its start, and at every change inside it.
    least = np.concatenate([[0], level])[np.searchsorted(times, edges[:-1], side="right")]
    place = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, SILENT_STEPS - 1)
    inside = (times > start) & (times <= end)
    np.minimum.at(least, place[inside], level[inside])
    quiet = (heard == 0) & (least > 0)
    longest = run = 0
    for step in quiet.tolist():
        run = run + 1 if step else 0
        longest = max(longest, run)
    return longest * (end - start) / SILENT_STEPS, longest / SILENT_STEPS


def _check_end(point: Point, columns: Columns, window: Window) -> list[Finding]:
    """Every measured request was followed to its end, under the load that it was measured under."""
    lost, measured = int(censored(columns).sum()), int(population(columns).sum())
    if lost:
        sentence = f"{lost} of {measured} measured requests had not ended when the load did"
        if point.cooldown_s is not None:
            sentence += f", at most {point.cooldown_s:g} s after the last of them was due"
        sentence += ": figures that they could move are lower bounds (≥)"
        return [Finding("censored", Verdict.SUSPECT, sentence, {"censored": lost, "measured": measured})]
    if not measured or was_held(point, columns):
        message = f"all {measured} measured requests were followed to their end"
        return [valid("followed", message, measured=measured)]
    moved = _moved_by_end(point, columns, window)
    sentence = "the load was not held until the last measured request had ended"
    if moved is not None:
        name, difference = moved
        sentence += f": without the requests that saw it fall, mean {name} differs by {difference:+.3g} ms"
        return [Finding("load-not-held", Verdict.SUSPECT, sentence, {"difference_ms": difference})]
    return [valid("load-not-held", f"{sentence}, which moves no mean beyond its interval")]


def _moved_by_end(point: Point, columns: Columns, window: Window) -> tuple[str, float] | None:
    """The first mean, and by how many ms, that requests which saw the load fall move beyond the others' interval."""
    last_ms = float(np.nanmax(columns.sent_ms[columns.measured], initial=-np.inf))
    rounds = rounds_of(point, columns, window)
    for name, followed in _series(point, columns):
        values = followed.values
        before = values[columns.done_ms[followed.places] <= last_ms]
        interval = mean_interval(before, round_size=rounds.size, phases=rounds.phases)
        half = (interval.high - interval.low) / 2
        if not len(before) or not len(values):
            continue
        difference = float(values.mean() - before.mean())
        # By chance a mean without k of n values differs by their standard deviation · √(k / (n (n − k))).
        n, kept = len(values), len(before)
        chance = 3 * float(before.std()) * math.sqrt((n - kept) / (n * kept))
        allowed = max(MOVED * abs(float(values.mean())), chance, half if half == half else 0.0)
        if abs(difference) > allowed:
            return name, -difference
    return None


def _check_stability(point: Point, columns: Columns) -> list[Finding]:
    """An open or capped load whose backlog grows has no latency that is the server's."""
    load = assess_stability(point, columns)
    if load is None:
        return []
    return [_judge_stability(load)]


def _judge_stability(load: Stability) -> Finding:
    rates = f"{load.arriving_per_s:.3g} requests/s arrive"
    done = f"the server completes {load.completed_per_s:.3g}/s while requests wait"
    arriving, window = {"arriving_per_s": load.arriving_per_s}, {"window_responses": load.window_responses}
    numbers = arriving | {"completed_per_s": load.completed_per_s} | window
    if load.grows:
        message = f"UNSTABLE: {rates}, {done}: the backlog grows, and latencies with the length of the run"
        return Finding("backlog-grows", Verdict.SUSPECT, message, numbers)
    length = f"the window is {load.window_responses:.1f} mean user latencies long"
    if not load.is_stable:
        needed = f"{load.needed_responses} are needed to see whether the backlog grows"
        short = f"{length}, {needed}: measure longer; {rates}, {done}"
        return Finding("window-short", Verdict.SUSPECT, short, numbers | {"needed_responses": load.needed_responses})
    message = f"{rates}, and the backlog does not grow; {length}"
    return Finding("backlog-stable", Verdict.VALID, message, arriving | window)


def _check_lockstep(point: Point, columns: Columns) -> list[Finding]:
    """Slots of a closed loop that send in step see each other's prefill, and the rest of the time nobody's."""
    slots = point.concurrency or 1
    least = max(MIN_LOCKSTEP, float(np.sqrt(-np.log(LOCKSTEP_CHANCE) / slots)))
    if point.load is not LoadLabel.CLOSED or least > 0.95:
        return []
    concentration = lockstep(np.sort(columns.sent_ms[columns.measured & np.isfinite(columns.sent_ms)]), slots)
    if concentration != concentration:
        return []
    message = f"dispatch times within a round are concentrated by {concentration:.2f} (0 even, 1 all at once)"
    wrong = concentration > least
    sentence = f"the {slots} slots are in step: {message}; draw --output-tokens from a range" if wrong else message
    numbers = {"concentration": concentration, "slots": slots, "allowed": least}
    return [check("lockstep", sentence, wrong, Verdict.SUSPECT, **numbers)]


def lockstep(sent_ms: Floats, slots: int) -> float:
    """**Lockstep**: how close together the dispatches of a round of `slots` lie, 0 (even) to 1 (at once).

    The mean resultant length of the phases 2π (t − t₀) / (t₁ − t₀) of each round's dispatch times t, from its first
    dispatch t₀ to the next round's first t₁ (Mardia and Jupp, Directional Statistics, 2000), median over rounds.
    `sent_ms` (n,) ascending. NaN: fewer than two rounds.
    """
    rounds = (len(sent_ms) - 1) // slots
    if rounds < 2:
        return float("nan")
    starts = sent_ms[: rounds * slots + 1 : slots]
    lasted = np.diff(starts)
    if not (lasted > 0).all():
        return float("nan")
    inside = sent_ms[: rounds * slots].reshape(rounds, slots)
    phases = 2 * np.pi * (inside - starts[:-1, None]) / lasted[:, None]
    return float(np.median(np.abs(np.exp(1j * phases).mean(axis=1))))


def _check_in_flight(point: Point, columns: Columns, window: Window) -> list[Finding]:
    """In flight never above C, in a closed loop C on average, and the peak never below the mean."""
    peak, mean = peak_in_flight(columns), mean_in_flight(columns, window.start_ms, window.end_ms)
    findings = []
    numbers: dict[str, float] = {"peak": peak, "mean": mean}
    if mean > peak + 1e-9:
        message = f"{mean:.2f} in flight on average, but {peak} at most"
        findings.append(Finding("in-flight", Verdict.INVALID, message, numbers))
    slots = point.concurrency
    if slots is None:
        return [*findings, valid("in-flight", f"{peak} in flight at most, {mean:.2f} on average", **numbers)]
    numbers["slots"] = slots
    if peak > slots:
        message = f"{peak} requests were in flight where {slots} were asked for"
        return [*findings, Finding("in-flight", Verdict.INVALID, message, numbers)]
    if point.load is LoadLabel.CLOSED and window.kind == "steady":
        message = f"{mean:.2f} requests were in flight on average where {slots} were asked for"
        few = mean < MIN_IN_FLIGHT_SHARE * slots
        return [*findings, check("in-flight", message, few, Verdict.SUSPECT, **numbers)]
    return [*findings, valid("in-flight", f"{peak} in flight at most, of {slots} allowed", **numbers)]
