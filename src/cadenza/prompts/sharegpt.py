"""The ShareGPT layout: `[{"id": …, "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", …}]}, …]`.

A JSON array or one object a line; `role` and `content` in place of `from` and `value`; `messages` in place of
`conversations`. Every human turn is one row: the conversation up to it, and as the expected answer the length of the
reply that follows, estimated at four characters a token (the usual rule for English under a BPE; at least 4 tokens).
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from cadenza.errors import UsageError
from cadenza.prompts.dataset import line_of, mend_surrogates, read_dataset
from cadenza.prompts.source import Row
from cadenza.record import Message, printable

CHARACTERS_PER_TOKEN = 4
MIN_REPLY_TOKENS = 4

# As spelled in the published files, to the API's words.
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "bing", "bard", "model"), "assistant"),
    "system": "system",
}


class Turn(msgspec.Struct):
    from_: str | None = msgspec.field(default=None, name="from")
    value: str | None = None
    role: str | None = None
    content: str | None = None


class Conversation(msgspec.Struct):
    conversations: list[Turn] | None = None
    messages: list[Turn] | None = None


_array = msgspec.json.Decoder(list[Conversation])
_object = msgspec.json.Decoder(Conversation)
Decoded = TypeVar("Decoded")
_WANTED = 'give a JSON array, or a line each, of {"conversations": [{"from": "human", "value": "…"}, …]}'


def load_sharegpt(path: Path) -> tuple[list[Row], int]:
    """The file's rows, and how many conversations had no human turn that could be used. Raises `UsageError`."""
    rows: list[Row] = []
    skipped = 0
    for conversation in _read(path):
        found = _rows(conversation.conversations or conversation.messages or [])
        skipped += not found
        rows += found
    if not rows:
        raise UsageError(f"{path}: none of its {skipped} conversations has a human turn: {_WANTED}")
    return rows, skipped


def estimate_tokens(reply: str) -> int:
    """Tokens of a text, without a tokenizer: four characters each, at least four in all."""
    return max(MIN_REPLY_TOKENS, round(len(reply) / CHARACTERS_PER_TOKEN))


def _read(path: Path) -> list[Conversation]:
    data = read_dataset(path)
    if data.lstrip()[:1] == b"[":
        try:
            return _decode(_array, data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(f"{path}{_line_in(data, str(error))}: {printable(str(error), 200)}: {_WANTED}") from None
    conversations = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                conversations.append(_decode(_object, line))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise UsageError(f"{path}, line {number}: {printable(str(error), 200)}: {_WANTED}") from None
    return conversations


def _decode(decoder: msgspec.json.Decoder[Decoded], data: bytes) -> Decoded:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = mend_surrogates(data)
        if mended is None:
            raise
        return decoder.decode(mended)


def _line_in(data: bytes, complaint: str) -> str:
    """msgspec names the byte of a syntax error, `(byte 123)`; a person looks for a line."""
    _, _, rest = complaint.rpartition("(byte ")
    offset = rest.removesuffix(")")
    if offset.isdigit():
        return f", line {line_of(data, int(offset))}"
    return f", line {line_of(data, len(data.rstrip()))}" if "truncated" in complaint else ""


def _rows(turns: list[Turn]) -> list[Row]:
    """One row for each human turn. A turn of an unknown role ends the conversation there."""
    messages: list[Message] = []
    for turn in turns:
        role = ROLES.get((turn.from_ or turn.role or "").lower())
        content = turn.value if turn.value is not None else turn.content
        if role is None:
            break
        if not content or not content.strip():
            continue
        # Many files begin in the middle of a conversation; chat templates want the user to speak first.
        if role == "assistant" and not any(message.role == "user" for message in messages):
            continue
        if messages and messages[-1].role == role:
            messages[-1] = Message(role=role, content=f"{messages[-1].content}\n\n{content}")
        else:
            messages.append(Message(role=role, content=content))
    rows = []
    for at, message in enumerate(messages):
        if message.role == "user":
            reply = messages[at + 1] if at + 1 < len(messages) else None
            answered = reply is not None and reply.role == "assistant"
            length = estimate_tokens(reply.content) if reply is not None and answered else None
            rows.append(Row(messages=tuple(messages[: at + 1]), output_tokens=length))
    return rows
