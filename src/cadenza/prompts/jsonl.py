"""Prompts of one's own: a JSON object a line, `{"prompt": "…"}` or `{"messages": [{"role": …, "content": …}, …]}`.

`output_tokens` (or `max_tokens`) beside either says how long an answer to ask for. Other fields are ignored.
"""

from pathlib import Path

import msgspec

from cadenza.errors import UsageError
from cadenza.prompts.dataset import read_dataset
from cadenza.prompts.source import Row
from cadenza.record import Message, printable


class Line(msgspec.Struct):
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None


_decoder = msgspec.json.Decoder(Line)
_WANTED = 'each line is {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'


def load_jsonl(path: Path) -> tuple[list[Row], int]:
    """The file's rows, and 0 for none skipped: a file of one's own is right, or an error. Raises `UsageError`."""
    rows = []
    for number, line in enumerate(read_dataset(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_read_line(line))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise UsageError(f"{path}, line {number}: {printable(str(error), 200)}: {_WANTED}") from None
    return rows, 0


def _read_line(line: bytes) -> Row:
    row = _decoder.decode(line)
    length = row.max_tokens if row.output_tokens is None else row.output_tokens
    if length is not None and length < 1:
        raise ValueError(f"an answer of {length} tokens cannot be asked for")
    if (row.prompt is None) == (row.messages is None):
        raise ValueError("has neither prompt nor messages" if row.prompt is None else "has both prompt and messages")
    messages = (Message(role="user", content=row.prompt),) if row.prompt is not None else row.messages or ()
    if not any(message.content.strip() for message in messages):
        raise ValueError("the prompt is empty")
    return Row(messages=messages, output_tokens=length)
