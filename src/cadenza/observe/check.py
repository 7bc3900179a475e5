"""All checks of a bundle: cadenza's lint, and promtool and amtool where they are installed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cadenza.errors import UsageError
from cadenza.observe.lint import expressions, lint
from cadenza.observe.programs import AMTOOL, INSTALL, PROMTOOL, ProgramResult, run_program
from cadenza.observe.yaml_text import render


class Check(NamedTuple):
    """`wrong`: one sentence per defect; `skipped`: why nothing was checked, and how to enable it."""

    name: str
    wrong: list[str]
    skipped: str = ""


def check(folder: Path) -> Iterator[Check]:
    """Check the bundle in `folder`; each check runs when it is iterated. UsageError: no such folder."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: create it with `cadenza observe init {folder}`")
    return _checks(folder)


def _checks(folder: Path) -> Iterator[Check]:
    yield Check("names, dashboards, texts (cadenza lint)", lint(folder))
    promtool = PROMTOOL.find()
    if promtool is None:
        yield Check("promtool", [], f"promtool is not installed, to {PROMTOOL.lacks}. {INSTALL}")
    else:
        yield from _by_promtool(promtool, folder)
    amtool, file = AMTOOL.find(), folder / "alertmanager.yml"
    if not file.is_file():
        yield Check("amtool check-config", [], f"there is no {file.name}")
    elif amtool is None:
        yield Check("amtool check-config", [], f"amtool is not installed, to {AMTOOL.lacks}. {INSTALL}")
    else:
        yield _check_of("amtool check-config", run_program(amtool, "check-config", str(file)))


def _by_promtool(promtool: str, folder: Path) -> Iterator[Check]:
    rules = [str(path) for path in sorted((folder / "rules").glob("*.yml")) if path.name != "tests.yml"]
    yield _check_of("promtool check config", run_program(promtool, "check", "config", str(folder / "prometheus.yml")))
    sound = True
    if rules:
        checked = _check_of(
            "promtool check rules --lint=all", run_program(promtool, "check", "rules", "--lint=all", *rules)
        )
        sound = not checked.wrong
        yield checked
    tests = folder / "rules" / "tests.yml"
    if not tests.is_file():
        yield Check("promtool test rules", [], "there is no rules/tests.yml")
    elif not sound:
        yield Check("promtool test rules", [], "fix the rules first")
    else:
        yield _check_of("promtool test rules", run_program(promtool, "test", "rules", str(tests)))
    yield _check_queries(promtool, folder)


def _check_queries(promtool: str, folder: Path) -> Check:
    """promtool parses rules only: it gets the dashboards' queries as the rules of a temporary file."""
    name = "PromQL of the dashboards (promtool)"
    if not (folder / "grafana" / "dashboards").is_dir():
        return Check(name, [], "there is no grafana/dashboards")
    queries = expressions(folder)
    rules = [
        {"record": f"query:{i}:shown", "expr": expr, "labels": {"at": where}} for i, (where, expr) in enumerate(queries)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "queries.yml"
        file.write_text(render({"groups": [{"name": "queries", "rules": rules}]}, ""), encoding="utf-8")
        result = run_program(promtool, "check", "rules", str(file))
    if result.ok:
        return Check(name, [])
    wrong = [
        f"{queries[i][0]}: {line.partition('could not parse expression: ')[2] or line.strip()}"
        for line in result.text.splitlines()
        for i in range(len(queries))
        if f'"query:{i}:shown"' in line
    ]
    return Check(name, wrong or _check_of(name, result).wrong)


def _check_of(name: str, result: ProgramResult) -> Check:
    """The output of a program as a check: each line once, the last 40."""
    lines = list(dict.fromkeys(line.strip() for line in result.text.splitlines() if line.strip()))
    return Check(name, [] if result.ok else lines[-40:] or ["it failed without output"])
