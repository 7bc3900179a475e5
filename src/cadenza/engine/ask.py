"""What a completion request asks for: JSON body → `Ask`, or the refusal vLLM 0.32 would give, word for word."""

import json
import sys
from typing import NoReturn

import msgspec

from cadenza.engine.http import json_bytes
from cadenza.engine.profile import Profile
from cadenza.engine.text import count_chat, count_prompt

# The OpenAI API's default for /v1/completions, kept by vLLM; chat has none, and fills the context.
DEFAULT_COMPLETION_TOK = 16

JsonObject = dict[str, object]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, understood. `output_tokens` is what will be produced, `reasoning_tokens` the first of them.

    reasons   the model is served with a reasoning parser, so that usage says how many tokens were thinking
    """

    model: str
    chat: bool
    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    reasons: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class RefusalError(Exception):
    """The answer is an error object: `status`, and its body as bytes."""

    def __init__(self, status: int, kind: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        error = {"message": message, "type": kind, "param": param, "code": status}
        self.body = json_bytes({"error": error})


def read_ask(profile: Profile, chat: bool, content_type: str, body: bytes) -> Ask:
    """Read a body of /v1/chat/completions (`chat`) or /v1/completions; RefusalError if it cannot be served.

    The output is as long as `max_completion_tokens`, `max_tokens`, or the default says, within the context: the
    engine has no end-of-sequence of its own, so `ignore_eos`, `min_tokens` and stop strings change nothing.
    """
    fields = _Fields(_parse(content_type, body))
    name = fields.text("model") or profile.models[0].name
    stream = fields.flag("stream")
    options = fields.mapping("stream_options")
    limit_name, limit = _limit(fields, chat)
    at_least = fields.integer("min_tokens") or 0
    temperature = fields.number("temperature")
    contents = _conversation(fields) if chat else None
    if options is not None and not stream:
        _bad("Stream options can only be defined when `stream=True`.", "stream_options")
    names = [model.name for model in profile.models]
    if name not in names:
        message = f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}."
        raise RefusalError(404, "NotFoundError", message, "model")
    if temperature is not None and temperature < 0:
        _bad(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if fields.integer("n") not in (None, 1):
        _bad("The simulated engine gives one choice a request.", "n", fields.integer("n"))
    prompt_tokens = count_chat(contents) if contents is not None else _prompt(fields)
    output_tokens = _output(profile.max_model_len, prompt_tokens, limit_name, limit)
    if at_least > output_tokens:
        _bad(f"min_tokens must be less than or equal to max_tokens={output_tokens}, got {at_least}.", None)
    reasons = chat and profile.model(name).thinking
    thinks = reasons and (fields.mapping("chat_template_kwargs") or {}).get("enable_thinking") is not False
    include_usage = options is not None and options.get("include_usage") is True
    return Ask(
        model=name,
        chat=chat,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=output_tokens // 2 if thinks else 0,
        reasons=reasons,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options is not None and options.get("continuous_usage_stats") is True,
    )


def _bad(message: str, param: str | None, value: object = None) -> NoReturn:
    if param is not None:
        shown = "" if value is None else f", value={value}"
        message = f"{message} (parameter={param}{shown})"
    raise RefusalError(400, "BadRequestError", message, param)


def _invalid(kind: str, loc: str, text: str, value: object, context: str | None = None) -> NoReturn:
    """The validation error of a server built on pydantic, as vLLM puts it into words."""
    detail: JsonObject = {"type": kind, "loc": loc, "msg": text, "input": _shown(value)}
    if context is not None:
        detail["ctx"] = {"error": context}
    raise RefusalError(400, "Bad Request", f"1 validation error:\n  {detail}", loc)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)[:100]


def _parse(content_type: str, body: bytes) -> JsonObject:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise RefusalError(400, "Bad Request", message, None)
    if not body:
        _invalid("missing", "body", "Field required", None)
    try:
        value: object = json.loads(body)
    except json.JSONDecodeError as error:
        _invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}, error.msg)
    except (ValueError, RecursionError) as error:
        _invalid("json_invalid", "body", "JSON decode error", {}, type(error).__name__)
    if not isinstance(value, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        _invalid("model_attributes_type", "body", text, value)
    return value


class _Fields:
    """Typed reading of a body's fields; null counts as absent."""

    def __init__(self, body: JsonObject) -> None:
        self.body = body

    def text(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        _invalid("string_type", f"body.{name}", "Input should be a valid string", value)

    def integer(self, name: str) -> int | None:
        value = self.body.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        wrong = "Input should be a valid integer"
        if isinstance(value, float):
            _invalid("int_from_float", f"body.{name}", f"{wrong}, got a number with a fractional part", value)
        if isinstance(value, str):
            _invalid("int_parsing", f"body.{name}", f"{wrong}, unable to parse string as an integer", value)
        _invalid("int_type", f"body.{name}", wrong, value)

    def number(self, name: str) -> float | None:
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            return float(value)
        _invalid("float_type", f"body.{name}", "Input should be a valid number", value)

    def flag(self, name: str) -> bool:
        value = self.body.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        if isinstance(value, str):
            text = "Input should be a valid boolean, unable to interpret input"
            _invalid("bool_parsing", f"body.{name}", text, value)
        _invalid("bool_type", f"body.{name}", "Input should be a valid boolean", value)

    def mapping(self, name: str) -> JsonObject | None:
        value = self.body.get(name)
        if value is None or isinstance(value, dict):
            return value
        _invalid("dict_type", f"body.{name}", "Input should be a valid dictionary", value)


def _limit(fields: _Fields, chat: bool) -> tuple[str, int | None]:
    if chat and (limit := fields.integer("max_completion_tokens")) is not None:
        return "max_completion_tokens", limit
    limit = fields.integer("max_tokens")
    return "max_tokens", DEFAULT_COMPLETION_TOK if limit is None and not chat else limit


def _output(context: int, prompt_tokens: int, limit_name: str, limit: int | None) -> int:
    if limit is not None and limit > context:
        text = (
            f"{limit_name}={limit} cannot be greater than max_model_len={context}. Please request fewer output tokens."
        )
        _bad(text, limit_name, limit)
    if prompt_tokens > context:
        # vLLM stops counting one token above its limit, and says so.
        text = (
            f"This model's maximum context length is {context} tokens. However, your prompt contains at least "
            f"{context + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            "the length of the input prompt."
        )
        _bad(text, "input_tokens", context + 1)
    room = context - prompt_tokens
    output = room if limit is None else min(limit, room)
    if output < 1:
        _bad(f"max_tokens must be at least 1, got {output}.", "max_tokens", output)
    return output


def _conversation(fields: _Fields) -> list[str]:
    """The text of every message; of parts that are not text (images, audio) nothing is counted."""
    messages = fields.body.get("messages")
    if messages is None:
        _invalid("missing", "body.messages", "Field required", fields.body)
    if not isinstance(messages, list):
        _invalid("list_type", "body.messages", "Input should be a valid list", messages)
    if not messages:
        _bad("Cannot apply chat template to an empty conversation. Provide at least one message.", None)
    contents = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            _invalid("dict_type", f"body.messages.{at}", "Input should be a valid dictionary", message)
        if not isinstance(message.get("role"), str):
            _invalid("missing", f"body.messages.{at}.role", "Field required", message)
        contents.append(_content(message.get("content"), f"body.messages.{at}.content"))
    return contents


def _content(content: object, loc: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        _invalid("string_type", loc, "Input should be a valid string", content)
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return " ".join(text for text in parts if isinstance(text, str))


def _prompt(fields: _Fields) -> int:
    """Tokens of a prompt: a string, a list of one string, or token ids; never none, as no tokenizer gives none."""
    prompt = fields.body.get("prompt")
    if prompt is None or prompt == "":
        _bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if prompt == []:
        _bad("You must pass at least one prompt", None)
    if isinstance(prompt, list) and all(type(part) is int for part in prompt):
        return len(prompt)
    if isinstance(prompt, list) and len(prompt) > 1 and all(isinstance(part, str) for part in prompt):
        _bad("The simulated engine takes one prompt a request.", "prompt")
    only: object = prompt[0] if isinstance(prompt, list) else prompt
    if not isinstance(only, str):
        _invalid("string_type", "body.prompt", "Input should be a valid string", only)
    return max(1, count_prompt(only))
