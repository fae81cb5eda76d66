"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty hidden file beside `path` to write to, which takes its place when the block ends well.

    When it does not (Ctrl-C included), nothing is left of it and what stood at `path` is untouched. Raises OSError when
    the disk refuses.
    """
    # A name of its own, not one made from the target's, which may be as long as the file system allows.
    part = path.with_name(f".petzval-{secrets.token_hex(8)}.part")
    try:
        # Made here, not by the writer, so that permissions follow the umask and nothing is overwritten.
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        sync(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Be the only process that writes to a folder, for as long as the block lasts; a killed one's claim ends with it.

    Raises BlockingIOError when another one is there.
    """
    descriptor = os.open(folder / ".petzval-writer", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def clear_parts(folder: Path) -> None:
    """Delete what writers that were killed left in a folder that nobody else writes to."""
    for part in folder.glob(".petzval-*.part"):
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk. Some disks say only now that they are full, and a
    rename must not become durable before what it renames."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
