"""What people read, from a summary made by hand: golden files, and what the article's numbers must print."""

import csv
import io
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cadenza.load.shard import Tally
from cadenza.record import Outcome, Record
from cadenza.report import markdown, terminal
from cadenza.report.live import Progress
from cadenza.stats.distribution import Distribution
from cadenza.stats.requests import Requests
from cadenza.stats.summary import PointSummary, Summary, relate, summarise_point
from cadenza.stats.verdict import Verdict
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


def test_an_empty_run_says_so() -> None:
    assert "nothing to report" in shown(relate([], simulated=False, tool={}))


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
