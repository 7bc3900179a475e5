"""A session that cannot be sampled as asked ends before it measures, and its run says so."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from cadenza.errors import UsageError
from cadenza.measure import session
from cadenza.measure.reach import Reached
from cadenza.spec import Credentials, Spec
from cadenza.store.manifest import RunStatus
from cadenza.store.rundir import read_run


def test_a_run_whose_sampling_is_refused_has_failed(tmp_path: Path) -> None:
    def refuse(
        spec: Spec, reached: Reached, folder: Path, stack: contextlib.ExitStack, notify: Callable[[str], None]
    ) -> session.Watched:
        raise UsageError("two collectors offer the same series")

    events: list[session.Event] = []
    spec = Spec(engine="mi50-rx6900xt", virtual=True, models=("Qwen/Qwen3-8B",), concurrency=(1,), requests=4)
    with pytest.raises(UsageError, match="same series"):
        session.measure(
            spec,
            Credentials(),
            tmp_path / "run",
            progress=events.append,
            watch=refuse,
            stopping=lambda: contextlib.nullcontext(lambda: False),
        )
    run = read_run(tmp_path / "run")
    assert run.manifest.status is RunStatus.FAILED
    assert list(run.records()) == []
    assert not any(isinstance(event, session.PointStarted) for event in events)
