"""Small files as the kernel has them, and the reason where there is nothing."""

import os
from pathlib import Path

import pytest

from cadenza.telemetry.root import UnreadableError, read_bytes, read_integer, read_text


def reason(path: Path) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_integer(path)
    return caught.value.reason


@pytest.mark.parametrize(("text", "value"), [("97\n", 97), ("-273150", -273150), (" 0 \n", 0), ("0" * 64, 0)])
def test_an_integer_is_read(tmp_path: Path, text: str, value: int) -> None:
    (tmp_path / "file").write_text(text)
    assert read_integer(tmp_path / "file") == value


@pytest.mark.parametrize("text", ["N/A", "1_000", "+5", "٣", "0x10", "1.5", "1 2", "9" * 65])
def test_what_is_no_integer_is_malformed_and_not_zero(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert reason(tmp_path / "file") == "malformed"


def test_reasons_tell_the_empty_the_absent_and_the_forbidden_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_text("\n")
    assert reason(tmp_path / "empty") == "not_supported"
    assert reason(tmp_path / "nowhere") == "absent"
    assert reason(tmp_path / "empty" / "below a file") == "absent"
    assert reason(tmp_path) == "failed"  # a folder

    for number, expected in ((1, "asleep"), (13, "denied"), (61, "not_supported"), (110, "timeout")):

        def fail(*_: object, number: int = number, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", fail)
        assert reason(tmp_path / "empty") == expected


def test_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 100_000)
    assert len(read_bytes(tmp_path / "long")) == 64 << 10
    assert len(read_bytes(tmp_path / "long", 10)) == 10
    (tmp_path / "binary").write_bytes(b"\xff\xfe a")
    assert read_text(tmp_path / "binary").endswith(" a")
