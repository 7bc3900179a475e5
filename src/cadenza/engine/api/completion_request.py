"""JSON body → `CompletionRequest`, or a refusal (OpenAI error object) that names the field and the reason."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from cadenza.engine.api.fields import Fields, JsonObject, RefusalError, bad, malformed, parse_body
from cadenza.engine.api.text import NEWLINE, VOCABULARY_TOK, encode, encode_chat, salted
from cadenza.engine.profile import Profile

# The OpenAI API's default for /v1/completions, kept by vLLM; chat has none, and fills the context.
DEFAULT_COMPLETION_TOK = 16
PRIORITY_HEADER = "x-vllm-priority"
_SALT_MOST = 128
_SALT_NEVER = "@/\\\0"


class UsageRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of tokens beyond what it is asked to, by vLLM's flags; all off by default.

    force_include    --enable-force-include-usage: usage in every event of every stream, and at its end
    prompt_details   --enable-prompt-tokens-details: how many prompt tokens the prefix cache spared
    """

    force_include: bool = False
    prompt_details: bool = False


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, understood. `output_tokens` is what will be produced, `reasoning_tokens` the first of them.

    prompt         token ids
    max_tokens     what the client set as limit, None: it set none
    priority       the lower, the earlier, where the engine schedules by priority
    reasons        the model is served with a reasoning parser, so that usage says how many tokens were thinking
    """

    model: str
    chat: bool
    prompt: list[int]
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    reasoning_tokens: int = 0
    reasons: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    prompt_details: bool = False

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)


_NO_RULES = UsageRules()


def read_completion_request(
    profile: Profile, chat: bool, headers: Mapping[str, str], body: bytes, rules: UsageRules = _NO_RULES
) -> CompletionRequest:
    """Read a body of /v1/chat/completions (`chat`) or /v1/completions; RefusalError if it cannot be served.

    The output is as long as `max_completion_tokens`, `max_tokens`, or the default says, within the context: the
    engine has no end-of-sequence of its own, so `ignore_eos`, `min_tokens` and stop strings change nothing.
    """
    fields = Fields(parse_body(headers.get("content-type", ""), body))
    _check_together(fields.body, chat)
    messages = read_messages(fields) if chat else []
    name = fields.text("model")
    limit_name, limit = _limit(fields, chat)
    stream = fields.flag("stream")
    include_usage, continuous_usage = _usage(fields, rules)
    sampling = _read_sampling(fields)
    priority = _priority(fields, headers)
    template = fields.mapping("chat_template_kwargs") or {}
    name = served(profile, name)
    prompt = conversation_ids(messages) if chat else _prompt(fields.body["prompt"])
    salt = fields.body.get("cache_salt")
    if isinstance(salt, str):
        prompt = salted(prompt, salt)
    _check_sampling(sampling)
    output_tokens = _output(profile.max_model_len, len(prompt), limit_name, limit)
    if sampling.min_tokens > output_tokens:
        bad(f"min_tokens must be less than or equal to max_tokens={output_tokens}, got {sampling.min_tokens}.")
    reasons = chat and profile.model(name).thinking
    thinks = reasons and template.get("enable_thinking") is not False
    return CompletionRequest(
        model=name,
        chat=chat,
        prompt=prompt,
        output_tokens=output_tokens,
        max_tokens=limit,
        priority=priority,
        reasoning_tokens=output_tokens // 2 if thinks else 0,
        reasons=reasons,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        prompt_details=rules.prompt_details,
    )


def served(profile: Profile, name: str | None) -> str:
    """The model that a request means: the profile's first, where it names none; RefusalError if it is not served."""
    names = [model.name for model in profile.models]
    if name and name not in names:
        message = f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}."
        raise RefusalError(404, "NotFoundError", message, "model")
    return name or names[0]


def read_messages(fields: Fields) -> list[tuple[str, str]]:
    """(role, text) of every message; of parts that are not text (images, audio) nothing is counted."""
    messages = fields.body.get("messages")
    if not isinstance(messages, list):
        raise fields.wrong("messages", "a list of messages")
    conversation = []
    for at, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict):
            raise fields.wrong(f"messages.{at}", "an object")
        if not isinstance(role, str):
            raise fields.wrong(f"messages.{at}.role", "a string")
        conversation.append((role, _content(fields, message.get("content"), f"messages.{at}.content")))
    return conversation


def conversation_ids(messages: list[tuple[str, str]], generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation; RefusalError where it has no message."""
    if not messages:
        bad("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return encode_chat(messages, generation_prompt)


def _content(fields: Fields, content: object, name: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise fields.wrong(name, "a string or a list of parts")
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return " ".join(text for text in parts if isinstance(text, str))


def _check_together(body: JsonObject, chat: bool) -> None:
    """What vLLM looks at before it looks at the single fields."""
    if body.get("stream_options") and not body.get("stream"):
        bad("Stream options can only be defined when `stream=True`.", "stream_options")
    if not chat and body.get("prompt") in (None, ""):
        bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        bad("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if isinstance(salt, str) and (len(salt) > _SALT_MOST or any(char in _SALT_NEVER for char in salt)):
        text = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        bad(text, "cache_salt")


def _limit(fields: Fields, chat: bool) -> tuple[str, int | None]:
    limit = fields.integer("max_tokens")
    if chat and (more_recent := fields.integer("max_completion_tokens")) is not None:
        return "max_completion_tokens", more_recent
    return "max_tokens", DEFAULT_COMPLETION_TOK if limit is None and not chat else limit


def _usage(fields: Fields, rules: UsageRules) -> tuple[bool, bool]:
    """Whether usage is sent at the end of a stream, and in each of its events."""
    options = fields.object("stream_options")
    include = options is not None and options.flag("include_usage")
    continuous = options is not None and options.flag("continuous_usage_stats")
    return rules.force_include or include, rules.force_include or (include and continuous)


def _priority(fields: Fields, headers: Mapping[str, str]) -> int:
    """The field's, unless a header that is a number says otherwise."""
    priority = fields.integer("priority") or 0
    try:
        return int(headers.get(PRIORITY_HEADER, ""))
    except ValueError:
        return priority


class _Sampling(NamedTuple):
    n: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int


def _read_sampling(fields: Fields) -> _Sampling:
    fields.integer("seed")
    fields.flag("ignore_eos")
    n, least, top_k = (fields.integer(name) for name in ("n", "min_tokens", "top_k"))
    temperature, top_p = fields.number("temperature"), fields.number("top_p")
    return _Sampling(1 if n is None else n, least or 0, temperature or 0.0, 1.0 if top_p is None else top_p, top_k or 0)


def _check_sampling(sampling: _Sampling) -> None:
    n, least, temperature, top_p, top_k = sampling
    if n < 1:
        bad(f"n must be at least 1, got {n}.")
    if n > 1:
        bad("The simulated engine gives one choice a request.", "n", n)
    if temperature < 0:
        bad(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if not 0 < top_p <= 1:
        bad(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if top_k < -1:
        bad(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if least < 0:
        bad(f"min_tokens must be greater than or equal to 0, got {least}.")


def _output(context: int, prompt_tokens: int, limit_name: str, limit: int | None) -> int:
    if limit is not None and limit > context:
        text = (
            f"{limit_name}={limit} cannot be greater than max_model_len={context}. Please request fewer output tokens."
        )
        bad(text, limit_name, limit)
    if prompt_tokens > context:
        # vLLM stops counting one token above its limit, and says so.
        text = (
            f"This model's maximum context length is {context} tokens. However, your prompt contains at least "
            f"{context + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            "the length of the input prompt."
        )
        bad(text, "input_tokens", context + 1)
    room = context - prompt_tokens
    output = room if limit is None else min(limit, room)
    if output < 1:
        bad(f"max_tokens must be at least 1, got {output}.", "max_tokens", output)
    return output


def _prompt(prompt: object) -> list[int]:
    """Token ids of a prompt: a string, token ids, or a list of one such; never none, as no tokenizer gives none."""
    if prompt == []:
        bad("You must pass at least one prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
        if prompt in ("", []):
            bad("The decoder prompt cannot be empty")
    if isinstance(prompt, str):
        return encode(prompt) or [NEWLINE]
    if not isinstance(prompt, list):
        malformed("prompt must be a string or a list of token ids", "prompt")
    if not all(type(part) is int for part in prompt):
        if all(isinstance(part, str | list) for part in prompt):
            bad("The simulated engine takes one prompt a request.", "prompt")
        malformed("prompt must be a string or a list of token ids", "prompt")
    for strange in (min(prompt), max(prompt)):
        if not 0 <= strange < VOCABULARY_TOK:
            bad(f"Token id {strange} is out of vocabulary")
    return prompt
