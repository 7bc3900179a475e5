"""The fuzzer over the telemetry parsers: a short run of it finds nothing, and it finds what is staged for it."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cadenza.telemetry import engine_page, findings, host
from cadenza.telemetry.cards import amdgpu, gpu_metrics, pcie, rocm_smi
from cadenza.telemetry.kernel import log as kernel_log
from cadenza.telemetry.kernel.patterns import GpuFault

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def fuzzer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return import_module("fuzz_parsers")


@pytest.mark.slow
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "fuzz_parsers.py"), "--rounds", "3300", "--seed", "7", "--json"]
    ended = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=100)
    told = json.loads(ended.stdout)
    assert told["failures"] == []
    assert ended.returncode == 0
    assert set(told["inputs"].values()) == {300}
    assert not list(tmp_path.iterdir())


def test_a_seed_is_the_same_inputs(fuzzer: ModuleType, tmp_path: Path) -> None:
    targets = fuzzer.make_targets(tmp_path)

    def cases(seed: int) -> list[Any]:
        return [fuzzer.make_case(target, seed, n, n) for target in targets for n in range(30, 36)]

    assert cases(1) == cases(1)
    assert len({case.data for case in cases(1)} & {case.data for case in cases(2)}) < 20


def test_every_place_is_a_cut_once(fuzzer: ModuleType) -> None:
    assert sorted(len(fuzzer.truncate(b"abcdefgh", count)[0]) for count in range(9)) == list(range(9))


STAGED: dict[
    str, tuple[str, ModuleType, str, Callable[[Any], Any], str]
] = {  # the parser, what breaks how, and what is told
    "N/A is 0": (
        "rocm_smi",
        rocm_smi,
        "number",
        lambda real: lambda value: 0.0 if value == "N/A" else real(value),
        "zero for missing",
    ),
    "nothing is impossible": ("rocm_smi", findings, "RANGES", lambda real: {}, "impossible"),
    "everything by a thousand": (
        "rocm_smi",
        rocm_smi,
        "scaled",
        lambda real: lambda value, unit: value * unit / 1e3,
        "another unit",
    ),
    "clocks in kilohertz": ("gpu_metrics", gpu_metrics, "_MHZ", lambda real: 1e3, "clocks_hertz.mclk"),
    "an exception": ("sysfs", amdgpu, "parse", lambda real: lambda data: 1 // 0, "ZeroDivisionError"),
    "counts are halved": (
        "engine_page",
        engine_page,
        "_sum",
        lambda real: lambda samples: (real(samples) or 0.0) / 2,
        "_tokens_total",
    ),
    "a negative is let through": ("host", host, "_numbers", lambda real: lambda words: [-5] * len(words), "impossible"),
    "an event anywhere": ("dmesg", kernel_log, "match", lambda real: lambda text: GpuFault("gpu_reset", ""), "forged"),
    "a payload of any size": ("pcie", pcie, "_MAX_PAYLOAD", lambda real: 10**9, "is no"),
}


@pytest.mark.parametrize("bug", STAGED)
def test_a_staged_bug_is_found(bug: str, fuzzer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, module, attribute, spoil, problem = STAGED[bug]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, attribute, spoil(getattr(module, attribute)))
    targets = [target for target in fuzzer.make_targets(tmp_path) if target.name == name]
    rounds = 20 if name == "sysfs" else 200
    failures, done = fuzzer.fuzz(targets, 1, rounds, None)
    assert done == {name: rounds}
    found = [failure for failure in failures if problem in failure.problem]
    assert found
    path = fuzzer.write(found[0])
    assert any(problem in again for again in fuzzer.replay(targets, path))
