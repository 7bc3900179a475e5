"""All or nothing."""

from pathlib import Path

import pytest

from cadenza.store.files import replace_file


def test_the_new_file_stands_in_the_old_ones_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for data in (b"old", b"new"):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
