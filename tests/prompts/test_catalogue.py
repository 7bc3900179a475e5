"""The names of the sources, and what is said to a name that is none."""

import json
from pathlib import Path

import pytest

from cadenza.errors import UsageError
from cadenza.prompts.catalogue import SOURCES, digest, parse
from cadenza.prompts.salt import salt
from cadenza.prompts.source import RowSource
from cadenza.spec import Spec


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "a:b.jsonl"  # a colon in a path is the path's
    path.write_text('{"prompt": "one", "output_tokens": 11}\n')
    return path


def test_each_name_gives_requests(tmp_path: Path, jsonl: Path) -> None:
    sharegpt = tmp_path / "s.json"
    sharegpt.write_text(json.dumps([{"conversations": [{"from": "human", "value": "a"}]}, {"id": 1}]))
    texts = ["builtin", "random:9", "random:8:9", f"sharegpt:{sharegpt}", f"jsonl:{jsonl}"]
    assert {text.partition(":")[0] for text in texts} == set(SOURCES)
    for text in texts:
        request = parse(text, seed=3, point=2, output_tokens=(5, 5), unique=True).request(7)
        assert (request.index, request.output_tokens) == (7, 5)
        assert request.messages[0].content.startswith(salt(3, 2, 7))
    source = parse(f"sharegpt:{sharegpt}", seed=0, point=0)
    assert isinstance(source, RowSource)
    assert source.skipped == 1


def test_the_default_of_the_spec_is_a_name() -> None:
    assert parse(Spec().prompts, seed=0, point=0).request(0).messages


def test_without_a_range_the_dataset_says_how_long(jsonl: Path) -> None:
    request = parse(f"jsonl:{jsonl}", seed=0, point=0, output_tokens=None, unique=False).request(0)
    assert (request.messages[0].content, request.output_tokens) == ("one", 11)


def test_a_file_that_changed_is_read_again(jsonl: Path) -> None:
    for text in ("one", "another"):
        jsonl.write_text(json.dumps({"prompt": text}))
        assert parse(f"jsonl:{jsonl}", seed=0, point=0, unique=False).request(0).messages[0].content == text


def test_home_is_understood(jsonl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(jsonl.parent))
    assert digest(f"jsonl:~/{jsonl.name}") == digest(f"jsonl:{jsonl}")


def test_digest_names_the_file_s_content_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert digest(f"jsonl:{path}") == digest(f"sharegpt:{path}") == expected
    assert digest("builtin") is None
    assert digest("random:5") is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "give builtin, random:N"),
        ("alpaca", "'alpaca' are not known"),
        ("builtin:x", "take no argument"),
        ("random", "give random:N"),
        ("sharegpt", "need a file: give sharegpt:FILE"),
        ("jsonl:", "need a file: give jsonl:FILE"),
        ("jsonl:/nowhere/at all.jsonl", "/nowhere/at all.jsonl cannot be read (No such file or directory)"),
        ("x\x1b[31m\n" * 99, "are not known"),
    ],
)
def test_bad_text_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, seed=0, point=0)
    assert sentence in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("output_tokens", [(0, 5), (6, 5), (-1, -1)])
def test_a_range_that_is_none(output_tokens: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="are no range: give LOW:HIGH from 1 up"):
        parse("builtin", seed=0, point=0, output_tokens=output_tokens)
