"""Our own failures, by fault. A target's failure during a run is data (`record.Outcome`), never one of these.

    CadenzaError            1   something of ours went wrong
    ├── UsageError          2   the request itself makes no sense: a flag, a file, a folder
    ├── TargetError         3   the target cannot be reached, or refuses, before a run has begun
    └── StoreError          1   the run directory cannot be written or read

The number is the exit code. Every message says what happened, where, and what to do; no traceback reaches a user.
"""


class CadenzaError(Exception):
    """Base of all errors that the command line turns into one sentence and an exit code."""

    exit_code = 1


class UsageError(CadenzaError):
    """A flag, file or folder given by the user cannot be used as given."""

    exit_code = 2


class TargetError(CadenzaError):
    """The server under test cannot be reached, or refuses, before anything was measured."""

    exit_code = 3


class StoreError(CadenzaError):
    """A run directory cannot be written (disk full, no rights) or read back (not a run, newer schema)."""
