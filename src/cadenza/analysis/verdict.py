"""Can this point be believed? What one check says, and what all of them together say."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """From good to bad. INVALID: do not use the numbers. CLIENT-LIMITED: they are the client's, not the server's."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    CLIENT_LIMITED = "CLIENT-LIMITED"
    INVALID = "INVALID"


class Check(msgspec.Struct, frozen=True):
    """One thing looked at: the verdict that it alone would give, and one plain sentence with its number.

    verdict   None: it could not be judged here, and the sentence says why
    """

    name: str
    verdict: Verdict | None
    told: str


_RANK = list(Verdict)


def judge(checks: Iterable[Check]) -> tuple[Verdict, list[str]]:
    """**Verdict** of a point: the worst of its checks. With it the reasons, worst first: what is not VALID."""
    found = [(check.verdict, check.told) for check in checks if check.verdict not in (None, Verdict.VALID)]
    ordered = sorted(found, key=lambda item: -_RANK.index(item[0] or Verdict.VALID))
    return (ordered[0][0] or Verdict.VALID if ordered else Verdict.VALID), [told for _, told in ordered]


def check(name: str, told: str, wrong: bool, verdict: Verdict) -> Check:
    """`verdict` where it is wrong, else VALID."""
    return Check(name, verdict if wrong else Verdict.VALID, told)
