"""`/v1/completions`: a plain prompt, a plain continuation."""

import msgspec

from cadenza.record import Request, printable
from cadenza.wire.dialect import Delta, Options, utf8_bytes
from cadenza.wire.openai import Envelope, WireUsage, decode_chunk, error_text, sampling_fields


class Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    usage: WireUsage | None = None


class Chunk(Envelope):
    choices: list[Choice] | None = None


_decoder = msgspec.json.Decoder(Chunk)


class CompletionsDialect:
    """`Dialect` of the completions API. A conversation becomes its turns, a blank line between them."""

    path = "/v1/completions"

    def body(self, request: Request, options: Options) -> bytes:
        prompt = "\n\n".join(message.content for message in request.messages)
        fields = {"model": options.model, "prompt": prompt, **sampling_fields(request, options)}
        return msgspec.json.encode(fields | options.extra_body)

    def read(self, data: bytes) -> Delta:
        chunk = decode_chunk(_decoder, data)
        text_bytes = 0
        finish_reason, usage = None, chunk.usage
        for choice in chunk.choices or ():
            text_bytes += utf8_bytes(choice.text)
            finish_reason = finish_reason or choice.finish_reason or None
            usage = usage or choice.usage
        return Delta(
            carries_tokens=text_bytes > 0,
            finish_reason=printable(finish_reason, 40) if finish_reason else None,
            usage=usage.read() if usage else None,
            error=error_text(chunk, bool(chunk.choices)),
            text_bytes=text_bytes,
        )
