"""The published ShareGPT layout with its variants and its flaws."""

import json
from pathlib import Path

import pytest

from cadenza.errors import UsageError
from cadenza.prompts.sharegpt import estimate_tokens, load_sharegpt
from cadenza.prompts.source import Row
from cadenza.record import Message


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def load(tmp_path: Path, text: str | bytes) -> tuple[list[Row], int]:
    path = tmp_path / "sharegpt.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_sharegpt(path)


def conversation(*turns: tuple[str, str]) -> dict[str, object]:
    return {"id": "x_0", "conversations": [{"from": role, "value": text} for role, text in turns]}


def rows(tmp_path: Path, *turns: tuple[str, str]) -> list[Row]:
    return load(tmp_path, json.dumps([conversation(*turns)]))[0]


def test_each_human_turn_is_a_row_with_the_reply_s_length(tmp_path: Path) -> None:
    turns = [("human", "Hi"), ("gpt", "x" * 400), ("human", "And?"), ("gpt", "y" * 42)]
    assert rows(tmp_path, *turns) == [
        Row(messages=(user("Hi"),), output_tokens=100),
        Row(messages=(user("Hi"), assistant("x" * 400), user("And?")), output_tokens=10),
    ]


def test_a_last_turn_without_a_reply_has_no_length_of_its_own(tmp_path: Path) -> None:
    assert rows(tmp_path, ("human", "Hi")) == [Row(messages=(user("Hi"),), output_tokens=None)]


@pytest.mark.parametrize("human", ["human", "user", "Human"])
@pytest.mark.parametrize("other", ["gpt", "chatgpt", "assistant", "bing", "bard"])
def test_all_spellings_of_the_roles(tmp_path: Path, human: str, other: str) -> None:
    turns = [("system", "s"), (human, "a"), (other, "b" * 40)]
    assert rows(tmp_path, *turns) == [Row(messages=(Message("system", "s"), user("a")), output_tokens=10)]


def test_a_conversation_that_begins_in_the_middle_begins_at_its_first_human_turn(tmp_path: Path) -> None:
    assert [row.messages for row in rows(tmp_path, ("gpt", "…"), ("gpt", "x"), ("human", "a"))] == [(user("a"),)]


def test_turns_of_one_speaker_in_a_row_are_one_turn(tmp_path: Path) -> None:
    turns = [("human", "a"), ("human", "b"), ("gpt", "x" * 20), ("gpt", "y" * 18)]
    assert rows(tmp_path, *turns) == [Row(messages=(user("a\n\nb"),), output_tokens=10)]


def test_empty_turns_are_no_turns(tmp_path: Path) -> None:
    turns = [("human", " "), ("human", "a"), ("gpt", ""), ("human", "b")]
    assert [row.messages for row in rows(tmp_path, *turns)] == [(user("a\n\nb"),)]


def test_an_unknown_role_ends_the_conversation(tmp_path: Path) -> None:
    turns = [("human", "a"), ("gpt", "b"), ("tool", "c"), ("human", "d")]
    assert [row.messages for row in rows(tmp_path, *turns)] == [(user("a"),)]


def test_conversations_without_a_human_turn_are_skipped_and_counted(tmp_path: Path) -> None:
    data = [conversation(), conversation(("gpt", "x")), conversation(("human", "a")), {"id": "y"}]
    found, skipped = load(tmp_path, json.dumps(data))
    assert [row.messages for row in found] == [(user("a"),)]
    assert skipped == 3


def test_role_and_content_and_messages(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 16}]
    for key in ("conversations", "messages"):
        assert load(tmp_path, json.dumps([{key: turns}])) == ([Row(messages=(user("a"),), output_tokens=4)], 0)


def test_one_object_a_line(tmp_path: Path) -> None:
    text = "\n\n".join(json.dumps(conversation(("human", name))) for name in "abc")
    assert [row.messages for row in load(tmp_path, text)[0]] == [(user(name),) for name in "abc"]


def test_pretty_printed_with_a_byte_order_mark_and_emoji(tmp_path: Path) -> None:
    text = json.dumps([conversation(("human", "Grüezi 👩‍🚀"))], indent=2, ensure_ascii=False)
    assert load(tmp_path, "\ufeff \n" + text)[0] == [Row(messages=(user("Grüezi 👩‍🚀"),))]


@pytest.mark.parametrize("template", ["[%s]", "%s\n"])
def test_half_an_emoji_is_mended(tmp_path: Path, template: str) -> None:
    text = '{"conversations": [{"from": "human", "value": "a \\ud83d b"}]}'
    assert [row.messages for row in load(tmp_path, template % text)[0]] == [(user("a ? b"),)]


@pytest.mark.parametrize(
    ("characters", "tokens"), [(0, 4), (1, 4), (16, 4), (17, 4), (20, 5), (400, 100), (4001, 1000)]
)
def test_four_characters_a_token_and_at_least_four_tokens(characters: int, tokens: int) -> None:
    assert estimate_tokens("x" * characters) == tokens


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "none of its 0 conversations has a human turn"),
        ('[{"conversations": []}]', "none of its 1 conversations has a human turn"),
        ('[\n{"conversations": [\n', ", line 2: "),
        ('[{"id": 1},\n{"id": 2} {"id": 3}]', ", line 2: "),
        ('{"id": 1}\n{"id":\n', ", line 2: "),
        ('[{"conversations": [{"from": "human", "value": 5}]}]', "$[0].conversations[0].value"),
        ('[{"conversations": "no"}]', "$[0].conversations"),
        ("hello", ", line 1: "),
        ('[{"x": ' + "[" * 100_000, "recursion"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    message = str(refused.value)
    assert "sharegpt.json" in message
    assert sentence in message
    assert '{"from": "human", "value": "…"}' in message
