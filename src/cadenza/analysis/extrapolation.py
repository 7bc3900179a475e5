"""Is a simulated point inside the domain in which its profile was measured? What lies outside of it, with numbers."""

import msgspec
import numpy as np

from cadenza.analysis.finding import Finding, Verdict, unjudged, valid
from cadenza.domain import Domain, Lengths
from cadenza.record import LoadLabel, Point
from cadenza.stats.columns import Columns, Floats, Ints
from cadenza.stats.concurrency import level_at, peak_in_flight

# Requests in flight beyond a row, and a share of them, that are no other load: what refilling the slots of a closed
# loop takes from its mean (`analysis.checks.MIN_IN_FLIGHT_SHARE`).
SCATTER, LOAD_SHARE = 0.5, 0.05
# At a measured rate the mean in flight differs between two seeds by up to this share (how-to/simulate-a-server.md).
SEED_SHARE = 0.6
# Tokens that may be made with more requests in flight than the profile ever had, as a share: the peak is chance.
PEAK_SHARE = 0.05
# What another rate than the measured ones is. The plan sets it, so that it does not scatter.
SAME_RATE = 0.05
# A mean length further off than this moves TPOT by up to 7 %, and TTFT by 10 % (docs/how-to/simulate-a-server.md).
LENGTH_SHARE = 0.10
# Tokens of a counted prompt that do not matter: chat templates and tokenizers differ by as many.
TEMPLATE_TOK = 32
# Standard errors of the point's mean, on top: with heavy-tailed lengths two seeds of one law differ by more than 10 %.
ERRORS = 3.0
# Error where it was tested, in %, from which on a mean counts as not known, and a percentile: half of the 10 % that it
# is to be right to, since few loads are tested, and between others it is up to twice as far off (the same page).
KNOWN_MEAN_PCT, KNOWN_PERCENTILE_PCT = 10.0, 5.0


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one point: of its measured `ok` requests.

    arrivals, rate_per_s   the arrival law and its rate; None in a closed loop
    in_system    requests in flight: C in a closed loop, else averaged over the gaps between tokens
    level        (k,) requests in flight at the midpoint of each gap
    peak         most requests in flight at any moment of the point
    prompt_tok, aimed_prompt_tok, output_tok   (n,); NaN: not known
    """

    load: LoadLabel
    arrivals: str | None
    rate_per_s: float | None
    in_system: float
    level: Ints
    peak: int
    prompt_tok: Floats
    aimed_prompt_tok: Floats
    output_tok: Floats


def describe_workload(point: Point, columns: Columns, arrivals: str | None = None) -> Workload | None:
    """The load of `point`; `arrivals` where the point itself does not say. None: no request is measured and `ok`."""
    counted = columns.measured & columns.ok & (columns.output_tok > 0)
    if not counted.any():
        return None
    owner = columns.event_owner()
    gaps = (owner[1:] == owner[:-1]) & counted[owner[1:]]
    level = level_at(columns, (columns.event_ms[1:] + columns.event_ms[:-1])[gaps] / 2)
    peak = peak_in_flight(columns)
    held = point.concurrency if point.load is LoadLabel.CLOSED else None
    mean = float(level.mean()) if len(level) else float(peak)
    return Workload(
        load=point.load,
        arrivals=None if point.load is LoadLabel.CLOSED else point.arrivals or arrivals,
        rate_per_s=point.rate_per_s,
        in_system=mean if held is None else float(held),
        level=level,
        peak=peak,
        prompt_tok=columns.prompt_tok[counted],
        aimed_prompt_tok=columns.aimed_tok[counted],
        output_tok=columns.output_tok[counted].astype(np.float64),
    )


def span_domain(workloads: list[Workload], in_system: tuple[float, ...]) -> Domain:
    """**Domain** of a fit: the loads of its rows, and the lengths, loops and arrival laws of its points (≥ 1).

    Of lengths the means of the points and the shortest and longest request. Not P5 to P95: with heavy tails (a
    lognormal of CV 1.3, 128 requests) the P95 of one law scatters by 19 % between seeds, while its own P5 to P95 never
    leaves the range of the requests.
    """
    rates = [one.rate_per_s for one in workloads if one.rate_per_s is not None]
    return Domain(
        in_system=in_system,
        peak_in_flight=max(one.peak for one in workloads),
        loads=tuple(label.value for label in LoadLabel if any(one.load is label for one in workloads)),
        arrivals=tuple(sorted({one.arrivals for one in workloads if one.arrivals is not None})),
        rates_per_s=(min(rates), max(rates)) if rates else (),
        prompt_tok=_span([one.prompt_tok for one in workloads]),
        aimed_prompt_tok=_span([one.aimed_prompt_tok for one in workloads]),
        output_tok=_span([one.output_tok for one in workloads]),
    )


def _span(lengths: list[Floats]) -> Lengths | None:
    if not all(np.isfinite(tokens).all() for tokens in lengths):
        return None
    means = [float(tokens.mean()) for tokens in lengths]
    return Lengths(
        mean=(min(means), max(means)),
        range=(min(float(tokens.min()) for tokens in lengths), max(float(tokens.max()) for tokens in lengths)),
    )


def find_extrapolation(domain: Domain, workload: Workload) -> list[Finding]:
    """**Extrapolation**: where a point lies outside of the domain of its profile. Empty: inside of it.

    Load: more or fewer in flight than any row, by more than half a request and 5 %, or more than 5 % of the tokens
    made with more in flight than the profile's peak. At a rate of a loop that was measured: the rate more than 5 %
    beyond those measured, or in flight more than 60 % beyond the rows. Lengths: the mean further than 10 % and three
    standard errors from any point's, or P5 or P95 further than 10 % outside of all requests'. The loop (OPEN, CAPPED,
    CLOSED) and the arrival law: not among those that were measured. Prompts are compared as aimed at, where both sides
    know that; counts depend on the tokenizer, and may differ by 32 tokens more.
    """
    if domain.aimed_prompt_tok is not None and bool(np.isfinite(workload.aimed_prompt_tok).all()):
        prompts = _judge_lengths("prompt", domain.aimed_prompt_tok, workload.aimed_prompt_tok, 0)
    else:
        prompts = _judge_lengths("prompt", domain.prompt_tok, workload.prompt_tok, TEMPLATE_TOK)
    return [
        *_judge_load(domain, workload),
        *prompts,
        *_judge_lengths("output", domain.output_tok, workload.output_tok, 0),
        *_judge_loop(domain, workload),
    ]


def check_extrapolation(point: Point, columns: Columns) -> list[Finding]:
    """`find_extrapolation` by `point.domain` as checks, SUSPECT each; None: the profile does not record it all.

    []: the point has no domain, since no measured law answered, or no request that was measured and `ok`.
    """
    domain = point.domain
    workload = None if domain is None else describe_workload(point, columns)
    if domain is None or workload is None:
        return []
    outside = find_extrapolation(domain, workload)
    if not domain.recorded:
        message = "the profile does not record lengths, loops and arrival law of its run: `cadenza fit` it again"
        return [*outside, unjudged("domain-unrecorded", message)]
    return outside or [valid("inside-domain", "load and lengths are within those the profile was fitted to")]


def note_unknown(point: Point, columns: Columns) -> list[Finding]:
    """**Not known**: means that the profile gives with an error above 10 %, percentiles above 5 %; what is untested.

    In a closed loop at the load of a row by the largest in-sample error of any row; elsewhere by the largest of those
    and of the out-of-sample errors. [] without a domain.
    """
    domain = point.domain
    workload = None if domain is None else describe_workload(point, columns)
    if domain is None or workload is None:
        return []
    at_row = workload.load is LoadLabel.CLOSED and any(
        abs(workload.in_system - row) <= max(SCATTER, LOAD_SHARE * row) for row in domain.in_system
    )
    notes = []
    if not domain.holdout_pct:
        message = "percentiles of TPOT and ITL are not known: the profile records no out-of-sample error"
        notes.append(unjudged("profile-percentiles-unknown", message))
    errors = dict(domain.rows_pct)
    if not at_row:
        errors |= {name: max(pct, errors.get(name, 0.0), key=abs) for name, pct in domain.holdout_pct.items()}
    limits = {name: KNOWN_MEAN_PCT if name.endswith("mean") else KNOWN_PERCENTILE_PCT for name in errors}
    named = {name: pct for name, pct in errors.items() if abs(pct) > limits[name]}
    if named:
        message = "not known from this profile, by its errors where it was tested: "
        message += ", ".join(f"{_spell(name)} {pct:+.0f} %" for name, pct in named.items())
        notes.append(unjudged("profile-errors", message, **{f"{name}_pct": pct for name, pct in named.items()}))
    if domain.holdout == "blocks" and not at_row and len(domain.in_system) > 1:
        low, high = domain.in_system[0], domain.in_system[-1]
        message = f"interpolated between rows at {low:.3g} and {high:.3g} requests in flight: "
        message += "no load in between was measured"
        notes.append(unjudged("profile-interpolated", message, lowest_in_system=low, highest_in_system=high))
    return notes


def _spell(name: str) -> str:
    """`itl_p95` → ITL P95."""
    figure, _, which = name.partition("_")
    return f"{figure.upper()} {which if which == 'mean' else which.upper()}"


def _judge_load(domain: Domain, workload: Workload) -> list[Finding]:
    low, high, level, rate = domain.in_system[0], domain.in_system[-1], workload.in_system, workload.rate_per_s
    planned = rate is not None and workload.load in domain.loads and bool(domain.rates_per_s)
    share = SEED_SHARE if planned else LOAD_SHARE
    if rate is not None and planned:
        slowest, fastest = domain.rates_per_s
        if not slowest * (1 - SAME_RATE) <= rate <= fastest * (1 + SAME_RATE):
            numbers = {"rate_per_s": rate, "lowest_rate_per_s": slowest, "highest_rate_per_s": fastest}
            measured = f"{slowest:.3g}" if slowest == fastest else f"{slowest:.3g} to {fastest:.3g}"
            message = f"extrapolated: {rate:.3g} requests/s, the profile was measured at {measured}"
            return [Finding("extrapolated-rate", Verdict.SUSPECT, message, numbers)]
    numbers = {"in_system": level, "lowest_in_system": low, "highest_in_system": high}
    if level > high + max(SCATTER, share * high):
        message = f"extrapolated: {level:.3g} requests in flight, the profile was measured up to {high:.3g}"
        return [Finding("extrapolated-load-above", Verdict.SUSPECT, message, numbers)]
    if level < low - max(SCATTER, share * low):
        message = f"extrapolated: {level:.3g} requests in flight, the profile was measured from {low:.3g} on"
        return [Finding("extrapolated-load-below", Verdict.SUSPECT, message, numbers)]
    most = domain.peak_in_flight
    if most is None or planned or not len(workload.level):
        return []
    most_allowed = max(float(most), high) + SCATTER
    above = float((workload.level > most_allowed).mean())
    if above <= PEAK_SHARE:
        return []
    numbers = {"peak_in_flight": workload.peak, "measured_peak_in_flight": most, "share": above}
    message = (
        f"extrapolated: {100 * above:.0f} % of the tokens with more than {most} requests in flight "
        f"(peak {workload.peak}), the most that the profile was measured with"
    )
    return [Finding("extrapolated-peak-above", Verdict.SUSPECT, message, numbers)]


def _judge_lengths(code: str, measured: Lengths | None, tokens: Floats, free_tok: float) -> list[Finding]:
    if measured is None or not np.isfinite(tokens).all():
        return []
    mean, error = float(tokens.mean()), float(tokens.std()) / np.sqrt(len(tokens))
    lowest, highest = measured.mean
    allowed = free_tok + ERRORS * error
    if not lowest * (1 - LENGTH_SHARE) - allowed <= mean <= highest * (1 + LENGTH_SHARE) + allowed:
        numbers = {"mean_tok": mean, "lowest_mean_tok": lowest, "highest_mean_tok": highest}
        message = (
            f"extrapolated: {code}s of {mean:.0f} tokens on average, "
            f"the profile was measured with {_between(lowest, highest)}"
        )
        return [Finding(f"extrapolated-{code}-mean", Verdict.SUSPECT, message, numbers)]
    p5, p95 = (float(value) for value in np.percentile(tokens, (5, 95)))
    shortest, longest = measured.range
    if p5 >= shortest * (1 - LENGTH_SHARE) - free_tok and p95 <= longest * (1 + LENGTH_SHARE) + free_tok:
        return []
    numbers = {"p5_tok": p5, "p95_tok": p95, "shortest_tok": shortest, "longest_tok": longest}
    message = (
        f"extrapolated: {code}s of {p5:.0f} to {p95:.0f} tokens (P5 to P95), "
        f"the profile was measured with {_between(shortest, longest)}"
    )
    return [Finding(f"extrapolated-{code}-range", Verdict.SUSPECT, message, numbers)]


def _between(low: float, high: float) -> str:
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


_LOOPS = {"OPEN": "an open loop", "CAPPED": "a capped open loop", "CLOSED": "a closed loop"}


def _judge_loop(domain: Domain, workload: Workload) -> list[Finding]:
    if not domain.loads:
        return []
    if workload.load not in domain.loads:
        measured = " and ".join(_LOOPS[label] for label in domain.loads)
        message = f"extrapolated: {_LOOPS[workload.load.value]}, the profile was measured in {measured}"
        return [Finding("extrapolated-loop", Verdict.SUSPECT, message, {})]
    if workload.arrivals is not None and workload.arrivals not in domain.arrivals:
        message = (
            f"extrapolated: {workload.arrivals} arrivals, the profile was measured with {', '.join(domain.arrivals)}"
        )
        return [Finding("extrapolated-arrivals", Verdict.SUSPECT, message, {})]
    return []
