"""The preflight's screen: what the server is and how it answers, in plain lines."""

from cadenza.record import printable
from cadenza.store.manifest import Server

_SHOWN_MODELS = 8


def describe_server(server: Server, where: str) -> str:
    """A few `name  value` lines; `where` is the URL, or the profile of the embedded engine."""
    rows = [
        ("server", printable(where, 160)),
        ("engine", f"{server.engine} {server.version or '(tells no version)'}"),
        ("models", _models(server)),
        ("context", f"{server.max_model_len_tok:,} tokens" if server.max_model_len_tok else "unknown"),
        ("usage", _usage(server)),
        ("events", _events(server)),
        ("length", _length(server)),
    ]
    if server.simulated:
        rows.insert(0, ("SIMULATED", "the embedded engine: its numbers follow a timing law, no GPU is measured"))
    return "\n".join(f"  {name:<10} {value}" for name, value in rows)


def _models(server: Server) -> str:
    shown = ", ".join(server.models[:_SHOWN_MODELS])
    more = len(server.models) - _SHOWN_MODELS
    return shown + (f" and {more} more" if more > 0 else "")


def _usage(server: Server) -> str:
    if server.gives_usage:
        return "given: token counts are the server's own"
    why = "" if server.accepts_include_usage else ", and stream_options is refused"
    return f"not given{why}: tokens are counted as events that carry text"


def _events(server: Server) -> str:
    if server.tokens_per_event is None:
        return "tokens in an event not known"
    one = abs(server.tokens_per_event - 1) < 0.005
    text = (
        "one token an event"
        if one
        else f"{server.tokens_per_event:.2f} tokens an event: ITL is per event, not per token"
    )
    return text + (", thinking first" if server.reasons_first else "")


def _length(server: Server) -> str:
    if server.accepts_ignore_eos:
        return "asked for exactly (ignore_eos)"
    return "up to the limit: ignore_eos is refused or switched off, so answers may end early"
