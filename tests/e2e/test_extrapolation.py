"""A profile under other loads than those it was fitted to: each kind is SUSPECT and named, in virtual time."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli.main import main

QWEN = "Qwen/Qwen3-8B"
COMMON = ("--virtual", "--model", QWEN, "--requests", "40", "--seed", "3", "--quiet", "--json")
LENGTHS = ("--prompts", "random:200:400", "--output-tokens", "32:64")


def sweep(out: Path, *flags: str) -> dict[str, Any]:
    off = out.parent / "off.toml"
    off.write_text("[telemetry]\noff = true\n", encoding="utf-8")
    assert main(["sweep", "--spec", str(off), *COMMON, *LENGTHS, *flags, "--out", str(out)]) == 0
    summary: dict[str, Any] = json.loads((out / "summary.json").read_bytes())
    return summary


def judged(point: dict[str, Any]) -> list[str]:
    return [check["message"] for check in point["checks"] if check["name"] == "extrapolation"]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted to a server at C = 1, 4, 16, whose steps lengthen with the context and wait for the prefills of others."""
    folder = tmp_path_factory.mktemp("fit")
    sweep(folder / "run", "--engine", "mi50-rx6900xt", "--timing", "physics", "-c", "1,4,16")
    assert main(["fit", str(folder / "run"), "-o", str(folder / "p.toml")]) == 0
    return folder / "p.toml"


def fitted(profile: Path, *flags: str) -> tuple[str, ...]:
    return ("--engine", str(profile), "--timing", "measured", *flags)


def test_the_load_that_was_measured_is_no_extrapolation(profile: Path, tmp_path: Path) -> None:
    for out, seed in (("a", "3"), ("b", "11")):
        summary = sweep(tmp_path / out, *fitted(profile, "-c", "1,4,16", "--seed", seed))
        for point in summary["points"]:
            assert [check["verdict"] for check in point["checks"] if check["name"] == "extrapolation"] == ["VALID"]
            assert not any("extrapolated" in reason for reason in point["reasons"])
    (point,) = sweep(tmp_path / "c", *fitted(profile, "-c", "8"))["points"]
    assert judged(point) == ["load and lengths are within those the profile was fitted to"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("-c", "32"), ["extrapolated: 32 requests in flight, the profile was measured up to 16"]),
        (("-c", "4", "--output-tokens", "8"), ["extrapolated: outputs of 8 tokens on average, "]),
        (("-c", "4", "--output-tokens", "200"), ["extrapolated: outputs of 200 tokens on average, "]),
        (("-c", "4", "--prompts", "random:900"), ["extrapolated: prompts of 900 tokens on average, "]),
        (("-c", "4", "--prompts", "random:20:580"), ["extrapolated: prompts of "]),
        (("--rate", "1"), ["extrapolated: an open loop, the profile was measured in a closed loop"]),
        (("--rate", "1", "-c", "8"), ["extrapolated: a capped open loop, the profile was measured in a closed loop"]),
        (
            ("-c", "32", "--output-tokens", "8"),
            ["extrapolated: 32 requests in flight, ", "extrapolated: outputs of 8 tokens on average, "],
        ),
    ],
)
def test_every_kind_of_extrapolation_is_said(
    profile: Path, tmp_path: Path, flags: tuple[str, ...], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (point,) = sweep(tmp_path / "run", *fitted(profile, *flags))["points"]
    found = judged(point)
    assert len(found) == len(told)
    for sentence, start in zip(found, told, strict=True):
        assert sentence.startswith(start)
    assert point["verdict"] == "SUSPECT"
    assert set(found) <= set(point["reasons"])
    # The run directory alone says it again, after the profile is gone.
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run"), "--json"]) == 0
    assert capsys.readouterr().out.encode() == (tmp_path / "run" / "summary.json").read_bytes()
    main(["show", str(tmp_path / "run")])
    assert "extrapolated" in capsys.readouterr().out


def test_rates_and_arrival_laws_are_of_the_domain_too(tmp_path: Path) -> None:
    sweep(tmp_path / "run", "--engine", "mi50-rx6900xt", "--timing", "physics", "--rate", "0.4,0.8")
    assert main(["fit", str(tmp_path / "run"), "-o", str(tmp_path / "p.toml")]) == 0
    cases = [
        (("--rate", "0.8"), "load and lengths are within those the profile was fitted to"),
        (("--rate", "0.6"), "load and lengths are within those the profile was fitted to"),
        (("--rate", "1.6"), "extrapolated: 1.6 requests/s, the profile was measured at 0.4 to 0.8"),
        (
            ("--rate", "0.8", "--arrivals", "gamma:0.25"),
            "extrapolated: gamma:0.25 arrivals, the profile was measured with poisson",
        ),
        (("-c", "3"), "extrapolated: a closed loop, the profile was measured in an open loop"),
    ]
    for k, (flags, told) in enumerate(cases):
        (point,) = sweep(tmp_path / str(k), *fitted(tmp_path / "p.toml", *flags))["points"]
        assert told in judged(point), flags


def test_percentiles_that_are_not_known_are_named(profile: Path, tmp_path: Path) -> None:
    """Between rows the note has the figures whose error in- or out-of-sample is too large, and no other."""
    domain = tomllib.loads(profile.read_text())["models"][0]["measured"]["domain"]
    tested = (domain["rows_pct"], domain["holdout_pct"])
    errors = {name: max(abs(pct[name]) for pct in tested) for name in domain["rows_pct"]}
    (point,) = sweep(tmp_path / "run", *fitted(profile, "-c", "8"))["points"]
    notes = [note for note in point["notes"] if note.startswith("not known from this profile")]
    named = notes[0].partition(": ")[2] if notes else ""
    for figure, pct in errors.items():
        name = figure.replace("_p", " P").replace("_", " ").replace("tpot", "TPOT").replace("itl", "ITL")
        assert (name.replace("ttft", "TTFT") in named) == (pct > (10 if figure.endswith("mean") else 5)), figure


def test_an_old_profile_has_the_loads_of_its_rows_only(profile: Path, tmp_path: Path) -> None:
    text = profile.read_text()
    start = text.index("[models.measured.domain]")
    old = tmp_path / "old.toml"
    old.write_text(text[:start] + text[text.index("[[models.measured.rows]]") :])
    (point,) = sweep(tmp_path / "a", *fitted(old, "-c", "4", "--output-tokens", "8"))["points"]
    (check,) = (check for check in point["checks"] if check["name"] == "extrapolation")
    assert check["verdict"] is None
    (point,) = sweep(tmp_path / "b", *fitted(old, "-c", "32"))["points"]
    assert judged(point)[0] == "extrapolated: 32 requests in flight, the profile was measured up to 16"


def test_a_server_that_is_no_measured_law_has_no_domain(tmp_path: Path) -> None:
    (point,) = sweep(tmp_path / "run", "--engine", "mi50-rx6900xt", "-c", "4")["points"]
    assert judged(point) == []
    kept = json.loads((tmp_path / "run" / "manifest.json").read_bytes())
    assert not any("domain" in one or "arrivals" in one for one in kept["points"])
