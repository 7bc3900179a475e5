"""What the two OpenAI APIs share: request fields, usage, and how an event's JSON becomes a `Delta`."""

from typing import Annotated, Any, TypeVar

import msgspec

from cadenza.record import Request, printable
from cadenza.wire.dialect import MalformedError, Options, Usage
from cadenza.wire.errors import read_error

# A count that a record can hold, whatever a server says.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

_ABSENT = msgspec.Raw()
_NO_ERROR = frozenset({b"null", b"false", b'""'})
_NOTHING = Usage()


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: Count | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class WireUsage(msgspec.Struct):
    """`usage` as servers spell it; SGLang has `reasoning_tokens` beside the details, the others inside."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_tokens_details: PromptDetails | None = None

    def read(self) -> Usage | None:
        """None where it says nothing at all (`{}`)."""
        inner, prompt = self.completion_tokens_details, self.prompt_tokens_details
        reasoning = inner.reasoning_tokens if inner and inner.reasoning_tokens is not None else self.reasoning_tokens
        usage = Usage(
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.completion_tokens,
            reasoning_tokens=reasoning,
            cached_tokens=prompt.cached_tokens if prompt else None,
        )
        return None if usage == _NOTHING else usage


class Envelope(msgspec.Struct):
    """The fields around `choices` by which errors are sent, in every shape in use."""

    error: msgspec.Raw = _ABSENT
    message: msgspec.Raw = _ABSENT
    detail: msgspec.Raw = _ABSENT
    usage: WireUsage | None = None


ChunkType = TypeVar("ChunkType", bound=Envelope)


def decode_chunk(decoder: msgspec.json.Decoder[ChunkType], data: bytes) -> ChunkType:
    """`data` as the typed chunk; `MalformedError`, with the beginning of the bytes, where it is not that."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        start = printable(data[:80].decode("utf-8", "replace"), 80)
        kind = "not the shape expected" if isinstance(error, msgspec.ValidationError) else "not JSON"
        raise MalformedError(f"{kind} ({printable(str(error), 120)}): {start}") from None


def error_text(chunk: Envelope, has_choices: bool) -> str | None:
    """The server's message where the chunk is an error object. `message` and `detail` count only without choices."""
    fields = (chunk.error,) if has_choices else (chunk.error, chunk.message, chunk.detail)
    for raw in fields:
        if raw is not _ABSENT and bytes(raw) not in _NO_ERROR:
            return read_error(bytes(raw))
    return None


def sampling_fields(request: Request, options: Options) -> dict[str, Any]:
    """The body's fields beside the prompt, `extra_body` not yet merged.

    `max_tokens` although OpenAI renamed it for chat: vLLM, SGLang, llama.cpp, TGI and Ollama all take this spelling.
    `min_tokens` beside `ignore_eos` closes the other ways to stop early that vLLM and SGLang know.
    """
    fields: dict[str, Any] = {"max_tokens": request.output_tokens, "stream": options.stream}
    if options.stream and options.include_usage:
        fields["stream_options"] = {"include_usage": True}
    if options.ignore_eos:
        fields |= {"ignore_eos": True, "min_tokens": request.output_tokens}
    if options.temperature is not None:
        fields["temperature"] = options.temperature
    return fields
