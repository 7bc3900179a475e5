"""The Python face: its examples run, its tables agree with the summary, and it works off the main thread."""

import doctest
import inspect
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import cadenza
from cadenza import api, errors, spec
from cadenza.analysis import tables
from cadenza.measure import session
from cadenza.store.manifest import RunStatus

MODEL = "Qwen/Qwen3-8B"
SMALL = {"virtual": True, "models": MODEL, "concurrency": [1, 2], "requests": 8, "seed": 1}
LIBRARIES = ("pandas", "polars", "pyarrow")
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
for library in LIBRARIES:  # an example with +PANDAS is left out where pandas is not installed
    doctest.register_optionflag(library.upper())


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for module in (api, tables, spec) for test in finder.find(module) if test.examples]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one small run below runs/."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cadenza.sweep(SMALL)
    return folder


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name)
def test_an_example_gives_what_it_shows(example: doctest.DocTest, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    for step in example.examples:
        for library in LIBRARIES:
            if step.options.pop(doctest.OPTIONFLAGS_BY_NAME[library.upper()], False) and find_spec(library) is None:
                pytest.skip(f"{library} is not installed")
    failed, attempted = doctest.DocTestRunner(optionflags=OPTIONS).run(example)
    assert (failed, attempted > 0) == (0, True)


def public() -> list[tuple[str, object]]:
    """Every public name, and the public attributes of the classes that are defined here."""
    named: list[tuple[str, object]] = [(name, getattr(cadenza, name)) for name in cadenza.__all__]
    for owner in (cadenza.Run, cadenza.Table):
        members = {name: value for name, value in vars(owner).items() if not name.startswith("_")}
        named += [(f"{owner.__name__}.{name}", value) for name, value in members.items()]
    return named


@pytest.mark.parametrize(("name", "value"), public(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_public_name_has_a_docstring_and_what_can_be_called_an_example(name: str, value: object) -> None:
    text = inspect.getdoc(value) or ""
    assert text
    error = isinstance(value, type) and issubclass(value, Exception)
    settings = value in (cadenza.Slo, cadenza.Telemetry, cadenza.Timeouts)
    assert error or settings or ">>>" in text


def test_every_public_name_is_where_the_package_says() -> None:
    assert sorted(name for names in cadenza._HOMES.values() for name in names) == sorted(cadenza.__all__)
    assert set(cadenza.__all__) <= set(dir(cadenza))
    with pytest.raises(AttributeError, match="sweeep"):
        cadenza.sweeep  # type: ignore[attr-defined]  # noqa: B018


def test_the_requests_of_a_point_give_the_figures_of_its_summary(home: Path) -> None:
    run = cadenza.open_run(next((home / "runs").iterdir()))
    assert [point.concurrency for point in run.points] == [1, 2]
    for point in run.points:
        table = run.requests(point)
        assert {len(column) for column in table.values()} == {len(table["index"])}
        measured = table["phase"] == "measure"
        assert measured.sum() == point.requests.sent == 8
        for name in ("ttft_ms", "tpot_ms", "latency_ms"):
            assert np.mean(table[name][measured]) == pytest.approx(getattr(point, name).mean)
        assert table["output_tok"][measured].sum() == point.output_tokens
        # Latency is TTFT, and TPOT for each of the tokens after the first: the engine sends one an event.
        later_ms = table["tpot_ms"] * (table["output_tok"] - 1)
        assert table["latency_ms"] == pytest.approx(table["ttft_ms"] + later_ms)
        assert (table["intended_ns"] - table["intended_ns"].min()) / 1e6 == pytest.approx(table["intended_ms"])
    assert len(run.requests(0)["index"]) == len(run.requests(run.points[0])["index"])
    for index in (-1, 2):
        with pytest.raises(cadenza.UsageError, match=f"no point {index}"):
            run.requests(index)


def test_telemetry_is_on_the_clock_of_the_requests(home: Path) -> None:
    run = cadenza.open_run(next((home / "runs").iterdir()))
    telemetry = run.telemetry()
    assert {len(column) for column in telemetry.values()} == {len(telemetry["at_ns"])}
    first, last = run.requests(0)["intended_ns"].min(), run.requests(1)["intended_ns"].max()
    assert telemetry["at_ns"].min() <= first < last <= telemetry["at_ns"].max() + 500_000_000
    assert cadenza.sweep({**SMALL, "telemetry": {"off": True}}, home / "off").telemetry()["at_ns"].size == 0


def test_progress_is_a_callable_and_the_events_come_in_order(tmp_path: Path) -> None:
    events: list[session.Event] = []
    run = cadenza.sweep(cadenza.Spec(**SMALL), tmp_path / "run", events.append)  # type: ignore[arg-type]
    kinds = [type(event) for event in events if not isinstance(event, session.PointProgress)]
    point = [session.PointStarted, session.PointEnded]
    assert kinds == [session.Prepared, session.Sampling, *point, *point, session.RunEnded]
    assert isinstance(events[-1], session.RunEnded)
    assert events[-1].summary == run.summary
    assert (run.path, run.status, run.spec.seed) == (tmp_path / "run", RunStatus.COMPLETE, 1)


def test_an_error_in_progress_ends_the_run_as_failed(tmp_path: Path) -> None:
    def broken(event: session.Event) -> None:
        if isinstance(event, session.PointEnded):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cadenza.sweep(SMALL, tmp_path / "run", broken)
    run = cadenza.open_run(tmp_path / "run")
    assert (run.status, len(run.points)) == (RunStatus.FAILED, 1)


def test_a_signal_ends_the_run_early_and_its_points_stay(tmp_path: Path) -> None:
    def interrupt(event: session.Event) -> None:
        if isinstance(event, session.PointEnded):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    run = cadenza.sweep(SMALL, tmp_path / "run", interrupt)
    assert (run.status, len(run.points)) == (RunStatus.INTERRUPTED, 1)
    assert cadenza.open_run(tmp_path / "run").summary.points[0].requests.sent == 8
    assert signal.getsignal(signal.SIGINT) is before


def test_off_the_main_thread_no_handler_is_installed(tmp_path: Path) -> None:
    runs: list[cadenza.Run] = []
    thread = threading.Thread(target=lambda: runs.append(cadenza.sweep(SMALL, tmp_path / "run")))
    thread.start()
    thread.join()
    assert [run.status for run in runs] == [RunStatus.COMPLETE]


def test_a_dict_draws_a_seed_and_a_spec_keeps_its_own(tmp_path: Path) -> None:
    bare = {name: value for name, value in SMALL.items() if name != "seed"} | {"concurrency": 1, "requests": 1}
    seeds = {cadenza.sweep(bare, tmp_path / name).spec.seed for name in ("a", "b")}
    assert len(seeds) == 2
    assert cadenza.sweep(cadenza.Spec(**bare), tmp_path / "c").spec.seed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "field", "allowed"),
    [
        ({"concurrency": [1, 0]}, "concurrency", "a whole number from 1 up"),
        ({"rates_per_s": [-1.0]}, "rates_per_s", "a number above 0"),
        ({"timeouts": {"stall_s": 0}}, "timeouts.stall_s", "a time above 0 s"),
        ({"slo": {"ttft_ms": -1}}, "slo.ttft_ms", "a finite number of milliseconds above 0"),
        ({"telemetry": {"interval_s": 0.01}}, "telemetry.interval_s", "a time from 0.05 s to 1 h"),
        ({"requests": "many"}, "requests", "a whole number from 1 up, nor auto"),
        ({"virtual": 1}, "virtual", "true or false"),
        ({"temperature": "hot"}, "temperature", "a number from 0 up"),
        ({"urls": "http://a", "engine": "x"}, "engine", None),
        ({"virtual": True, "speed": 2}, "virtual", None),
    ],
)
def test_misuse_is_an_error_with_field_value_and_range(
    settings: dict[str, object], field: str, allowed: str | None, tmp_path: Path
) -> None:
    with pytest.raises(cadenza.SettingError) as caught:
        cadenza.sweep(settings, tmp_path / "run")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, cadenza.UsageError)
    assert (caught.value.field, caught.value.allowed) == (field, allowed)
    assert not (tmp_path / "run").exists()


def test_an_unknown_setting_is_an_error_with_the_closest_known_one() -> None:
    with pytest.raises(cadenza.UsageError, match=r"unknown setting 'concurency' \(did you mean 'concurrency'\?\)"):
        cadenza.sweep({"concurency": 1})


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_installed_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    table = cadenza.Table(n_tok=np.array([1]))
    convert = {"pandas": table.to_pandas, "polars": table.to_polars, "pyarrow": table.to_arrow}[library]
    with pytest.raises(cadenza.UsageError, match=f"^{library} is not installed: pip install {library}$"):
        convert()


def test_a_suggestion_is_close_or_there_is_none() -> None:
    assert errors.did_you_mean("SWEP", ["sweep", "show"]) == " (did you mean 'sweep'?)"
    assert errors.did_you_mean("zzz", ["sweep", "show"]) == ""


NOTEBOOK = f"""
import cadenza
import matplotlib.pyplot as plt
run = cadenza.sweep({{"virtual": True, "models": "{MODEL}", "concurrency": [1, 4], "requests": 12}})
frames = [run.requests(point).to_pandas().query("phase == 'measure'") for point in run.points]
plt.boxplot([frame["tpot_ms"] for frame in frames], tick_labels=[f"C = {{p.concurrency}}" for p in run.points])
plt.ylabel("TPOT, ms")
plt.savefig("tpot.png")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("pandas") and find_spec("matplotlib")), reason="pandas or matplotlib is not installed: extra [dev]"
)
def test_a_notebook_of_ten_lines_sweeps_reads_and_plots(tmp_path: Path) -> None:
    assert len(NOTEBOOK.strip().splitlines()) <= 10
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (tmp_path / "tpot.png").read_bytes().startswith(b"\x89PNG")
