"""Before anything is measured: what the server is, what it serves, and how it answers one short request."""

from collections.abc import Sequence

import msgspec

from cadenza.clock import NS_PER_S
from cadenza.errors import TargetError, UsageError, did_you_mean
from cadenza.load.client import Client
from cadenza.load.exchange import Exchange
from cadenza.load.fetch import fetch
from cadenza.load.issue import closed_loop
from cadenza.load.target import Target
from cadenza.load.transport import Transport
from cadenza.measure.plan import Phrasing, draw_requests, options_for
from cadenza.record import LoadLabel, Outcome, Point, Record, printable
from cadenza.spec import Credentials, Spec
from cadenza.store.manifest import Server
from cadenza.telemetry.engines import CADENZA, is_simulated, name_owner, version_paths
from cadenza.wire.dialect import Options

_TRIAL_TOK = 8
_TRIAL_POINT = 1 << 20
_SHOWN_MODELS = 20


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Trial(msgspec.Struct):
    """One short answer, and what had to be left out of the request for it."""

    record: Record
    options: Options


def examine(transport: Transport, phrasing: Phrasing, spec: Spec, credentials: Credentials) -> Server:
    """Ask every base URL what it serves, and the first for one short answer of each model of the spec.

    Raises TargetError, with the server's own words, where it refuses or does not answer as an OpenAI-compatible
    server does; UsageError where the spec names no model and there are several to choose from.
    """
    headers = credentials.as_headers()
    listed = [_list_models(transport, target, headers) for target in phrasing.targets]
    engine, version = _identify(transport, phrasing.targets[0], headers, listed[0])
    names = choose_models(spec, [model.id for model in listed[0]], simulated=is_simulated(engine, version))
    trials = [_try_model(transport, phrasing, spec, name, [model.id for model in listed[0]]) for name in names]
    usage = [trial.record for trial in trials if trial.record.token_source == "usage"]
    events = sum(len(record.event_ns) for record in usage)
    answered = [trial.record for trial in trials if trial.record.event_ns]
    lengths = [model.max_model_len for model in listed[0] if model.id in names and model.max_model_len]
    return Server(
        engine=engine,
        version=version,
        models=[printable(model.id, 120) for model in listed[0]] or list(names),
        max_model_len_tok=min(lengths, default=None),
        gives_usage=len(usage) == len(trials),
        tokens_per_event=sum(record.output_tokens or 0 for record in usage) / events if events else None,
        reasons_first=any(record.reasoning_tokens for record in usage),
        accepts_ignore_eos=all(trial.options.ignore_eos for trial in trials),
        accepts_include_usage=all(trial.options.include_usage for trial in trials),
        simulated=is_simulated(engine, version),
        trial_first_s=_mean_s([(r.event_ns[0] - (r.sent_ns or 0), 1) for r in answered]),
        trial_token_s=_mean_s([(r.event_ns[-1] - r.event_ns[0], r.output_tokens or 0) for r in answered]),
    )


def _mean_s(spans: Sequence[tuple[int, int]]) -> float | None:
    """Seconds each of so many, from (nanoseconds, how many); None: of none."""
    n = sum(count for _, count in spans)
    return sum(ns for ns, _ in spans) / n / NS_PER_S if n else None


def choose_models(spec: Spec, served: Sequence[str], *, simulated: bool) -> list[str]:
    """The models to measure: those named, else the only one there is, else all of the embedded engine's."""
    if spec.models == ("all",):
        return list(served)
    if spec.models:
        return list(spec.models)
    if not served:
        raise TargetError("the server lists no model: name one with --model")
    if len(served) > 1 and not simulated:
        raise UsageError(
            f"the server has {len(served)} models: choose with --model NAME, or --model all: {_names(served)}"
        )
    return list(served)


def _list_models(transport: Transport, target: Target, headers: tuple[tuple[str, str], ...]) -> list[_Model]:
    answer = fetch(transport, target, "/v1/models", headers)
    if answer.status in (401, 403):
        raise TargetError(_unauthorised(target, f"HTTP {answer.status}: {answer.error_line()}"))
    if answer.status == 404 and "html" not in answer.content_type:
        return []
    try:
        if answer.status != 200:
            raise msgspec.DecodeError
        return msgspec.json.decode(answer.body, type=_Models).data
    except (msgspec.MsgspecError, UnicodeError):
        reason = f"HTTP {answer.status}: {answer.error_line()}"
        raise TargetError(
            f"{target.url} is not the base URL of an OpenAI-compatible server: "
            f"GET {target.path('/v1/models')} gave {reason}"
        ) from None


def _identify(
    transport: Transport, target: Target, headers: tuple[tuple[str, str], ...], models: Sequence[_Model]
) -> tuple[str, str | None]:
    owner = models[0].owned_by or "" if models else ""
    engine = name_owner(owner) or printable(owner, 40) or "unknown"
    for (path, field, _), proves in version_paths():
        try:
            answer = fetch(transport, target, path, headers, timeout_s=3.0)
            version = (
                msgspec.json.decode(answer.body, type=dict[str, object]).get(field) if answer.status == 200 else None
            )
        except (TargetError, msgspec.MsgspecError, UnicodeError):
            continue
        if isinstance(version, str):
            if is_simulated(engine, version):
                return CADENZA.name, printable(version, 60)
            return proves or engine, printable(version, 60)
    return engine, None


def _try_model(transport: Transport, phrasing: Phrasing, spec: Spec, model: str, served: Sequence[str]) -> _Trial:
    """One short answer; fields that the server refuses are left out, one after the other."""
    options = options_for(spec, model)
    while True:
        record = _ask(transport, phrasing, spec, options)
        if record.outcome is Outcome.OK:
            return _Trial(record, options)
        reason = record.detail or ""
        if record.status in (400, 422) and options.include_usage and "stream_options" in reason:
            options = msgspec.structs.replace(options, include_usage=False)
        elif record.status in (400, 422) and options.ignore_eos and ("ignore_eos" in reason or "min_tokens" in reason):
            options = msgspec.structs.replace(options, ignore_eos=False)
        else:
            raise TargetError(_refused(phrasing.targets[0], record, model, served))


def _ask(transport: Transport, phrasing: Phrasing, spec: Spec, options: Options) -> Record:
    """The first prompt as a point that the grid does not have would salt it, cut to a short answer."""
    point = Point(index=_TRIAL_POINT, model=options.model, load=LoadLabel.CLOSED, concurrency=1, planned=1)
    request = msgspec.structs.replace(next(draw_requests(spec, point)), output_tokens=_TRIAL_TOK, due_ns=None)
    origins = [target.origin for target in phrasing.targets]
    client = Client(transport, origins, phrasing.dialect, spec.timeouts)
    ended: list[Exchange] = []
    closed_loop(client, iter([phrasing.put(request, options)]), 1, ended.append, stop=lambda: False)
    client.close()
    return ended[0].record(point.index, point.model)


def _refused(target: Target, record: Record, model: str, served: Sequence[str]) -> str:
    reason = record.detail or record.outcome.value
    if record.status in (401, 403):
        return _unauthorised(target, reason)
    if record.status == 404 and served and model not in served:
        close = did_you_mean(model, served)
        return f"{target.url} has no model {printable(model, 120)!r}{printable(close, 160)}; it has: {_names(served)}"
    if record.status == 404:
        return f"{target.url} refuses the request ({reason}): is --api right, and is --model spelt correctly?"
    first = f"the first request for {printable(model, 120)!r}"
    if record.status is not None and record.status != 200:
        return f"{target.url} refuses {first}: {reason}"
    return f"{target.url} did not answer {first} correctly: {record.outcome.value}, {reason}"


def _unauthorised(target: Target, reason: str) -> str:
    return (
        f"{target.url} rejected the API key ({reason}): put it into the variable CADENZA_API_KEY, "
        "or into a file named by --api-key-file"
    )


def _names(models: Sequence[str]) -> str:
    shown = ", ".join(printable(model, 120) for model in models[:_SHOWN_MODELS])
    return shown + (f" and {len(models) - _SHOWN_MODELS} more" if len(models) > _SHOWN_MODELS else "")
