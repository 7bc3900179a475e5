"""The live view: golden text at 80 and 120 columns, and no digit lost at any width."""

import io
import os
import re
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from cadenza.analysis.snapshot import Card, HostNow, Progress, Snapshot, Stream, Times
from cadenza.report.top import render, render_screen, to_text

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
GIB = 2**30
CARDS = [
    Card(
        gpu="0000:03:00.0",
        product="AMD Instinct MI60 / MI50",
        busy=0.981,
        vram_used_bytes=28.9 * GIB,
        vram_size_bytes=32 * GIB,
        power_w=181.4,
        power_cap_w=225,
        temperatures_c={"edge": 68.4, "junction": 101.2},
        limits_c={"edge": 100, "junction": 100},
        throttled=["ppt0", "temp_hotspot"],
        clock_hz=1.725e9,
    ),
    Card(gpu="0000:43:00.0", state="gone"),
    Card(gpu="0000:83:00.0", busy=0, temperatures_c={"mem": 40, "edge": 50.4}, throttled=[]),
]
SERVER = Snapshot(
    at=1.8e9,
    source="http://127.0.0.1:8000",
    status="up",
    window_s=10.0,
    local=True,
    streams=[
        Stream(
            model="Qwen/Qwen3-32B-Instruct-AWQ",
            engine="vllm",
            running=16,
            waiting=3,
            kv_usage=0.934,
            generation_tok_per_s=812.34,
            prompt_tok_per_s=1640.0,
            requests_per_s=4.125,
            rates_from="engine",
            preemptions=2,
            prefix_hit_rate=0.125,
            ttft_ms=Times(n=41, mean=183.24, p50=150.0, p99=1940.0),
            tpot_ms=Times(n=41, mean=19.456, p50=18.0, p99=80000.0, at_least=("p99",)),
            itl_ms=Times(n=8000, mean=19.5, p50=18.0, p99=40.0),
        ),
        Stream(model="idle", engine="vllm", running=0, waiting=0, rates_from="engine", generation_tok_per_s=0.0),
    ],
    cards=CARDS,
    host=HostNow(cpu_busy=0.314, cores=16, cpu_steal=0.02, memory_available_bytes=40 * GIB, memory_size_bytes=64 * GIB),
    kernel={"ring_timeout 0000:43:00.0": 2},
)
RUN = Snapshot(
    at=1.8e9,
    source="runs/2026-11-30T10-00-00-chat",
    status="running",
    simulated=True,
    window_s=2.84,
    run=Progress(point=2, points=5, model="m", load="OPEN", rate_per_s=4.5, planned=128, ended=57, failed=1),
    streams=[
        Stream(
            model="m",
            generation_tok_per_s=63.25,
            requests_per_s=0.5,
            rates_from="answers",
            ttft_ms=Times(n=57, mean=20, p50=20, p99=20),
            user_ttft_ms=Times(n=57, mean=35.55, p50=30, p99=99.9),
            tpot_ms=Times(n=57, mean=10, p50=10, p99=10.126),
        )
    ],
    notes=["No GPU is seen by the run."],
)
DOWN = Snapshot(
    at=1.8e9,
    source="http://127.0.0.1:8000",
    status="down",
    streams=[Stream(model="m", engine="vllm")],
    local=True,
    notes=["No answer for 12 s, still trying: http://127.0.0.1:8000/metrics: Connection refused"],
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("name", "snapshot"), [("server", SERVER), ("run", RUN), ("down", DOWN)])
def test_the_view_is_the_golden_text(name: str, snapshot: Snapshot, width: int) -> None:
    # To make anew what has been looked at: CADENZA_KEEP_GOLDEN=1.
    golden = GOLDEN / f"top-{name}-{width}.txt"
    text = to_text(snapshot, 1.0, width)
    if os.environ.get("CADENZA_KEEP_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("snapshot", [SERVER, RUN, DOWN])
def test_a_number_is_whole_or_not_there_at_any_width(snapshot: Snapshot) -> None:
    whole = set(re.findall(r"[>\d.–/]+", to_text(snapshot, 1.0, 400)))
    for width in range(40, 200):
        text = to_text(snapshot, 1.0, width)
        assert all(cell_len(line) <= width for line in text.splitlines())
        tables = [
            line for line in text.splitlines()[2:] if not line.startswith(("host", "Kernel", "No ")) and "…" not in line
        ]
        for line in tables:
            assert set(re.findall(r"[>\d.–/]+", line)) <= whole, (width, line)


def test_what_is_missing_is_a_dash_and_never_0() -> None:
    bare = Snapshot(at=0, source="s", status="up", streams=[Stream(model="m")], host=HostNow(), cards=[Card(gpu="g")])
    text = to_text(bare, 1.0)
    assert not re.search(r"\d", text.replace("P50", "").replace("P99", "").replace("every 1 s", ""))
    assert text.count("–") > 15


def test_text_of_a_server_is_neither_markup_nor_escapes() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, color_system=None, legacy_windows=False)
    hostile = Snapshot(
        at=0,
        source="http://h",
        status="down",
        streams=[Stream(model="[bold]x[/]")],
        cards=[Card(gpu="\x1b]0;g", product="\x1b[2J")],
        kernel={"\x1b[31m": 1},
        notes=["\x1b[1A"],
    )
    console.print(render(hostile, 120, 1.0))
    text = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())  # our own styles
    assert "\x1b" not in text
    assert "[bold]x[/]" in text


def test_of_many_models_the_busiest_are_shown_in_their_order() -> None:
    streams = [Stream(model=f"model-{n:02}", running=n) for n in range(20)]
    lines = to_text(msgspec.structs.replace(SERVER, streams=streams), 1.0).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("model-")] == [f"model-{n:02}" for n in range(8, 20)]
    assert "and 8 models more" in lines


def test_a_model_without_a_name_is_a_dash_and_a_percentile_below_the_first_bound_says_so() -> None:
    first = Times(n=9, mean=6.71, p50=10, p99=12.5, at_most=("p50",))
    lines = to_text(msgspec.structs.replace(SERVER, streams=[Stream(model="", tpot_ms=first)]), 1.0).splitlines()
    (row,) = [line for line in lines if "6.71" in line]
    assert row.split()[0] == "–"
    assert row.split()[-3:] == ["6.71", "<10.00", "12.50"]
    assert "< below the first bound of the engine's histogram" in lines


@pytest.mark.parametrize("height", [10, 24, 30, 60])
@pytest.mark.parametrize("models", [1, 3, 20])
def test_what_stands_below_the_tables_is_on_the_screen_too(height: int, models: int) -> None:
    streams = [Stream(model=f"model-{n:02}", running=n) for n in range(models)]
    cards = [Card(gpu=f"gpu-{n}", busy=n / 20, state="gone" if n == 1 else "up") for n in range(16)]
    snapshot = msgspec.structs.replace(SERVER, streams=streams, cards=cards, notes=["A note."], kernel={})
    console = Console(file=io.StringIO(), width=80, height=height, color_system=None)
    console.print(render_screen(snapshot, console, 1.0))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    left = {line.split()[2]: int(line.split()[1]) for line in lines if line.startswith("and ")}
    shown = {line.split()[0] for line in lines if line.strip()}
    told_models, told_cards = (len({name for name in shown if name.startswith(kind)}) for kind in ("model-", "gpu-"))
    assert "A note." in lines
    assert told_models + left.get("models", left.get("model", 0)) == models
    assert told_cards + left.get("cards", left.get("card", 0)) == 16
    # A row of each is 15 lines, and 3 more where something is left out twice.
    assert len(lines) <= max(height, 18)
    assert "gpu-1" in shown  # in trouble
    if height == 60:
        assert (told_models, told_cards) == (min(models, 12), 16)
    if told_cards < 16 and told_cards > 1:
        assert "gpu-15" in shown  # the busiest


def test_a_run_that_has_ended_is_not_looked_at_again() -> None:
    assert to_text(msgspec.structs.replace(RUN, status="complete"), 1.0).splitlines()[0].endswith(" its last 2.8 s")
    assert to_text(RUN, 1.0).splitlines()[0].endswith(" every 1 s, over the last 2.8 s")


def test_on_a_narrow_terminal_the_pace_is_left_out_and_nothing_is_cut() -> None:
    lines = to_text(SERVER, 1.0, 40).splitlines()
    assert lines[0].split() == ["http://127.0.0.1:8000", "vllm", "up"]
    assert "24.0/64.0 GiB" in " ".join(lines)


def test_an_itl_stands_for_the_cadence_where_there_is_no_tpot() -> None:
    itl = Times(n=9, mean=21.5, p50=20, p99=30)
    text = to_text(msgspec.structs.replace(SERVER, streams=[Stream(model="m", itl_ms=itl)]), 1.0)
    assert "ITL ms" in text
    assert "TPOT" not in text
    assert "21.50" in text
