"""What people read, from a summary made by hand: golden files, and what the article's numbers must print."""

import csv
import io
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import Summary, relate, summarise_point
from cadenza.load.shard import Tally
from cadenza.record import LoadLabel, Outcome, Point, PointStatus, Record
from cadenza.report import markdown, terminal
from cadenza.report.checks import render_checks
from cadenza.report.columns import headline_percentile
from cadenza.report.live import Progress
from cadenza.spec import Slo
from cadenza.stats.distribution import Distribution
from cadenza.stats.requests import Requests
from support.columns import closed, rec

DATA = Path(__file__).parents[1] / "data" / "article" / "sweep.csv"
GOLDEN = Path(__file__).parents[1] / "golden" / "report"
ROWS = list(csv.DictReader(DATA.read_text().splitlines()))


def distribution(mean: str, p50: str, p99: str) -> Distribution:
    return Distribution(n=128, mean=float(mean), p50=float(p50), p90=0, p95=0, p99=float(p99), max=0)


def article() -> Summary:
    """The article's own rows, as if we had measured them: only the derived columns are ours."""
    points: list[PointSummary] = []
    for index, row in enumerate(ROWS):
        slots = int(row["concurrency"])
        blank = summarise_point(closed(slots, 128), [])
        points.append(
            msgspec.structs.replace(
                blank,
                index=index,
                model=row["model"],
                verdict=Verdict.VALID,
                reasons=[],
                requests=Requests(planned=128, sent=128, ok=128, failed=0, dropped=0, outcomes={"ok": 128}),
                throughput_tok_per_s=float(row["throughput_tok_s"]),
                ttft_ms=distribution(row["ttft_mean_ms"], row["ttft_p50_ms"], row["ttft_p99_ms"]),
                tpot_ms=distribution(row["tpot_mean_ms"], row["tpot_p50_ms"], row["tpot_p99_ms"]),
            )
        )
    return relate(points, simulated=True, tool={"name": "cadenza", "version": "0"})


def shown(summary: Summary) -> str:
    out = io.StringIO()
    terminal.show(summary, out)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def mixed() -> Summary:
    """A point with everything that can be said about one: failures, few requests, hostile text."""
    records: list[Record] = [
        rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40], tokens=4, event_tokens=[1, 3]) for k in range(40)
    ]
    evil = "HTTP 503: \x1b[31m[bold]busy[/bold] | `x`"
    records[7] = msgspec.structs.replace(records[7], outcome=Outcome.HTTP_ERROR, event_ns=[], detail=evil)
    records[8] = msgspec.structs.replace(records[8], outcome=Outcome.HTTP_ERROR, event_ns=[], detail=evil)
    point = closed(1, 40)
    point.model = "evil/\x1b]0;title\x07[red]model|name"
    return relate([summarise_point(point, records)], simulated=False, tool={"name": "cadenza", "version": "0"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("article.txt", shown(article())),
        ("article.md", markdown.render(article())),
        ("mixed.txt", shown(mixed())),
        ("mixed.md", markdown.render(mixed())),
    ],
)
def test_golden(name: str, text: str) -> None:
    # Read each of them before keeping it: CADENZA_KEEP_GOLDEN=1 writes what is printed now.
    if os.environ.get("CADENZA_KEEP_GOLDEN"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def cells(text: str, model: str, concurrency: int) -> list[str]:
    lines = text.splitlines()
    start = lines.index(model)
    return next(line.split() for line in lines[start:] if line.split()[:1] == [str(concurrency)])


def test_the_table_prints_what_the_article_rounded_wrongly() -> None:
    text = shown(article())
    qwen3, qwen25, gemma = (cells(text, model, 16) for model in dict.fromkeys(row["model"] for row in ROWS))
    assert (qwen3[2], qwen3[3], qwen3[10]) == ("15.10", "94.4", "+3.5")
    assert (qwen25[2], qwen25[3], qwen25[10]) == ("14.18", "88.7", "+10.8")
    assert (gemma[3], gemma[10]) == ("85.9", "+14.9")
    assert [cells(text, "Qwen/Qwen2.5-7B-Instruct", c)[3] for c in (2, 4, 8)] == ["92.0", "96.9", "95.8"]
    assert [cells(text, "google/gemma-4-E2B-it", c)[3] for c in (2, 4, 8)] == ["90.1", "97.7", "96.4"]
    assert "TPOT drifts +8.46 ms (10.8 %) from C = 1 to C = 16: stable" in text
    assert "TPOT drifts +2.81 ms (3.5 %) from C = 1 to C = 16: ultra-flat" in text
    assert "TPOT drifts +13.84 ms (14.9 %) from C = 1 to C = 16: controlled" in text


def test_simulated_is_said_first_and_everywhere() -> None:
    assert shown(article()).startswith("SIMULATED")
    assert markdown.render(article()).startswith("**SIMULATED")
    assert "SIMULATED" not in shown(mixed())


def test_text_from_a_server_is_neither_escapes_nor_markup() -> None:
    for text in (shown(mixed()), markdown.render(mixed())):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "[bold]busy[/bold]" in shown(mixed())
    assert r"\|" in markdown.render(mixed())


def test_piped_text_is_plain_and_narrow() -> None:
    text = shown(article())
    assert max(map(len, text.splitlines())) <= 110
    assert text.isascii() or set(text) - set(map(chr, range(128))) <= set("–×·−")


def test_no_number_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    summary = article()
    wide = msgspec.structs.replace(
        summary.points[-1],
        concurrency=1024,
        throughput_tok_per_s=1234567.89,
        ttft_ms=distribution("183012.3", "182011.1", "219876.5"),
        verdict=Verdict.CLIENT_LIMITED,
    )
    summary.points.append(wide)
    for out in (io.StringIO(), Terminal()):
        terminal.show(summary, out)
        assert "…" not in out.getvalue()
        for told in ("1024", "1234567.89", "183012.3", "182011.1", "219876.5", "CLIENT-LIMITED"):
            assert told in out.getvalue()


def test_no_drift_from_a_base_without_cadence() -> None:
    summary = article()
    base = msgspec.structs.replace(summary.points[0], tpot_ms=Distribution.of(np.empty(0)))
    dead = relate([base, *summary.points[1:5]], simulated=True, tool=summary.tool)
    assert "nan" not in shown(dead)
    assert "Cadence" not in shown(dead)


def test_a_run_without_a_request_says_so() -> None:
    unsent = [msgspec.structs.replace(summarise_point(closed(c, 128), []), index=c) for c in (1, 2)]
    for points, sentence in (
        ([], "No point was begun: there is nothing to report."),
        (unsent, "No measured request was sent: there are no figures to report."),
    ):
        summary = relate(points, simulated=False, tool={})
        for text in (shown(summary), markdown.render(summary), render_checks(summary)):
            assert text.count(sentence) == 1
            assert "nan" not in text
    # One that was begun and never sent anything, beside others: its own line says so.
    partly = relate([*article().points[:2], msgspec.structs.replace(unsent[0], model="z")], simulated=False, tool={})
    for text in (shown(partly), markdown.render(partly), render_checks(partly)):
        assert "no request was sent" in text
        assert "No measured request" not in text


SIZES = [
    # sizes of the points' samples → what each of them carries: 64 for P90, 130 for P95, 662 for P99
    *(([662], "p99"), ([661], "p95"), ([130], "p95"), ([129], "p90"), ([64], "p90"), ([63], "p90")),
    *(([5000, 662, 130], "p95"), ([5000, 40], "p90"), ([5000, 0], "p99"), ([0, 0], "p90"), ([], "p90")),
]


@pytest.mark.parametrize(("sizes", "name"), SIZES)
def test_the_headline_percentile_is_the_highest_that_every_point_carries(sizes: list[int], name: str) -> None:
    assert headline_percentile([Distribution.of(np.arange(n, dtype=float)) for n in sizes]) == name


def sampled(index: int, ttft_n: int, tpot_n: int, verdict: Verdict = Verdict.VALID) -> PointSummary:
    """A point of samples 1 to n, in ms: its percentile q is 1 + q (n - 1)."""
    return msgspec.structs.replace(
        article().points[index],
        verdict=verdict,
        ttft_ms=Distribution.of(np.arange(1.0, ttft_n + 1)),
        tpot_ms=Distribution.of(np.arange(1.0, tpot_n + 1)),
    )


def table(*points: PointSummary) -> tuple[list[str], list[list[str]], str]:
    """Names of the columns, the rows, and the whole text."""
    text = shown(relate(points, simulated=False, tool={}))
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[-1:] == ["verdict"])
    return lines[at].split(), [line.split() for line in lines[at + 1 :][: len(points)]], text


def test_ttft_and_tpot_have_a_percentile_each_for_the_whole_section() -> None:
    names, rows, text = table(sampled(0, 1001, 201), sampled(1, 701, 701))
    assert [name for name in names if name.startswith("P")] == ["P50", "P99", "P50", "P95"]
    assert [row[6] for row in rows] == ["991.0", "694.0"]  # 1 + 0.99 · 1000, 1 + 0.99 · 700
    assert [row[9] for row in rows] == ["191.00", "666.00"]  # 1 + 0.95 · 200, 1 + 0.95 · 700
    assert "*" not in text


def test_an_invalid_point_does_not_choose_the_column() -> None:
    names, rows, text = table(sampled(0, 1001, 1001), sampled(1, 41, 41, Verdict.INVALID))
    assert [name for name in names if name.startswith("P")] == ["P50", "P99", "P50", "P99"]
    assert (rows[0][6], rows[1][6]) == ("991.0", "40.6*")  # 1 + 0.99 · 40
    assert "* P99 of fewer than 662 requests: not statistically supported, close to the maximum" in text


def test_the_star_is_of_the_percentile_that_is_shown() -> None:
    names, rows, text = table(sampled(0, 201, 201), sampled(1, 41, 201))
    assert [name for name in names if name.startswith("P")] == ["P50", "P90", "P50", "P95"]
    assert (rows[0][6], rows[1][6], rows[1][9]) == ("181.0", "37.0*", "191.00")  # 1 + 0.9 · 200, 1 + 0.9 · 40
    assert "* P90 of fewer than 64 requests" in text
    assert "P99" not in text


class Bounded(Distribution, frozen=True, kw_only=True):
    """A sample of which something never ended: figures that are only lower bounds, by name."""

    bounds: tuple[str, ...] = ()


def bounded(dist: Distribution, *bounds: str) -> Distribution:
    return Bounded(**(msgspec.structs.asdict(dist) | {"bounds": bounds}))


def test_a_figure_that_could_only_be_higher_is_a_bound() -> None:
    point = sampled(0, 1001, 1001)
    point = msgspec.structs.replace(point, ttft_ms=bounded(point.ttft_ms, "mean", "p95", "p99"))
    _, rows, text = table(point)
    assert rows[0][4:7] == ["≥501.0", "501.0", "≥991.0"]
    assert rows[0][7:10] == ["501.00", "501.00", "991.00"]
    assert "≥ a lower bound" in text
    small = msgspec.structs.replace(point, ttft_ms=bounded(sampled(0, 41, 41).ttft_ms, "p90"))
    assert table(small)[1][0][6] == "≥37.0*"


def at_rate(slots: int | None, load: LoadLabel, records: list[Record], slo: Slo | None = None) -> PointSummary:
    point = Point(index=0, model="m", load=load, concurrency=slots, rate_per_s=10.0, planned=len(records))
    point.status, point.start_ns = PointStatus.COMPLETE, 0
    return summarise_point(point, records, slo)


def test_a_rate_leaves_no_column_for_what_it_sets() -> None:
    records = [rec(k, 100.0 * k, [100.0 * k + 20, 100.0 * k + 40], intended=100.0 * k) for k in range(40)]
    names, _, text = table(at_rate(None, LoadLabel.OPEN, records))
    assert names == ["C", "tok/s", "mean", "P50", "P90", "mean", "P50", "P90", "sent", "verdict"]
    assert "speed" not in text
    names, _, text = table(at_rate(4, LoadLabel.CAPPED, records))
    assert names[:3] == ["C", "tok/s", "mean"]
    assert "drift" in text  # against the same rate's smallest cap
    assert "speed" not in text


def test_the_widest_row_of_an_overload_fits() -> None:
    records = [rec(k, 100.0 * k, [100.0 * k + 20, 100.0 * k + 40], intended=100.0 * k) for k in range(40)]
    ttft = bounded(Distribution.of(np.full(41, 183012.34)), "mean", "p50", "p90")
    tpot = bounded(Distribution.of(np.full(41, 1234.56)), "mean", "p50", "p90")
    wide = msgspec.structs.replace(
        at_rate(None, LoadLabel.OPEN, records),
        rate_per_s=12.5,
        throughput_tok_per_s=12345.67,
        user_ttft_ms=ttft,
        tpot_ms=tpot,
        requests=Requests(planned=2000, sent=2000, ok=2000, failed=0, dropped=0, outcomes={"ok": 2000}),
        verdict=Verdict.CLIENT_LIMITED,
    )
    _, rows, text = table(wide)
    assert rows[0][2:8] == [*["≥183012.3"] * 2, "≥183012.3*", *["≥1234.56"] * 2, "≥1234.56*"]
    assert max(map(len, text.splitlines())) <= 110


def test_goodput_is_a_sentence_with_its_bounds_and_counts() -> None:
    # Every 50 ms one of 40 ms: TTFT 20 ms, but 30 ms for one in four; from 0 to 1,950 ms, the first not in the window.
    records = [rec(k, 50.0 * k, [50.0 * k + (30 if k % 4 == 0 else 20), 50.0 * k + 40]) for k in range(40)]
    slo = Slo(ttft_ms=20, attainment=0.8)
    summary = relate([summarise_point(closed(1, 40), records, slo)], simulated=False, tool={})
    window_s = summary.points[0].window_s
    assert window_s == pytest.approx(1.95)
    sentence = "Goodput (TTFT ≤ 20 ms; attainment 80 %): C = 1: 15.385/s, 75.0 % met (30 of 40), not attained."
    assert sentence in " ".join(shown(summary).split())  # 30 / 1.95
    kept = msgspec.structs.replace(slo, attainment=0.75)
    summary = relate([summarise_point(closed(1, 40), records, kept)], simulated=False, tool={})
    assert "75.0 % met (30 of 40), attained." in " ".join(shown(summary).split())


def test_goodput_under_a_rate_is_the_users_and_of_an_interrupted_run_a_range() -> None:
    # Due at 0, 100, …; each sent 10 ms late, its first token 20 ms after that; the last four are cut off at once.
    records = [rec(k, 100.0 * k + 10, [100.0 * k + 30], intended=100.0 * k) for k in range(16)]
    records += [
        rec(k, 100.0 * k + 10, [], done=100.0 * k + 12, intended=100.0 * k, outcome=Outcome.CANCELLED)
        for k in range(16, 20)
    ]
    point = Point(index=0, model="m", load=LoadLabel.OPEN, rate_per_s=10.0, planned=20)
    point.status, point.start_ns = PointStatus.INTERRUPTED, 0
    told = []
    for slo in (Slo(ttft_ms=30, latency_ms=500, attainment=0.9), Slo(ttft_ms=29)):
        summary = relate([summarise_point(point, records, slo)], simulated=False, tool={})
        told.append(" ".join(shown(summary).split()))
    assert "Goodput (user TTFT ≤ 30 ms, user latency ≤ 500 ms; attainment 90 %): 10/s: " in told[0]
    assert "80.0 to 100.0 % met (16 of 16, 4 undecided), attainment undecided." in told[0]
    assert "0.0 to 20.0 % met (0 of 16, 4 undecided)." in told[1]


def test_a_cadence_that_falls_is_named_and_not_praised() -> None:
    summary = article()
    first, last = summary.points[0], summary.points[4]
    fallen = msgspec.structs.replace(last, tpot_ms=msgspec.structs.replace(last.tpot_ms, mean=0.39 * 79.65))
    text = " ".join(shown(relate([first, fallen], simulated=False, tool={})).split())
    assert "TPOT drifts -48.59 ms (-61.0 %) from C = 1 to C = 16: degraded in size." in text  # 0.61 · 79.65
    assert text.count("TPOT falls by 61.0 % from C = 1: possible causes are lumps") == 1
    for praise in ("flat", "stable", "controlled"):
        assert praise not in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_writes_at_most_four_times_a_second() -> None:
    now = [0.0]
    stream = Terminal()
    progress = Progress(stream, now_s=lambda: now[0])
    progress.point_started(closed(1, 1000), 1, 1)
    before = stream.getvalue().count("\r")
    for k in range(1000):
        now[0] += 0.001
        progress.point_goes_on(Tally(ended=k + 1, failed=0, tokens=2 * k + 2, last_ns=40_000_000 * (k + 1)))
    assert stream.getvalue().count("\r") - before == 2 * 4  # each drawing blanks the line first
    assert "751/1000" in stream.getvalue()


def test_progress_in_virtual_time_tells_both_times() -> None:
    now = [0.0]
    stream = Terminal()
    progress = Progress(stream, virtual=True, now_s=lambda: now[0])
    soak = msgspec.structs.replace(closed(1, 0), planned=None, duration_s=14400.0, start_ns=0)
    progress.point_started(soak, 1, 1)
    now[0] = 5.0  # s, for a quarter of it
    progress.point_goes_on(Tally(ended=100, failed=0, tokens=360_000, last_ns=3_600_000_000_000))
    assert stream.getvalue().endswith("  100  100.0 tok/s  at 1:00:00 of virtual time  15 s left")


def test_progress_in_a_pipe_is_a_line_a_point() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.point_started(closed(1, 2), 1, 3)
    progress.point_goes_on(Tally(ended=1, failed=0, tokens=2, last_ns=40_000_000))
    progress.point_done(
        summarise_point(closed(1, 12), [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40]) for k in range(12)])
    )
    assert stream.getvalue() == "[1/3] m C=1  50.0 tok/s  TTFT 20.0 ms  TPOT 20.00 ms  12 ok  VALID\n"


class Gone(Terminal):
    """A terminal that was closed; counts how often somebody wrote to it."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


def test_a_run_outlives_its_terminal() -> None:
    stream = Gone()
    progress = Progress(stream)
    progress.point_started(closed(1, 3), 1, 1)
    progress.point_goes_on(Tally(ended=1, failed=0, tokens=2, last_ns=40_000_000))
    progress.point_done(summarise_point(closed(1, 3), []))
    assert stream.tries == 1


def test_quiet_is_quiet() -> None:
    stream = Terminal()
    progress = Progress(stream, quiet=True)
    progress.point_started(closed(1, 2), 1, 3)
    progress.point_goes_on(Tally(ended=1, failed=0, tokens=2, last_ns=40_000_000))
    assert stream.getvalue() == ""
