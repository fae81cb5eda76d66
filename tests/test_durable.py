"""Files are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from petzval.durable import clear_parts, replacing


def test_a_file_takes_its_place_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with replacing(target) as part:
        part.write_text("new")
        assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert target.read_text() == "new"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError, SystemExit])
def test_nothing_is_left_of_an_interrupted_one(tmp_path: Path, interruption: type[BaseException]) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with pytest.raises(interruption), replacing(target) as part:
        part.write_text("half")
        raise interruption
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_permissions_follow_the_umask_and_the_longest_name_fits(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / ("n" * 255)) as part:
            part.write_text("x")
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o640


def test_parts_of_killed_writers_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    for name in (".petzval-12ab.part", "kept", ".hidden", "my.part"):
        (tmp_path / name).touch()
    clear_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "kept", "my.part"]
