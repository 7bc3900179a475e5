"""`/v1/chat/completions`, as OpenAI documents it and vLLM, SGLang, llama.cpp, TGI and Ollama speak it."""

import msgspec

from cadenza.record import Request, printable
from cadenza.wire.dialect import Delta, Options, utf8_bytes
from cadenza.wire.openai import Envelope, WireUsage, decode_chunk, error_text, sampling_fields


class Part(msgspec.Struct):
    text: str | None = None


class Call(msgspec.Struct):
    """A function call; the name alone is no token of the answer. Arguments are a string, rarely the object itself."""

    arguments: str | dict[str, msgspec.Raw] | None = None

    def text_bytes(self) -> int:
        arguments = self.arguments
        if isinstance(arguments, dict):
            return len(msgspec.json.encode(arguments)) if arguments else 0
        return utf8_bytes(arguments)


class ToolCall(msgspec.Struct):
    function: Call | None = None


class Said(msgspec.Struct):
    """`delta` of a stream, `message` of a whole answer."""

    content: str | list[Part] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | ToolCall | None = None  # one object, not a list: TGI 2
    function_call: Call | None = None

    def answer_bytes(self) -> int:
        """Size of content and of tool-call arguments; 0: it has neither."""
        content = self.content if isinstance(self.content, list) else [Part(self.content)]
        size = sum(utf8_bytes(part.text) for part in content)
        if self.tool_calls is None and self.function_call is None:
            return size
        calls = self.tool_calls if isinstance(self.tool_calls, list) else [self.tool_calls]
        functions = [self.function_call, *(call.function for call in calls if call)]
        return size + sum(function.text_bytes() for function in functions if function)

    def reasoning_bytes(self) -> int:
        """Size of the thinking, which some servers give under both names."""
        return utf8_bytes(self.reasoning or self.reasoning_content)


class Choice(msgspec.Struct):
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None
    usage: WireUsage | None = None


class Chunk(Envelope):
    choices: list[Choice] | None = None


_decoder = msgspec.json.Decoder(Chunk)


class ChatDialect:
    """`Dialect` of the chat API."""

    path = "/v1/chat/completions"

    def body(self, request: Request, options: Options) -> bytes:
        fields = {"model": options.model, "messages": request.messages, **sampling_fields(request, options)}
        return msgspec.json.encode(fields | options.extra_body)

    def read(self, data: bytes) -> Delta:
        chunk = decode_chunk(_decoder, data)
        answer = reasoning = 0
        finish_reason, usage = None, chunk.usage
        for choice in chunk.choices or ():
            part = choice.delta or choice.message
            if part is not None:
                answer += part.answer_bytes()
                reasoning += part.reasoning_bytes()
            finish_reason = finish_reason or choice.finish_reason or None
            usage = usage or choice.usage
        return Delta(
            carries_tokens=answer + reasoning > 0,
            is_reasoning=reasoning > 0 and not answer,
            finish_reason=printable(finish_reason, 40) if finish_reason else None,
            usage=usage.read() if usage else None,
            error=error_text(chunk, bool(chunk.choices)),
            text_bytes=answer + reasoning,
        )
