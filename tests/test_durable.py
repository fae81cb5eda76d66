"""Files are there whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from petzval.durable import alone_in, clear_parts, replacing


def test_a_file_takes_its_place_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with replacing(target) as part:
        part.write_text("new")
        assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert target.read_text() == "new"


def test_only_one_writes_to_a_folder_and_a_killed_ones_claim_ends_with_it(tmp_path: Path) -> None:
    hold = f"""
import time, pathlib
from petzval.durable import alone_in
with alone_in(pathlib.Path({str(tmp_path)!r})):
    print("in", flush=True)
    time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other.stdout:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(BlockingIOError), alone_in(tmp_path):
            pass
        other.kill()
        other.wait()
    with alone_in(tmp_path), pytest.raises(BlockingIOError), alone_in(tmp_path):
        pass


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
