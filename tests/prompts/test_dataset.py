"""Files that cannot be used say which, where, and what to do."""

import hashlib
import os
from pathlib import Path

import pytest

from cadenza.errors import UsageError
from cadenza.prompts import dataset
from cadenza.prompts.dataset import hash_dataset, line_of, mend_surrogates, read_dataset


def test_bytes_come_back_without_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + '{"prompt": "é"}\r\n'.encode())
    assert read_dataset(path) == '{"prompt": "é"}\r\n'.encode()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b" \n\t\r\n", "is empty"),
        (b'{"a":1}\n{"b":"\xff"}\n', "line 2: not UTF-8"),
        (b"\xff\xfe{\x00", "line 1: not UTF-8"),
        (b"\x1f\x8b\x08\x00\x00\x00", "line 1: not UTF-8"),
    ],
)
def test_contents_that_are_no_text(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence) as refused:
        read_dataset(path)
    assert str(path) in str(refused.value)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json cannot be read \(No such file or directory\)"):
        read_dataset(tmp_path / "none.json")
    with pytest.raises(UsageError, match="is not a regular file"):
        read_dataset(tmp_path)
    with pytest.raises(UsageError, match="is not a path"):
        read_dataset(Path("a\0b"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a regular file"):
        read_dataset(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(UsageError, match=r"cannot be read \(Permission denied\)"):
        read_dataset(path)


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dataset.MAX_FILE_BYTES == 2 * 1024**3
    monkeypatch.setattr(dataset, "MAX_FILE_BYTES", 10)
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"x" * 11)
    with pytest.raises(UsageError, match="has 11 bytes, more than 10: cut it to a sample"):
        read_dataset(path)


def test_lines_count_from_one() -> None:
    assert [line_of(b"ab\ncd\n", offset) for offset in range(6)] == [1, 1, 1, 2, 2, 2]


def test_half_a_surrogate_pair_becomes_a_question_mark_and_a_whole_one_stays() -> None:
    assert mend_surrogates(rb'["a\ud83d", "\ud83d\ude00", "\\ud83d"]') == '["a?", "😀", "\\\\ud83d"]'.encode()
    assert mend_surrogates(b'["a') is None
    assert mend_surrogates(b"[" * 100_000) is None


def test_the_hash_is_sha256_of_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert hash_dataset(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"x" * 3_000_000)
    assert hash_dataset(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    with pytest.raises(UsageError, match="cannot be read"):
        hash_dataset(tmp_path / "none")
