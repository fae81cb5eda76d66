"""A file is there whole or not at all, whatever goes wrong while it is written."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from petzval.errors import BadRequestError, UnavailableError
from petzval.media import images, videos
from petzval.media.files import atomic_write, check_writable, kind_of
from petzval.media.images import write_image
from petzval.media.videos import write_video
from tests.media.craft import clip, picture


@pytest.mark.parametrize(
    "name, num_frames, kind",
    [
        ("a.png", 1, "image"),
        ("a.JPG", 1, "image"),
        ("a.jpeg", 1, "image"),
        ("a.webp", 1, "image"),
        ("a.webp", 9, "video"),
        ("a.gif", 1, "video"),
        ("a.MP4", 1, "video"),
        ("a.mp4", 9, "video"),
    ],
)
def test_kind_of(name, num_frames, kind):
    assert kind_of(Path(name), num_frames=num_frames) == kind


@pytest.mark.parametrize(
    "name, num_frames, words",
    [
        ("a.png", 9, r"a\.png names a picture, but there are 9 frames; a clip ends in \.mp4, \.webp or \.gif"),
        ("a.bmp", 1, r"'\.bmp'; a picture ends in \.png, \.jpg, \.jpeg or \.webp, a clip in \.mp4"),
        ("png", 1, "'no suffix'"),
    ],
)
def test_kind_of_refuses(name, num_frames, words):
    with pytest.raises(BadRequestError, match=words):
        kind_of(Path(name), num_frames=num_frames)


def test_bytes_and_writers(tmp_path):
    atomic_write(tmp_path / "a", b"one")
    atomic_write(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    atomic_write(tmp_path / "b", lambda part: part.write_text("three") and None)
    assert (tmp_path / "b").read_bytes() == b"three"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_long_name_and_a_link(tmp_path):
    long = tmp_path / ("x" * 251 + ".png")
    write_image(picture(4, 4), long)
    assert long.is_file()
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.png"
    link.symlink_to(tmp_path / "real" / "a.png")
    write_image(picture(4, 4), link)
    assert link.is_symlink() and (tmp_path / "real" / "a.png").is_file()


def test_targets_that_cannot_be_written(tmp_path):
    with pytest.raises(BadRequestError, match=r"the folder .*/none does not exist"):
        write_image(picture(4, 4), tmp_path / "none" / "a.png")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(BadRequestError, match="it is a folder"):
        write_image(picture(4, 4), tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    with pytest.raises(BadRequestError, match="not a regular file"):
        write_image(picture(4, 4), tmp_path / "b.png")
    (tmp_path / "file").touch()
    with pytest.raises(BadRequestError, match="does not exist"):
        check_writable(tmp_path / "file" / "a.png")


def test_a_closed_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root, whom nothing is closed to
    with pytest.raises(BadRequestError, match="no permission to write"):
        atomic_write(tmp_path / "a", b"")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_on_the_way_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "a"
    target.write_bytes(b"old")

    def half(part: Path) -> None:
        part.write_bytes(b"ne")
        raise error

    with pytest.raises(error):
        atomic_write(target, half)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".gif", ".mp4"])
def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch, suffix):
    """The interrupt comes with the third frame of a clip, and at the end of a picture, when its file is there."""
    calls = iter(range(10))

    def interrupted(*args, **kwargs):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return convert(*args, **kwargs)

    path = tmp_path / f"a{suffix}"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if suffix in (".gif", ".mp4"):
            convert = videos.to_uint8
            patch.setattr(videos, "to_uint8", interrupted)
            write_video(clip(5, 32, 32), path, fps=8)
        else:
            patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(KeyboardInterrupt))
            write_image(picture(32, 32), path)
    assert not list(tmp_path.iterdir())
    assert images.to_uint8 is videos.to_uint8


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from petzval.errors import UnavailableError
from petzval.media.images import write_image
from petzval.media.videos import write_video

folder, limits = Path(sys.argv[1]), [int(limit) for limit in sys.argv[2].split(",")]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
noise = np.random.default_rng(0).integers(0, 256, size=(8, 64, 64, 3)).astype(np.uint8)
for limit in limits:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for suffix in (".png", ".jpg", ".mp4", ".webp", ".gif"):
        path = folder / f"a{suffix}"
        try:
            if suffix in (".png", ".jpg"):
                write_image(noise[0], path)
            else:
                write_video(noise, path, fps=8)
        except UnavailableError as error:
            print(limit, suffix, error)
        assert not list(folder.iterdir()), (limit, suffix, list(folder.iterdir()))
"""


def test_a_full_disk_leaves_nothing(tmp_path):
    """The kernel refuses to let a file grow past a limit: from the first byte, in the middle, and near the end."""
    limits = "0,100,2000,5000"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path), limits], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 4 * 5, run.stdout
    assert all("cannot be written: File too large" in line for line in lines), run.stdout


def test_the_disks_own_words_are_passed_on(tmp_path):
    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UnavailableError, match=r"a\.png cannot be written: No space left on device"):
        atomic_write(tmp_path / "a.png", full)
