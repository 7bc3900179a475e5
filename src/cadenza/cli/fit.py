"""`cadenza fit`: a profile for the embedded engine from a run, so that it answers as that server did."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cadenza.record import Record
    from cadenza.stats.fitting import Fitted, Sample
    from cadenza.stats.summary import PointSummary
    from cadenza.store.rundir import Run

_DEFAULT_LEN = 8192
_DEFAULT_SEQS = 256
Table = dict[str, Any]


class _Used(NamedTuple):
    """A point that can be believed."""

    point: "PointSummary"
    sample: "Sample"
    thinks: bool


class _ModelFit(NamedTuple):
    used: "list[_Used]"
    fitted: "Fitted"
    table: Table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments to `parser`."""
    parser.description = (
        "Make an engine profile of the measured law from a run: a row for each load, with the spread of its latencies. "
        "Only VALID and SUSPECT points are used. The profile goes to FILE, or to stdout; how well it fits, to stderr."
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("-o", "--out", metavar="FILE", help="new file for the profile, NAME.toml (default: stdout)")
    parser.add_argument("--json", action="store_true", help="print the profile and its residuals as JSON")


def run(args: argparse.Namespace) -> int:
    """Fit, write, tell; returns 0."""
    import msgspec

    from cadenza.errors import UsageError
    from cadenza.store.rundir import read_run

    found = read_run(Path(args.run))
    name = Path(args.run).resolve().name
    used, left_out = _read_points(found)
    for told in left_out:
        _say(f"cadenza: left out: {told}")
    if found.broken_lines:
        _say(f"cadenza: {found.broken_lines} line(s) of the records are cut off and left out")
    if not used:
        raise UsageError(
            f"{args.run} has no point to fit: none is VALID or SUSPECT and has answers of two tokens (`cadenza check`)"
        )
    models = {model: _fit_model(found, name, model, points) for model, points in used.items()}
    profile = _profile(found, name, models)
    residuals = [row for model, fit in models.items() for row in _residuals(model, fit)]
    text = _render(profile, _header(found, models))
    if args.out is not None:
        _write(Path(args.out), text)
    if args.json:
        found_out: Table = {"profile": profile, "residuals": residuals, "left_out": left_out}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found_out), indent=1) + b"\n")
    elif args.out is None:
        sys.stdout.write(text)
    _tell(residuals, models)
    _say_next(args.out, models)
    return 0


def _read_points(found: "Run") -> tuple[dict[str, list[_Used]], list[str]]:
    """Points to fit, by model, and in words those that are not."""
    from cadenza.record import printable
    from cadenza.report.table import label
    from cadenza.stats.columns import Columns
    from cadenza.stats.fitting import take_sample
    from cadenza.stats.summary import summarise_point
    from cadenza.stats.verdict import Verdict
    from cadenza.stats.window import load_window

    by_point: dict[int, list[Record]] = {}
    for record in found.records():
        by_point.setdefault(record.point, []).append(record)
    used: dict[str, list[_Used]] = {}
    left_out = []
    for point in found.manifest.points:
        if point.start_ns is None:
            continue
        records = sorted(by_point.get(point.index, []), key=lambda record: record.index)
        summary = summarise_point(point, records, found.manifest.spec.slo)
        load = f"{'C = ' if point.concurrency else ''}{label(summary)}"
        name = f"{printable(point.model, 80)} at {load}"
        if summary.verdict not in (Verdict.VALID, Verdict.SUSPECT):
            left_out.append(f"{name} is {summary.verdict.value}: {_first(summary.reasons)}")
            continue
        columns = Columns.of(records)
        sample = take_sample(columns, load_window(point, columns))
        if sample is None:
            left_out.append(f"{name} has no answer of two tokens in its window")
            continue
        used.setdefault(point.model, []).append(_Used(summary, sample, _thinks(found, records)))
    return used, left_out


def _thinks(found: "Run", records: "list[Record]") -> bool:
    """Whether the model reasons before it answers: as counted, or, where nobody counts, as the trial answer did."""
    counted = [record.reasoning_tokens for record in records if record.reasoning_tokens is not None]
    return any(counted) if counted else found.manifest.server.reasons_first


def _fit_model(found: "Run", name: str, model: str, used: list[_Used]) -> _ModelFit:
    from cadenza.record import printable
    from cadenza.stats.fitting import fit_rows

    fitted = fit_rows([one.sample for one in used])
    manifest, slope = found.manifest, fitted.slope
    table: Table = {"prompt_tok": _round(fitted.prompt_tok) if fitted.prompt_tok >= 0 else 0.0}
    table["ttft_ms_per_prompt_tok"] = _round(slope.used)
    table["slope_interval"] = [_round(slope.low), _round(slope.high)] if slope.low <= slope.high else []
    table["source"] = {
        "run": printable(name, 100),
        "started": manifest.started,
        "server": _server(found),
        "cadenza": manifest.environment.cadenza,
        "simulated": manifest.simulated,
    }
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
    return _ModelFit(used, fitted, table)


def _profile(found: "Run", name: str, models: dict[str, _ModelFit]) -> Table:
    """The whole profile as plain values, as `engine.profile.load` reads it."""
    from cadenza.record import printable

    limits = {"max_model_len": found.manifest.server.max_model_len_tok or _DEFAULT_LEN}
    peak = max(one.point.in_flight.peak for fit in models.values() for one in fit.used)
    if peak > _DEFAULT_SEQS:
        limits["max_num_seqs"] = peak
    return {
        "name": f"measured-{printable(name, 100)}",
        "hardware": f"not known; as measured through the API of {_server(found)}",
        "limits": limits,
        "models": [
            {"name": model, "thinking": any(one.thinks for one in fit.used), "measured": fit.table}
            for model, fit in models.items()
        ],
    }


def _server(found: "Run") -> str:
    from cadenza.record import printable

    engine, version = found.manifest.server.engine, found.manifest.server.version or ""
    return printable(version if version.lower().startswith(engine.lower()) else f"{engine} {version}".strip(), 120)


def _residuals(model: str, fit: _ModelFit) -> list[Table]:
    """Each point's means beside what the law, as written, gives at its load; and each row's beside its neighbours'."""
    import msgspec
    import numpy as np

    from cadenza.engine.laws.measured import Measured, MeasuredFit
    from cadenza.report.table import label
    from cadenza.stats.fitting import SHARES, predict_from_neighbours

    law = Measured(msgspec.convert(fit.table, MeasuredFit))
    rows = fit.fitted.rows
    at = [row.in_system for row in rows]
    between = {
        name: predict_from_neighbours(at, [getattr(row, name) for row in rows]) for name in ("ttft_ms", "step_ms")
    }
    quantiles = [(tile + 0.5) / SHARES for tile in range(SHARES)]
    told = []
    for position, row in enumerate(rows):
        for one in (fit.used[i] for i in row.samples):
            sample = one.sample
            prompt_tok = float(np.mean(sample.prompt_tok))
            ttft_ms = float(np.mean([law.ttft_ms(prompt_tok, sample.in_system, q) for q in quantiles]))
            step_ms = float(np.mean([law.step_ms(sample.in_system, q) for q in quantiles]))
            told.append(
                {
                    "model": model,
                    "load": label(one.point),
                    "verdict": one.point.verdict.value,
                    "in_system": sample.in_system,
                    "requests": len(sample.ttft_ms),
                    "ttft_mean_ms": float(sample.ttft_ms.mean()),
                    "ttft_fitted_ms": ttft_ms,
                    "tpot_mean_ms": sample.tpot_ms,
                    "tpot_fitted_ms": step_ms,
                    "ttft_from_neighbours_pct": _pct(between["ttft_ms"][position], row.ttft_ms),
                    "tpot_from_neighbours_pct": _pct(between["step_ms"][position], row.step_ms),
                }
            )
    return told


def _pct(predicted: float, value: float) -> float | None:
    return 100 * (float(predicted) / value - 1) if predicted == predicted else None


def _tell(residuals: list[Table], models: dict[str, _ModelFit]) -> None:
    from cadenza.record import printable

    for model, fit in models.items():
        _say(f"\n{printable(model, 80)}\n{_HEADER}")
        for row in (row for row in residuals if row["model"] == model):
            ttft, tpot = (row[f"{name}_fitted_ms"] / row[f"{name}_mean_ms"] - 1 for name in ("ttft", "tpot"))
            _say(
                f"{row['load']:>12} {row['in_system']:10.2f} {row['requests']:9,}"
                f" {row['ttft_mean_ms']:10.2f} {100 * ttft:+7.2f} % {_sign(row['ttft_from_neighbours_pct'])}"
                f" {row['tpot_mean_ms']:10.3f} {100 * tpot:+7.2f} % {_sign(row['tpot_from_neighbours_pct'])}"
                f"  {row['verdict']}"
            )
        _say(f"  {_tell_slope(fit)}")


_HEADER = """\
                                     TTFT ms      law      between    TPOT ms      law      between
        load  in system  requests       mean    − mean   neighbours      mean    − mean   neighbours"""


def _sign(pct: float | None) -> str:
    return "         –  " if pct is None else f"{pct:+8.1f} %  "


def _tell_slope(fit: _ModelFit) -> str:
    slope = fit.fitted.slope
    if not slope.low <= slope.high:
        return "TTFT by prompt length: not determinable (prompts all as long, not counted, or too few)"
    told = f"{1000 * slope.estimate:.1f} ms per 1,000 tokens, 99 % {1000 * slope.low:.1f} to {1000 * slope.high:.1f}"
    return f"TTFT by prompt length: {told}" + ("" if slope.used else ": not distinguishable from 0, taken as 0")


def _header(found: "Run", models: dict[str, _ModelFit]) -> str:
    simulated = " The run itself was SIMULATED: no hardware was measured." if found.manifest.simulated else ""
    lines = [
        f"Fitted by cadenza fit from a run of {found.manifest.started} against {_server(found)}.{simulated}",
        "Each row: the ok requests that ended in the steady window of the points at one load. in_system: requests in",
        "flight, averaged over the tokens; ttft_ms, step_ms: means; a spread: of each 1/32 of the values, fastest",
        "first, its mean over the mean of all. Between rows the law is linear; beyond the last it is extrapolated.",
    ]
    for model, fit in models.items():
        requests, gaps = (sum(getattr(row, name) for row in fit.fitted.rows) for name in ("requests", "gaps"))
        lines.append(f"{_quote(model)}: {requests:,} requests, {gaps:,} gaps, rows: {len(fit.fitted.rows)}.")
        lines.append(f"  {_tell_slope(fit)}")
    return "".join(f"# {line}\n" for line in lines)


def _render(profile: Table, header: str) -> str:
    """The profile as TOML: what this verb writes, not TOML at large."""
    limits, models = profile["limits"], profile["models"]
    parts = [header, _pairs({key: profile[key] for key in ("name", "hardware")}), "[limits]\n" + _pairs(limits)]
    for model in models:
        measured = model["measured"]
        parts.append("[[models]]\n" + _pairs({key: model[key] for key in ("name", "thinking")}))
        plain = {key: value for key, value in measured.items() if key not in ("rows", "source")}
        parts.append("[models.measured]\n" + _pairs(plain))
        parts.append("[models.measured.source]\n" + _pairs(measured["source"]))
        parts += ["[[models.measured.rows]]\n" + _pairs(row) for row in measured["rows"]]
    return "\n".join(parts)


def _pairs(table: Table) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, list):
        items = [_value(item) for item in value]
        if len(items) <= 8:
            return f"[{', '.join(items)}]"
        lines = [", ".join(items[i : i + 8]) for i in range(0, len(items), 8)]
        return "[\n  " + ",\n  ".join(lines) + ",\n]"
    return repr(value)


def _quote(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's, and it leaves only DEL as it is."""
    import msgspec

    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _round(value: float) -> float:
    """Six significant digits: more than any clock here can tell."""
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
