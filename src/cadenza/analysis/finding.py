"""What is known of a point: findings, each a code, its numbers and a sentence; and the verdict that follows."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from cadenza.analysis.codes import CODES


class Verdict(StrEnum):
    """From good to bad. INVALID: do not use the numbers. CLIENT-LIMITED: they are the client's, not the server's."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    CLIENT_LIMITED = "CLIENT-LIMITED"
    INVALID = "INVALID"


class Finding(msgspec.Struct, frozen=True):
    """One thing that is known of a point. Programs read `code`, `verdict` and `numbers`, people the message.

    code      stable; its meaning and its numbers are in `codes.CODES`
    verdict   of a check: the one that it alone would give; None: not judged here, or no check
    numbers   by name, with the unit at its end; a share is a fraction
    """

    code: str
    verdict: Verdict | None
    message: str
    numbers: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The check that it is of; empty: it is of none."""
        return CODES[self.code].check


class Check(msgspec.Struct, frozen=True):
    """A check as `summary.json` and `cadenza check` list it; the finding of the same message has its numbers.

    verdict   None: it could not be judged here, and the message says why
    """

    name: str
    verdict: Verdict | None
    message: str


_RANK = list(Verdict)


def judge(findings: Iterable[Finding]) -> tuple[Verdict, list[str]]:
    """**Verdict** of a point: the worst of its checks. With it the reasons, worst first: what is not VALID."""
    failed = [(one.verdict, one.message) for one in findings if one.verdict not in (None, Verdict.VALID)]
    ordered = sorted(failed, key=lambda item: -_RANK.index(item[0] or Verdict.VALID))
    return (ordered[0][0] or Verdict.VALID if ordered else Verdict.VALID), [message for _, message in ordered]


def check(code: str, message: str, wrong: bool, verdict: Verdict, **numbers: float) -> Finding:
    """A finding with `verdict` where it is wrong, else VALID."""
    return Finding(code, verdict if wrong else Verdict.VALID, message, numbers)


def valid(code: str, message: str, **numbers: float) -> Finding:
    """A check that is passed."""
    return Finding(code, Verdict.VALID, message, numbers)


def unjudged(code: str, message: str, **numbers: float) -> Finding:
    """A check that could not be judged, or something worth knowing that is no check."""
    return Finding(code, None, message, numbers)
