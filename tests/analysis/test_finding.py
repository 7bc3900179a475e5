"""Findings: every one that is made has a code of the table, and only numbers that the table names."""

import ast
import re
from pathlib import Path

import pytest

from cadenza.analysis.codes import CODES
from cadenza.analysis.finding import Finding, Verdict, check, judge, unjudged, valid

ROOM = Path(__file__).parents[2] / "src" / "cadenza" / "analysis"
MAKERS = {"Finding", "check", "valid", "unjudged"}


def codes_made() -> set[str]:
    """The codes that stand as text where the room makes findings; of an f-string its constant beginning."""
    made = set()
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    made.add(first.value)
                elif isinstance(first, ast.JoinedStr) and isinstance(first.values[0], ast.Constant):
                    made |= {code for code in CODES if code.startswith(str(first.values[0].value))}
    return made


def test_every_code_that_is_made_is_in_the_table_and_every_one_of_the_table_is_made() -> None:
    assert codes_made() == CODES.keys()


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_kebab_case_and_says_what_it_means(code: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    entry = CODES[code]
    assert entry.meaning.endswith(".")
    assert not entry.action or entry.action.endswith((".", ")."))
    assert all(re.fullmatch(r"[a-z0-9_]+", number) for number in entry.numbers)


def test_the_worst_verdict_is_the_points_and_the_reasons_are_worst_first() -> None:
    findings = [
        valid("window", "w", window_s=1.0),
        Finding("lockstep", Verdict.SUSPECT, "s"),
        unjudged("dispatch-lag", "n"),
        Finding("clock-steps", Verdict.INVALID, "i"),
        Finding("empty-slots", Verdict.CLIENT_LIMITED, "c"),
    ]
    assert judge(findings) == (Verdict.INVALID, ["i", "c", "s"])
    assert judge(findings[:1]) == (Verdict.VALID, [])
    assert judge([]) == (Verdict.VALID, [])


@pytest.mark.parametrize(("wrong", "verdict"), [(True, Verdict.SUSPECT), (False, Verdict.VALID)])
def test_a_check_has_its_verdict_where_it_is_wrong(wrong: bool, verdict: Verdict) -> None:
    finding = check("silence", "m", wrong, Verdict.SUSPECT, silent_s=2.0)
    assert (finding.verdict, finding.name, finding.numbers) == (verdict, "silence", {"silent_s": 2.0})
