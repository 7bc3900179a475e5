"""The plug point for APIs: how a `Request` becomes a body, and what one stream event says.

To add one: a file beside this, a test of the same name, a line in `DIALECTS` (`wire/dialects.py`).
"""

from typing import Any, Protocol

import msgspec

from cadenza.record import Request


class Options(msgspec.Struct, frozen=True):
    """How requests of a run are phrased; what the server refuses has been switched off by the preflight."""

    model: str
    stream: bool = True
    include_usage: bool = True
    ignore_eos: bool = True
    temperature: float | None = 0.7
    extra_body: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server gives them; None where it does not."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


class Delta(msgspec.Struct, frozen=True):
    """What one event of a stream says.

    carries_tokens  non-empty content, reasoning or tool-call arguments: an *event* in the sense of the definitions
    is_reasoning    those tokens are thinking, not answer
    text_bytes      size of their text in UTF-8, once the JSON's escapes are undone; 0 where there is none
    error           the server's message, where the event is an error object
    """

    carries_tokens: bool = False
    is_reasoning: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    text_bytes: int = 0

    @property
    def is_text_only(self) -> bool:
        """It carries tokens and says nothing else."""
        return self.carries_tokens and self.finish_reason is None and self.usage is None and self.error is None


def utf8_bytes(text: str | None) -> int:
    """The size of `text` in UTF-8; 0 for None."""
    if not text:
        return 0
    return len(text) if text.isascii() else len(text.encode())


class MalformedError(Exception):
    """The bytes are not the protocol. The message is evidence for a record's `detail`; it never reaches a traceback."""


class Dialect(Protocol):
    """One API's language."""

    @property
    def path(self) -> str:
        """Path below the base URL, e.g. `/v1/chat/completions`."""
        ...

    def body(self, request: Request, options: Options) -> bytes:
        """The JSON body that asks for `request`."""
        ...

    def read(self, data: bytes) -> Delta:
        """What one event's data says; for a whole (non-streaming) answer too. Raises `MalformedError`."""
        ...
