"""Our own failures, by cause. A target's failure during a run is data (`record.Outcome`), never one of these.

    CadenzaError            1   cadenza itself failed
    ├── UsageError          2   a flag, a setting, a file or a folder cannot be used as given
    │   └── SettingError    2   a setting out of its range, or two that exclude each other; also a ValueError
    ├── TargetError         3   the target cannot be reached, or refuses, before a run has begun
    └── StoreError          1   the run directory cannot be written or read

The number is the exit code. Every message says what happened, where, and what to do; no traceback reaches a user.
"""

from collections.abc import Iterable, Mapping
from typing import Any


class CadenzaError(Exception):
    """Base of all errors that the command line turns into one sentence and an exit code."""

    exit_code = 1


class UsageError(CadenzaError):
    """A flag, file or folder given by the user cannot be used as given."""

    exit_code = 2


class SettingError(UsageError, ValueError):
    """A value of `spec.Spec` out of its range, or two settings that exclude each other.

    field     name of the setting as in `Spec`; nested ones with a dot: `timeouts.stall_s`
    value     the value that was given
    allowed   the range, e.g. `a whole number from 1 up`; None where two settings exclude each other
    sentence  `{subject}` and `{allowed}` stand for what was given and for the range, `{FIELD}` for a setting's name
    """

    def __init__(
        self, field: str, value: Any, allowed: str | None, sentence: str = "{subject} is not {allowed}"
    ) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        self._sentence = sentence
        super().__init__(self.describe({}))

    def describe(self, names: Mapping[str, str], given: str | None = None) -> str:
        """The sentence with `names` (field → flag) for the settings; `given`: what the flag was given."""
        value = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        subject = f"{self.field} = {value}" if given is None else f"{names[self.field]} {given!r}"
        return self._sentence.format_map(_Names(names, subject=subject, allowed=self.allowed or ""))


class _Names(dict[str, str]):
    """A name that is not listed stands for itself."""

    def __missing__(self, name: str) -> str:
        return name


class TargetError(CadenzaError):
    """The server under test cannot be reached, or refuses, before anything was measured."""

    exit_code = 3


class StoreError(CadenzaError):
    """A run directory cannot be written (disk full, no rights) or read back (not a run, newer schema)."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'X'?)` with the closest of `known`, or nothing where none is close. A part of a sentence."""
    import difflib

    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return f" (did you mean '{by_folded[close[0]]}'?)" if close else ""
