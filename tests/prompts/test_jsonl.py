"""One's own prompts: what a line may say, and what is said to a line that says something else."""

from pathlib import Path

import pytest

from cadenza.errors import UsageError
from cadenza.prompts.jsonl import load_jsonl
from cadenza.prompts.source import Row
from cadenza.record import Message


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_prompts_and_messages_with_and_without_a_length(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"prompt": "Grüezi", "id": 7}\n\n'
        '{"prompt": "b", "output_tokens": 5}\r\n'
        '{"prompt": "c", "max_tokens": 6}\n'
        '{"prompt": "d", "max_tokens": 6, "output_tokens": 7}\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "e", "name": "x"}]}',
    )
    user = [Row(messages=(Message("user", text),), output_tokens=n) for text, n in zip("bcd", (5, 6, 7), strict=True)]
    assert load_jsonl(path) == (
        [
            Row(messages=(Message("user", "Grüezi"),)),
            *user,
            Row(messages=(Message("system", "s"), Message("user", "e"))),
        ],
        0,
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "truncated"),
        ("hello", "malformed"),
        ("[1]", "Expected `object`"),
        ("{}", "neither prompt nor messages"),
        ('{"prompt": null}', "neither prompt nor messages"),
        ('{"prompt": "a", "messages": []}', "both prompt and messages"),
        ('{"prompt": 5}', "Expected `str"),
        ('{"prompt": " "}', "the prompt is empty"),
        ('{"messages": []}', "the prompt is empty"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}', "Expected `str`"),
        ('{"prompt": "a", "output_tokens": 0}', "an answer of 0 tokens"),
        ('{"prompt": "a", "max_tokens": "9"}', "Expected `int"),
        ('{"x": ' + "[" * 100_000, "recursion"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong_and_what_is_wanted(tmp_path: Path, line: str, sentence: str) -> None:
    path = write(tmp_path, '{"prompt": "fine"}\n\n' + line + "\n")
    with pytest.raises(UsageError) as refused:
        load_jsonl(path)
    message = str(refused.value)
    assert message.startswith(f"{path}, line 3: ")
    assert sentence in message
    assert 'each line is {"prompt": "…"}' in message
