"""Where a result goes: what a suffix means, and writing a file whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from petzval.durable import replacing
from petzval.errors import BadRequestError, UnavailableError

Kind = Literal["image", "video"]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
VIDEO_SUFFIXES = (".mp4", ".webp", ".gif")


def kind_of(path: Path, *, num_frames: int = 1) -> Kind:
    """What is written to a path of this suffix: "image" or "video".

    A `.webp` holds either: one frame makes it an image, more make it a video. Raises BadRequestError when nothing can
    be written to this suffix, or when it is one of an image and there are several frames.
    """
    suffix = path.suffix.lower()
    if suffix in IMAGE_SUFFIXES and num_frames == 1:
        return "image"
    if suffix in VIDEO_SUFFIXES:
        return "video"
    if suffix in IMAGE_SUFFIXES:
        raise BadRequestError(
            f"{path} names a picture, but there are {num_frames} frames; a clip ends in {_listed(VIDEO_SUFFIXES)}"
        )
    raise BadRequestError(
        f"{path} ends in {suffix or 'no suffix'!r}; a picture ends in {_listed(IMAGE_SUFFIXES)}, "
        f"a clip in {_listed(VIDEO_SUFFIXES)}"
    )


def check_suffix(path: Path, *, kind: Kind) -> str:
    """The suffix of a path in lower case, if a file of this kind can end in it. Raises BadRequestError."""
    allowed = IMAGE_SUFFIXES if kind == "image" else VIDEO_SUFFIXES
    suffix = path.suffix.lower()
    if suffix not in allowed:
        word = "picture" if kind == "image" else "clip"
        raise BadRequestError(f"{path} ends in {suffix or 'no suffix'!r}; a {word} ends in {_listed(allowed)}")
    return suffix


def check_writable(path: Path) -> Path:
    """The real file behind a path, if one can be written there; for asking before the work is done.

    Raises BadRequestError when the folder is missing or closed to us, when a folder or device has that name, or when
    no file can have it.
    """
    try:
        return _writable(path)
    except (OSError, RuntimeError, ValueError) as error:  # too long; links in a circle (Python 3.11 and 3.12); a NUL
        raise BadRequestError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _writable(path: Path) -> Path:
    target = path.resolve()
    if not target.parent.is_dir():
        raise BadRequestError(f"{path} cannot be written: the folder {target.parent} does not exist")
    if target.is_dir():
        raise BadRequestError(f"{path} cannot be written: it is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise BadRequestError(f"{path} cannot be written: it is not a regular file")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise BadRequestError(f"{path} cannot be written: no permission to write in the folder {target.parent}")
    return target


def atomic_write(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Write a file so that it is there whole or not at all, whatever happens on the way, Ctrl-C included.

    `content` is the bytes, or a function that writes to the path it is given: a hidden file beside the target, renamed
    over it at the end. Raises BadRequestError as `check_writable`, and UnavailableError when the disk refuses (full,
    over quota).
    """
    target = check_writable(path)
    try:
        with replacing(target) as part:
            if isinstance(content, bytes):
                part.write_bytes(content)
            else:
                content(part)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror or error}") from error


def _listed(suffixes: tuple[str, ...]) -> str:
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
