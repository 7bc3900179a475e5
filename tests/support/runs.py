"""Small manifests and records for tests that need a run directory and not a run."""

from cadenza.clock import Anchor
from cadenza.record import LoadLabel, Outcome, Phase, Point, Record, TokenSource
from cadenza.spec import Spec
from cadenza.store.environment import Environment
from cadenza.store.manifest import Manifest, RunStatus, Server

MS = 1_000_000


def server(**changes: object) -> Server:
    """What a vLLM that takes everything looks like to the preflight."""
    known: dict[str, object] = {
        "engine": "vLLM",
        "version": "0.32.0",
        "models": ["m"],
        "max_model_len_tok": 2048,
        "gives_usage": True,
        "tokens_per_event": 1.0,
        "reasons_first": False,
        "accepts_ignore_eos": True,
        "accepts_include_usage": True,
        "simulated": False,
    }
    return Server(**{**known, **changes})  # type: ignore[arg-type]


def manifest() -> Manifest:
    """One closed point of one model, running."""
    return Manifest(
        status=RunStatus.RUNNING,
        simulated=False,
        started="2026-11-30T00:00:00+0000",
        anchor=Anchor(monotonic_ns=0, wall_ns=0),
        argv=["sweep"],
        spec=Spec(urls=("http://127.0.0.1:1",), models=("m",), concurrency=(1,)),
        dataset_sha256=None,
        environment=Environment(
            cadenza="0", python="CPython 3", os="Linux", machine="x", cpu=None, cpus=2, cpus_usable=2, libraries={}
        ),
        server=server(),
        points=[Point(index=0, model="m", load=LoadLabel.CLOSED, concurrency=1, planned=3)],
    )


def record(index: int) -> Record:
    """A good answer of three tokens, 20 ms to the first, 10 ms apart, one request after the other."""
    sent = 40 * MS * index
    return Record(
        point=0,
        index=index,
        phase=Phase.MEASURE,
        model="m",
        outcome=Outcome.OK,
        intended_ns=sent,
        sent_ns=sent,
        headers_ns=sent + 20 * MS,
        event_ns=[sent + 20 * MS, sent + 30 * MS, sent + 40 * MS],
        done_ns=sent + 40 * MS,
        prompt_tokens=5,
        output_tokens=3,
        token_source=TokenSource.USAGE,
        finish_reason="length",
        status=200,
    )
