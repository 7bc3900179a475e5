"""The machine under the table: golden text of a point with two cards, and silence where nobody watched."""

import io
import os
from pathlib import Path

import msgspec
import pytest

from cadenza.analysis.bottleneck import Bottleneck
from cadenza.analysis.machine import Engine, Gpu, Host, Machine
from cadenza.analysis.reconciliation import Count, Reconciliation, Time, check_server
from cadenza.analysis.summary import Summary, relate, summarise_point
from cadenza.report import markdown, terminal
from cadenza.report.checks import render_checks
from support.columns import closed, rec

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
A, B = "0000:03:00.0", "0000:43:00.0"
GIB = 2**30


def machine() -> Machine:
    return Machine(
        window="window",
        samples=40,
        server_here=True,
        joules_per_tok=15.03,
        gpus=[
            Gpu(
                gpu=A,
                busy_mean=0.98,
                vram_peak_bytes=28.9 * GIB,
                power_mean_w=181.4,
                temperature_max_c={"edge": 65, "junction": 72.8},
                throttled_share=0,
            ),
            Gpu(gpu=B, busy_mean=0.97, vram_peak_bytes=14.2 * GIB, power_mean_w=206, lost=True),
        ],
        host=Host(cpu_busy_mean=0.31),
        engine=Engine(running_mean=15.96, waiting_mean=0.04, kv_usage_peak=0.41, preemptions=0, prefix_hit_rate=0.125),
        kernel={f"ring_timeout {B}": 2},
        unseen=[f"of {A} fan_ratio (absent)", "b", "c", "d"],
    )


def summary(watched: Machine) -> Summary:
    """Two points of one model: one that was watched, and one of a run that did not ask for it."""
    records = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40], tokens=2) for k in range(40)]
    server = Reconciliation(
        requests=Count(client=40, client_most=40, server=40, difference=0),
        generation_tokens=Count(client=80, client_most=80, server=80, difference=0),
        ttft=Time(client_ms=20, server_ms=18.5, beyond_ms=1.5),
        queue_ms=0.5,
    )
    point = msgspec.structs.replace(
        summarise_point(closed(1, 40), records),
        machine=watched,
        reconciliation=server,
        bottleneck=Bottleneck("decode bandwidth", ["decode took 20 ms", "requests waited in only 0 % of the samples"]),
    )
    point = msgspec.structs.replace(point, checks=[*point.checks, *check_server(server)])
    bare = msgspec.structs.replace(summarise_point(closed(2, 40), records), index=1)
    return relate([point, bare], simulated=False, tool={"name": "cadenza", "version": "0"})


def shown(found: Summary) -> str:
    out = io.StringIO()
    terminal.show(found, out)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("machine.txt", shown(summary(machine()))), ("machine.md", markdown.render(summary(machine())))],
)
def test_golden(name: str, text: str) -> None:
    # Read each of them before keeping it: CADENZA_KEEP_GOLDEN=1 writes what is printed now.
    if os.environ.get("CADENZA_KEEP_GOLDEN"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_what_is_not_known_is_no_zero_and_its_column_is_gone() -> None:
    text = shown(summary(Machine(window="window", samples=1, server_here=True, engine=Engine(running_mean=1.0))))
    block = text[text.index("Machine;") :]
    head, names, row = block.splitlines()[1:4]
    assert names.split() == ["C", "wait"]
    assert head.split() == ["run", "/"]
    assert row.split() == ["1", "1.0/–"]


def test_cards_of_another_machine_are_said_to_be() -> None:
    elsewhere = msgspec.structs.replace(machine(), server_here=False)
    assert "those of the client's machine: the server is on another" in shown(summary(elsewhere))
    assert "those of the client's machine" not in shown(summary(machine()))


def test_nothing_seen_is_no_table_but_is_told() -> None:
    text = shown(summary(Machine(window="whole point", samples=0, server_here=True, unseen=["a GPU", "the host"])))
    assert "Not seen: a GPU; the host." in text
    assert "power" not in text


def test_the_table_says_which_card_is_which_and_that_they_are_simulated() -> None:
    cards = [Gpu(gpu=B, product="AMD Radeon RX 6900 XT", busy_mean=0.5), Gpu(gpu=A, busy_mean=0.25)]
    found = msgspec.structs.replace(machine(), gpus=cards)
    assert f"Cards: {A}, {B} AMD Radeon RX 6900 XT." in shown(summary(found))
    found = msgspec.structs.replace(found, gpus=cards[:1], virtual=True)
    text = shown(summary(found))
    assert f"Card: simulated; {B} AMD Radeon RX 6900 XT." in text
    assert "Network and client" not in text  # virtual time has neither


def test_what_nobody_watched_is_told_with_the_verdict_that_was_drawn_without_it() -> None:
    gappy = summary(msgspec.structs.replace(machine(), unwatched_s={"host": 1.2, "amdgpu": 1.2}))
    (watched,) = [point for point in gappy.points if isinstance(point.machine, Machine)]
    whole = f"{max(1.2, watched.duration_s):.0f}"
    text = shown(gappy)
    assert f"At C = 1 nothing was seen of amdgpu, host for 1 of {whole} s: its figures are of the rest." in text
    assert f"Bottleneck at C = 1 (1 of {whole} s unwatched): " in text
    assert "unwatched" not in shown(summary(machine()))


def test_means_of_more_than_the_steady_part_are_told() -> None:
    told = "Too few samples in the steady part at C = 1: some means above are of the whole point."
    for window in ("whole point", "window; amdgpu: whole point"):
        assert told in shown(summary(msgspec.structs.replace(machine(), window=window)))
    assert told not in shown(summary(machine()))


def test_nobody_watched_and_nothing_is_said() -> None:
    records = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40], tokens=2) for k in range(40)]
    bare = relate([summarise_point(closed(1, 40), records)], simulated=False, tool={"name": "c", "version": "0"})
    assert "Machine" not in shown(bare) + markdown.render(bare)


def test_the_checks_tell_the_reconciliation() -> None:
    text = render_checks(summary(machine()))
    assert "ok             server's requests           40 requests at the server, 40 at the client (+0.00 %)" in text
    assert "+1.50 ms outside the engine; in the engine queue 0.5 ms" in text
