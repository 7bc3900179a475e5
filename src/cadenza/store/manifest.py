"""What a run directory says about itself."""

from enum import StrEnum

import msgspec

from cadenza.clock import Anchor
from cadenza.record import SCHEMA, Point
from cadenza.spec import Spec
from cadenza.store.environment import Environment


class RunStatus(StrEnum):
    """`running` in a directory that nobody writes any more means interrupted (`store.rundir.read_run` says so)."""

    RUNNING = "running"
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class Server(msgspec.Struct, kw_only=True):
    """What the preflight learned about the target.

    tokens_per_event   of the trial answer; None where the server gives no usage
    accepts_*          False: the server refused the field, and the run goes on without it
    """

    engine: str
    version: str | None
    models: list[str]
    max_model_len_tok: int | None
    gives_usage: bool
    tokens_per_event: float | None
    reasons_first: bool
    accepts_ignore_eos: bool
    accepts_include_usage: bool
    simulated: bool


class Manifest(msgspec.Struct, kw_only=True):
    """`manifest.json`. The spec in it, given back to `--spec`, is the same run again."""

    schema: int = SCHEMA
    status: RunStatus
    simulated: bool
    started: str
    anchor: Anchor
    argv: list[str]
    spec: Spec
    dataset_sha256: str | None
    environment: Environment
    server: Server
    points: list[Point]
