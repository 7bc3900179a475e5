"""All checks of a bundle: our own lint always, Prometheus's and Alertmanager's own where they are installed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cadenza.errors import UsageError
from cadenza.observe.lint import expressions, lint
from cadenza.observe.programs import AMTOOL, INSTALL, PROMTOOL, Answer, ask
from cadenza.observe.yaml_text import render


class Check(NamedTuple):
    """`wrong`: sentences, none if all is well; `skipped`: why nothing was checked, and what would make it so."""

    name: str
    wrong: list[str]
    skipped: str = ""


def check(folder: Path) -> Iterator[Check]:
    """Check the bundle in `folder`, each as it is asked for: together they take seconds. UsageError: no such folder."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: `cadenza observe init {folder}` makes one")
    return _checks(folder)


def _checks(folder: Path) -> Iterator[Check]:
    yield Check("names, dashboards, texts (cadenza's own lint)", lint(folder))
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
        yield _told("amtool check-config", ask(amtool, "check-config", str(file)))


def _by_promtool(promtool: str, folder: Path) -> Iterator[Check]:
    rules = [str(path) for path in sorted((folder / "rules").glob("*.yml")) if path.name != "tests.yml"]
    yield _told("promtool check config", ask(promtool, "check", "config", str(folder / "prometheus.yml")))
    sound = True
    if rules:
        checked = _told("promtool check rules --lint=all", ask(promtool, "check", "rules", "--lint=all", *rules))
        sound = not checked.wrong
        yield checked
    tests = folder / "rules" / "tests.yml"
    if not tests.is_file():
        yield Check("promtool test rules", [], "there is no rules/tests.yml")
    elif not sound:
        yield Check("promtool test rules", [], "the rules have to be put right first")
    else:
        yield _told("promtool test rules", ask(promtool, "test", "rules", str(tests)))
    yield _check_queries(promtool, folder)


def _check_queries(promtool: str, folder: Path) -> Check:
    """promtool parses rules only: the dashboards' queries are shown to it as the rules of a file made for that."""
    name = "PromQL of the dashboards (promtool)"
    if not (folder / "grafana" / "dashboards").is_dir():
        return Check(name, [], "there is no grafana/dashboards")
    found = expressions(folder)
    rules = [
        {"record": f"query:{i}:shown", "expr": expr, "labels": {"at": where}} for i, (where, expr) in enumerate(found)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "queries.yml"
        file.write_text(render({"groups": [{"name": "queries", "rules": rules}]}, ""), encoding="utf-8")
        answer = ask(promtool, "check", "rules", str(file))
    if answer.ok:
        return Check(name, [])
    wrong = [
        f"{found[i][0]}: {line.partition('could not parse expression: ')[2] or line.strip()}"
        for line in answer.text.splitlines()
        for i in range(len(found))
        if f'"query:{i}:shown"' in line
    ]
    return Check(name, wrong or _told(name, answer).wrong)


def _told(name: str, answer: Answer) -> Check:
    """What a program found, each line once, the last ones if it says much."""
    lines = list(dict.fromkeys(line.strip() for line in answer.text.splitlines() if line.strip()))
    return Check(name, [] if answer.ok else lines[-40:] or ["it failed without a word"])
