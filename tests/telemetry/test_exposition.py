"""The page against the formats' own readers and, where it is installed, promtool's lint."""

import shutil
import subprocess
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from cadenza.readings import Reading
from cadenza.telemetry.exposition import ARTICLE, Kept, Table, add, render, tabulate
from cadenza.telemetry.families import FAMILIES
from cadenza.telemetry.sampler import State

GPU = ("gpu", "0000:43:00.0")
CARD = (GPU, ("vendor", "amd"))
Pages = list[dict[tuple[str, str], float]]


def full_table() -> Table:
    """Every family with two series."""
    table: Table = {}
    add(
        table,
        [
            Reading(family.name, tuple((label, f"{label}-{n}") for label in family.labels), n + 0.5)
            for family in FAMILIES.values()
            for n in range(2 if family.labels else 1)
        ],
    )
    return table


def samples(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = [s for family in read_text(page.decode()) for s in family.samples]
    series = {(s.name, frozenset(s.labels.items())): s.value for s in found}
    assert len(series) == len(found)
    return series


def state(name: str, *readings: Reading, age_s: float = 0.25, duration_s: float | None = 0.01) -> State:
    return State(name, bool(readings), age_s, duration_s, {}, list(readings), None)


def test_every_family_has_its_type_help_and_labels() -> None:
    read = {}
    for metric in read_text(render(full_table()).decode()):
        # This reader names counters without their ending.
        read[metric.name + ("_total" if metric.type == "counter" else "")] = metric
    assert read.keys() == FAMILIES.keys()
    for name, family in FAMILIES.items():
        assert read[name].type == ("gauge" if family.kind == "info" else family.kind)
        assert read[name].documentation == family.help
        assert len(read[name].samples) == (2 if family.labels else 1)
        for sample in read[name].samples:
            assert sample.name == name
            assert set(sample.labels) == set(family.labels)
            assert sample.value == 1.0 or family.kind != "info"


def test_openmetrics_says_the_same_with_its_own_types() -> None:
    page = render(full_table(), openmetrics=True).decode()
    assert page.endswith("# EOF\n")
    families = list(read_openmetrics(page))  # type: ignore[no-untyped-call]
    kinds = {sample.name: family.type for family in families for sample in family.samples}
    assert kinds == {name: family.kind for name, family in FAMILIES.items()}
    told = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    assert told == samples(render(full_table()))


def test_an_empty_table_is_an_empty_page() -> None:
    assert render({}) == b""
    assert render({}, openmetrics=True) == b"# EOF\n"
    assert render({"gpu_busy_ratio": {}}) == b""


def test_what_is_kept_of_a_page_never_changes_what_the_next_one_says() -> None:
    kept: Kept = {}
    for value in (1.0, 1.0, 2.0, 1.0):
        table: Table = {}
        add(table, [Reading("gpu_busy_ratio", (GPU,), value), Reading("gpu_up", (GPU,), 1.0)])
        for openmetrics in (False, True):
            assert render(table, openmetrics, kept) == render(table, openmetrics)
    add(table := {}, [Reading("gpu_up", (GPU,), 1.0)])
    assert samples(render(table, kept=kept)) == {("gpu_up", frozenset({GPU})): 1.0}


PAGES = st.lists(
    st.dictionaries(
        st.tuples(
            st.sampled_from(
                [
                    *("gpu_temperature_celsius", "gpu_throttle_seconds_total", "cadenza_exporter_info"),
                    *("gpu_busy_ratio", "cadenza_kernel_log_lost_total"),
                ]
            ),
            st.sampled_from(["edge", "mem", 'a "b" \\', "c d\n# e", ""]),
        ),
        st.sampled_from([0.0, 1.0, 12.5, -3.0, 1e6, 1e7, 1.5e300, 2.0**53, float("inf"), float("nan")]),
    ),
    max_size=6,
)


def tables(pages: Pages, article_names: bool) -> list[Table]:
    """Each page as two collectors tell it, of which the second repeats all that the first says, with other values."""
    found: list[Table] = []
    for page in pages:
        readings = [
            Reading(name, tuple((label, GPU[1] if label == "gpu" else text) for label in FAMILIES[name].labels), value)
            for (name, text), value in page.items()
        ]
        again = [reading._replace(value=reading.value + 1) for reading in readings]
        found.append(tabulate([state("a", *readings), state("b", *again)], "0", len(found), article_names))
    return found


@given(PAGES, st.lists(st.booleans(), min_size=6, max_size=6), st.booleans())
def test_any_page_after_any_other_is_as_if_it_were_the_first(
    pages: Pages, formats: list[bool], article_names: bool
) -> None:
    kept: Kept = {}
    for table, openmetrics in zip(tables(pages, article_names), formats, strict=False):
        assert render(table, openmetrics, kept) == render(table, openmetrics)


@settings(max_examples=25, deadline=None)
@given(st.lists(PAGES, min_size=2, max_size=4))
def test_scrapers_at_once_do_not_get_each_others_pages(scrapers: list[Pages]) -> None:
    """One cache, a thread a scraper, each with pages of its own in both formats."""
    kept: Kept = {}
    wrong: list[bytes] = []
    together = threading.Barrier(len(scrapers))

    def scrape(pages: list[tuple[Table, bytes]], openmetrics: bool) -> None:
        together.wait(10)
        for _ in range(5):
            wrong.extend(page for table, page in pages if render(table, openmetrics, kept) != page)

    threads = []
    for number, pages in enumerate(scrapers):
        openmetrics = number % 2 == 1
        wanted = [(table, render(table, openmetrics)) for table in tables(pages, article_names=True)]
        threads.append(threading.Thread(target=scrape, args=(wanted, openmetrics)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.floats(allow_nan=False))
def test_any_label_and_value_come_back_from_the_page(text: str, value: float) -> None:
    # The reader cuts lines where Python's splitlines does; the format knows "\n" alone.
    text = "".join(character for character in text if len(f"a{character}a".splitlines()) == 1 or character == "\n")
    reading = Reading("gpu_temperature_celsius", (*CARD, ("sensor", text)), value)
    table: Table = {}
    add(table, [reading])
    assert samples(render(table)) == {(reading.name, frozenset(reading.labels)): value}


def test_health_stands_beside_the_readings() -> None:
    reading = Reading("gpu_busy_ratio", (GPU,), 0.5)
    fine = state("amdgpu", reading)._replace(missing={"absent": 3, "denied": 1})
    stuck = state("smi", age_s=99.0, duration_s=None)
    page = samples(render(tabulate([fine, stuck], "1.2.3", scrapes=7)))
    of = [frozenset({("collector", name)}) for name in ("amdgpu", "smi")]
    assert page == {
        ("gpu_busy_ratio", frozenset({GPU})): 0.5,
        ("cadenza_collector_success", of[0]): 1,
        ("cadenza_collector_success", of[1]): 0,
        ("cadenza_collector_age_seconds", of[0]): 0.25,
        ("cadenza_collector_age_seconds", of[1]): 99,
        ("cadenza_collector_duration_seconds", of[0]): 0.01,
        ("cadenza_collector_missing_total", of[0] | {("reason", "absent")}): 3,
        ("cadenza_collector_missing_total", of[0] | {("reason", "denied")}): 1,
        ("cadenza_exporter_info", frozenset({("version", "1.2.3")})): 1,
        ("cadenza_exporter_scrapes_total", frozenset()): 7,
    }


def test_of_two_that_tell_the_same_series_the_first_is_believed() -> None:
    one, two = (Reading("gpu_busy_ratio", (GPU,), value) for value in (0.25, 0.75))
    other = Reading("gpu_busy_ratio", (("gpu", "0000:03:00.0"), ("vendor", "amd")), 0.75)
    page = samples(render(tabulate([state("sysfs", one), state("smi", two, other)], "0", 0)))
    assert page["gpu_busy_ratio", frozenset({GPU})] == 0.25
    assert page["gpu_busy_ratio", frozenset(other.labels)] == 0.75


def test_the_articles_names_stand_beside_ours_when_asked() -> None:
    told = state(
        "amdgpu",
        Reading("gpu_busy_ratio", CARD, 0.98),
        Reading("gpu_memory_used_bytes", (*CARD, ("pool", "vram")), 3e10),
        Reading("gpu_memory_used_bytes", (*CARD, ("pool", "gtt")), 1e6),
        Reading("gpu_memory_size_bytes", (*CARD, ("pool", "vram")), 32e9),
        Reading("gpu_temperature_celsius", (*CARD, ("sensor", "junction")), 76.1),
        Reading("gpu_busy_ratio", (("gpu", "0000:65:00.0"), ("vendor", "nvidia")), 0.5),
    )
    with_names = samples(render(tabulate([told], "0", 0, article_names=True)))
    without = samples(render(tabulate([told], "0", 0)))
    gpu = frozenset({GPU})
    assert {series: value for series, value in with_names.items() if series not in without} == {
        ("rocm_gpu_busy_percent", gpu): pytest.approx(98),
        ("rocm_vram_used_bytes", gpu): 3e10,
        ("rocm_vram_total_bytes", gpu): 32e9,
        ("rocm_temperature_celsius", gpu | {("sensor", "junction")}): 76.1,
    }
    assert {name for name, _ in with_names} - {name for name, _ in without} == {family.name for family in ARTICLE}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_no_complaint() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=render(full_table()), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
