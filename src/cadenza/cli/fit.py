"""`cadenza fit`: a profile for the embedded engine from a run, so that it answers as that server did."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cadenza.analysis.extrapolation import Workload
    from cadenza.analysis.fitting import Fitted, Sample
    from cadenza.analysis.point_summary import PointSummary
    from cadenza.domain import Domain
    from cadenza.measure.holdout import HeldOut
    from cadenza.record import Record
    from cadenza.store.rundir import Run

_DEFAULT_LEN = 8192
_DEFAULT_SEQS = 256
Table = dict[str, Any]


class _Used(NamedTuple):
    """A VALID or SUSPECT point."""

    point: "PointSummary"
    sample: "Sample"
    halves: "tuple[Sample, Sample] | None"
    workload: "Workload"
    thinks: bool


class _ModelFit(NamedTuple):
    used: "list[_Used]"
    fitted: "Fitted"
    held: "list[HeldOut]"
    again: "list[HeldOut]"
    table: Table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    from cadenza.cli.flags import RUN_HELP

    parser.description = (
        "Make an engine profile of the measured law from a run: a row for each load, with the spread of its latencies. "
        "Only VALID and SUSPECT points are used. The profile goes to FILE, or to stdout. To stderr go its "
        "in-sample residuals, and its out-of-sample errors at loads that are left out of the fit."
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("-o", "--out", metavar="FILE", help="new file for the profile, NAME.toml (default: stdout)")
    parser.add_argument(
        "--json", action="store_true", help="print the profile, its residuals and its out-of-sample errors as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Fit, write, print; returns 0."""
    import msgspec
    import tomli_w

    from cadenza.errors import UsageError
    from cadenza.store.names import find_run
    from cadenza.store.rundir import read_run

    path = find_run(args.run)
    stored = read_run(path)
    name = path.resolve().name
    used, left_out = _read_points(stored)
    for line in left_out:
        _say(f"cadenza: left out: {line}")
    if stored.broken_lines:
        _say(f"cadenza: {stored.broken_lines} line(s) of the records are cut off and left out")
    if not used:
        raise UsageError(
            f"{path} has no point to fit: none is VALID or SUSPECT and has answers of two tokens (`cadenza check`)"
        )
    models = {model: _fit_model(stored, name, model, points) for model, points in used.items()}
    profile = _profile(stored, name, models)
    residuals = [row for model, fit in models.items() for row in _residuals(model, fit)]
    held = [row for model, fit in models.items() for row in _errors(model, fit, fit.held)]
    again = [row for model, fit in models.items() for row in _errors(model, fit, fit.again)]
    text = _header(stored, models) + "\n" + tomli_w.dumps(profile)
    if args.out is not None:
        _write(Path(args.out), text)
    if args.json:
        printed: Table = {
            "profile": profile,
            "residuals": residuals,
            "in_sample": again,
            "holdout": held,
            "left_out": left_out,
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(printed), indent=1) + b"\n")
    elif args.out is None:
        sys.stdout.write(text)
    _print(residuals, again + held, models)
    _say_next(args.out, models)
    return 0


def _read_points(stored: "Run") -> tuple[dict[str, list[_Used]], list[str]]:
    """Points to fit, by model, and in words those that are not."""
    from cadenza.analysis.extrapolation import describe_workload
    from cadenza.analysis.finding import Verdict
    from cadenza.analysis.fitting import take_sample
    from cadenza.analysis.summary import summarise_point
    from cadenza.measure.holdout import split_sample
    from cadenza.record import printable
    from cadenza.report.columns import label
    from cadenza.stats.columns import Columns

    by_point: dict[int, list[Record]] = {}
    for record in stored.records():
        by_point.setdefault(record.point, []).append(record)
    used: dict[str, list[_Used]] = {}
    left_out = []
    for point in stored.manifest.points:
        if point.start_ns is None:
            continue
        records = sorted(by_point.get(point.index, []), key=lambda record: record.index)
        summary = summarise_point(point, records, stored.manifest.spec.slo)
        load = f"{'C = ' if point.concurrency else ''}{label(summary)}"
        name = f"{printable(point.model, 80)} at {load}"
        if summary.verdict not in (Verdict.VALID, Verdict.SUSPECT):
            left_out.append(f"{name} is {summary.verdict.value}: {_first(summary.reasons)}")
            continue
        columns = Columns.of(records)
        sample = take_sample(columns)
        workload = describe_workload(point, columns, stored.manifest.spec.arrivals)
        if sample is None or workload is None:
            left_out.append(f"{name} has no measured answer with a TPOT")
            continue
        halves = split_sample(columns)
        used.setdefault(point.model, []).append(_Used(summary, sample, halves, workload, _thinks(stored, records)))
    return used, left_out


def _thinks(stored: "Run", records: "list[Record]") -> bool:
    """Whether the model reasons before it answers: as counted, or, where nobody counts, as the trial answer did."""
    counted = [record.reasoning_tokens for record in records if record.reasoning_tokens is not None]
    return any(counted) if counted else stored.manifest.server.reasons_first


def _fit_model(stored: "Run", name: str, model: str, used: list[_Used]) -> _ModelFit:
    from cadenza.analysis.extrapolation import span_domain
    from cadenza.analysis.fitting import fit_rows
    from cadenza.measure.holdout import hold_out, reproduce
    from cadenza.record import printable

    fitted = fit_rows([one.sample for one in used])
    samples = [one.sample for one in used]
    held, again = hold_out(samples, [one.halves for one in used]), reproduce(samples)
    domain = span_domain([one.workload for one in used], tuple(_round(row.in_system) for row in fitted.rows))
    manifest, slope = stored.manifest, fitted.slope
    table: Table = {"prompt_tok": _round(fitted.prompt_tok) if fitted.prompt_tok >= 0 else 0.0}
    table["ttft_ms_per_prompt_tok"] = _round(slope.used)
    table["slope_interval"] = [_round(slope.low), _round(slope.high)] if slope.low <= slope.high else []
    table["source"] = {
        "run": printable(name, 100),
        "started": manifest.started,
        "server": _server(stored),
        "cadenza": manifest.environment.cadenza,
        "simulated": manifest.simulated,
    }
    table["domain"] = _domain_table(domain, held, again)
    table["rows"] = [
        {
            "in_system": _round(row.in_system),
            "verdict": "VALID" if all(used[i].point.verdict == "VALID" for i in row.samples) else "SUSPECT",
            "requests": row.requests,
            "gaps": row.gaps,
            "ttft_ms": _round(row.ttft_ms),
            "step_ms": _round(row.step_ms),
            "ttft_spread": [round(float(value), 5) for value in row.ttft_spread],
            "step_spread": [round(float(value), 5) for value in row.step_spread],
        }
        for row in fitted.rows
    ]
    return _ModelFit(used, fitted, held, again, table)


def _domain_table(domain: "Domain", held: "list[HeldOut]", again: "list[HeldOut]") -> Table:
    """`domain` with its out-of-sample and in-sample errors, as plain values; what is not known is left out."""
    import msgspec

    from cadenza.measure.holdout import worst

    table: Table = {
        "in_system": list(domain.in_system),
        "peak_in_flight": domain.peak_in_flight,
        "loads": list(domain.loads),
        "arrivals": list(domain.arrivals),
        "rates_per_s": list(domain.rates_per_s),
    }
    for name in ("prompt_tok", "aimed_prompt_tok", "output_tok"):
        if (lengths := getattr(domain, name)) is not None:
            table[name] = {key: [_round(tok) for tok in ends] for key, ends in msgspec.structs.asdict(lengths).items()}
    if held:
        table["holdout"] = held[0].kind
        table["holdout_pct"] = {figure: round(pct, 1) for figure, pct in worst(held).items()}
    table["rows_pct"] = {figure: round(pct, 1) for figure, pct in worst(again).items()}
    return table


def _profile(stored: "Run", name: str, models: dict[str, _ModelFit]) -> Table:
    """The whole profile as plain values, as `engine.profile.load` reads it."""
    from cadenza.record import printable

    limits = {"max_model_len": stored.manifest.server.max_model_len_tok or _DEFAULT_LEN}
    peak = max(one.point.in_flight.peak for fit in models.values() for one in fit.used)
    if peak > _DEFAULT_SEQS:
        limits["max_num_seqs"] = peak
    return {
        "name": f"measured-{printable(name, 100)}",
        "hardware": f"not known; as measured through the API of {_server(stored)}",
        "limits": limits,
        "models": [
            {"name": model, "thinking": any(one.thinks for one in fit.used), "measured": fit.table}
            for model, fit in models.items()
        ],
    }


def _server(stored: "Run") -> str:
    from cadenza.record import printable

    engine, version = stored.manifest.server.engine, stored.manifest.server.version or ""
    return printable(version if version.lower().startswith(engine.lower()) else f"{engine} {version}".strip(), 120)


def _residuals(model: str, fit: _ModelFit) -> list[Table]:
    """In-sample: each point's means against what the law, as written, gives at its load."""
    import msgspec
    import numpy as np

    from cadenza.analysis.fitting import SHARES
    from cadenza.engine.laws.measured import Measured, MeasuredFit
    from cadenza.measure.holdout import predict_ttft
    from cadenza.report.columns import label

    law = Measured(msgspec.convert(fit.table, MeasuredFit))
    quantiles = [(tile + 0.5) / SHARES for tile in range(SHARES)]
    return [
        {
            "model": model,
            "load": label(one.point),
            "verdict": one.point.verdict.value,
            "in_system": one.sample.in_system,
            "requests": len(one.sample.ttft_ms),
            "ttft_mean_ms": float(one.sample.ttft_ms.mean()),
            "ttft_fitted_ms": float(predict_ttft(law, one.sample).mean()),
            "tpot_mean_ms": one.sample.tpot_ms,
            "tpot_fitted_ms": float(np.mean([law.step_ms(one.sample.in_system, q) for q in quantiles])),
        }
        for one in (fit.used[i] for row in fit.fitted.rows for i in row.samples)
    ]


def _errors(model: str, fit: _ModelFit, held: "list[HeldOut]") -> list[Table]:
    """Each load of `held`, measured and predicted in ms, and the error in %; null: not known."""
    from cadenza.domain import FIGURES
    from cadenza.report.columns import label

    return [
        {
            "model": model,
            "kind": one.kind,
            "load": ", ".join(label(fit.used[i].point) for i in one.samples),
            "in_system": one.in_system,
            "requests": one.requests,
            "measured_ms": one.measured,
            "predicted_ms": one.predicted,
            "error_pct": {name: pct if (pct := one.error_pct(name)) == pct else None for name in FIGURES},
        }
        for one in held
    ]


def _print(residuals: list[Table], errors: list[Table], models: dict[str, _ModelFit]) -> None:
    from cadenza.record import printable

    for model, fit in models.items():
        _say(f"\n{printable(model, 80)}\nIn-sample residuals, at the loads that the law is fitted to:\n{_HEADER}")
        for row in (row for row in residuals if row["model"] == model):
            ttft, tpot = (row[f"{name}_fitted_ms"] / row[f"{name}_mean_ms"] - 1 for name in ("ttft", "tpot"))
            _say(
                f"{row['load']:>12} {row['in_system']:10.2f} {row['requests']:9,}"
                f" {row['ttft_mean_ms']:10.2f} {100 * ttft:+7.2f} %"
                f" {row['tpot_mean_ms']:10.3f} {100 * tpot:+7.2f} %  {row['verdict']}"
            )
        rows = [row for row in errors if row["model"] == model]
        _print_errors([row for row in rows if row["kind"] == "rows"])
        _print_errors([row for row in rows if row["kind"] != "rows"])
        _say(f"  {_tell_slope(fit)}")


_HEADER = """\
                                     TTFT ms      law    TPOT ms      law
        load  in system  requests       mean    − mean       mean    − mean"""
_HELD_HEADER = """\
                                      TTFT    TPOT    TPOT    TPOT    TPOT     ITL     ITL     ITL
        load  in system  requests     mean    mean     P50     P95     P99     P50     P95     P99"""
_HELD = {
    "rows": "In-sample errors, in %, of percentiles too: each load predicted by the fit of all loads:",
    "loads": "Out-of-sample errors, in %: each load predicted by a fit of the other loads:",
    "blocks": "Out-of-sample errors, in %: half of each point, in blocks, predicted by a fit of the other half\n"
    "(fewer than three loads: interpolation between loads is not tested):",
}


def _print_errors(held: list[Table]) -> None:
    if not held:
        _say("Out-of-sample errors: not determinable, too few requests to leave any out")
        return
    _say(f"{_HELD[held[0]['kind']]}\n{_HELD_HEADER}")
    for row in held:
        errors = "".join(f"{'–':>8}" if pct is None else f"{pct:+8.1f}" for pct in row["error_pct"].values())
        _say(f"{row['load']:>12} {row['in_system']:10.2f} {row['requests']:9,} {errors}")


def _tell_slope(fit: _ModelFit) -> str:
    slope = fit.fitted.slope
    if not slope.low <= slope.high:
        return "TTFT by prompt length: not determinable (prompts all as long, not counted, or too few)"
    text = f"{1000 * slope.estimate:.1f} ms per 1,000 tokens, 99 % {1000 * slope.low:.1f} to {1000 * slope.high:.1f}"
    return f"TTFT by prompt length: {text}" + ("" if slope.used else ": not distinguishable from 0, taken as 0")


def _header(stored: "Run", models: dict[str, _ModelFit]) -> str:
    from cadenza.record import printable

    simulated = " The run itself was SIMULATED: no hardware was measured." if stored.manifest.simulated else ""
    lines = [
        f"Fitted by cadenza fit from a run of {stored.manifest.started} against {_server(stored)}.{simulated}",
        "Each row: the measured ok requests of the points at one load. in_system: requests in",
        "flight, averaged over the tokens; ttft_ms, step_ms: means; a spread: of each 1/32 of the values, fastest",
        "first, its mean over the mean of all. Between rows the law is linear; beyond the last it is extrapolated.",
        "domain: the loads and lengths that were measured; *_pct: the largest errors, in %.",
    ]
    for model, fit in models.items():
        requests, gaps = (sum(getattr(row, name) for row in fit.fitted.rows) for name in ("requests", "gaps"))
        lines.append(f"{printable(model, 120)}: {requests:,} requests, {gaps:,} gaps, rows: {len(fit.fitted.rows)}.")
        lines.append(f"  {_tell_slope(fit)}")
    return "".join(f"# {line}\n" for line in lines)


def _round(value: float) -> float:
    """Six significant digits: more than any clock here resolves."""
    return float(f"{value:.6g}")


def _write(path: Path, text: str) -> None:
    from cadenza.errors import UsageError

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"-o {path} exists, and nothing is overwritten: name another file, or remove it") from None
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}: name a file that can be written") from None


def _say_next(out: str | None, models: dict[str, _ModelFit]) -> None:
    file = out or "profile.toml"
    points = [one.point for fit in models.values() for one in fit.used]
    loads = sorted({point.concurrency for point in points if point.concurrency})
    rates = sorted({point.rate_per_s for point in points if point.rate_per_s})
    grid = f" -c {','.join(map(str, loads))}" if loads else ""
    grid += f" --rate {','.join(f'{rate:g}' for rate in rates)}" if rates else ""
    shown = shlex.quote(file if "/" in file else f"./{file}")
    _say(f"\nKept in {out}. Next:" if out else "\nNext, with -o profile.toml:")
    _say(f"  cadenza sweep --engine {shown} --timing measured --virtual{grid}      the same load on the fitted server")


def _first(reasons: list[str]) -> str:
    from cadenza.record import printable

    return printable(reasons[0], 200) if reasons else "no reason given"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
