"""Opening files that strangers made: what they are, how large, and one error for all that is wrong with them."""

import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import av
import av.container
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from petzval.errors import BadMediaError

Source = bytes | Path
Format = Literal["png", "jpeg", "webp", "gif", "bmp", "mp4", "webm"]

MAX_PIXELS = 50_000_000
"""Of one picture or frame, known from its header before anything is decoded."""
MAX_BYTES = 512 * 2**20
"""Of an encoded file."""

# What Pillow's parsers are known to raise on damaged input, FFmpeg's, and what both share with Python's own codecs.
PARSER_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    SyntaxError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    TypeError,
    RuntimeError,
    EOFError,
    AssertionError,
    MemoryError,
    struct.error,
    zlib.error,
    av.FFmpegError,
    Image.DecompressionBombError,
)

# The classes themselves, not Image.open: it has limits of its own, and warns where we refuse.
_PICTURES: dict[Format, Callable[[BytesIO], ImageFile]] = {
    "png": PngImageFile,
    "jpeg": JpegImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
}
_DEMUXERS: dict[Format, str] = {"mp4": "mp4", "webm": "matroska"}
_PICTURE_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif", b"avis")
_WARNING_FILTERS = threading.RLock()


def name_of(source: Source, *, name: str) -> str:
    """What messages call this source: its path, or the name of the argument that it came in."""
    return str(source) if isinstance(source, Path) else name


def load(source: Source, *, name: str) -> bytes:
    """The bytes of a source. Raises BadMediaError when there is no such file, or it is empty or over MAX_BYTES."""
    if isinstance(source, bytes):
        size = len(source)
    else:
        try:
            if not source.is_file():
                raise BadMediaError(f"{name} is not a file" if source.exists() else f"{name} does not exist")
            size = source.stat().st_size
        except (OSError, ValueError) as error:
            raise BadMediaError(f"{name} cannot be read: {_reason(error)}") from error
    if size == 0:
        raise BadMediaError(f"{name} is empty")
    if size > MAX_BYTES:
        raise BadMediaError(f"{name} is too large: {size} bytes, at most {MAX_BYTES}")
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise BadMediaError(f"{name} cannot be read: {_reason(error)}") from error


def format_of(data: bytes) -> Format | None:
    """What the first bytes say that a file is; its name has no say."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith(b"BM"):
        return "bmp"
    # The same box opens HEIC and AVIF pictures, which are none of ours.
    if data[4:8] == b"ftyp" and data[8:12] not in _PICTURE_BRANDS:
        return "mp4"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm"
    return None


def what_is(data: bytes) -> str:
    """Words for an error message: what a file that we cannot use seems to be."""
    known = format_of(data)
    if known is not None:
        return f"a {known.upper()} file"
    if data[4:8] == b"ftyp":
        return "a HEIC or AVIF picture"
    if data.startswith((b"II*\0", b"MM\0*")):
        return "a TIFF file"
    if b"<svg" in data[:1000]:
        return "an SVG drawing"
    try:
        data[:1000].decode("ascii")
    except UnicodeDecodeError:
        return "of an unknown format"
    return "a text file"


@contextmanager
def untrusted(name: str) -> Iterator[None]:
    """Turn everything that parsing a damaged file raises into BadMediaError, and keep the parsers' warnings in here.

    The filters of warnings belong to the whole process, so that one thread at a time is inside.
    """
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except BadMediaError:
            raise
        except PARSER_ERRORS as error:
            raise BadMediaError(f"{name} is damaged: {_reason(error)}") from error


def check_pixels(width: int, height: int, *, name: str) -> None:
    """Raises BadMediaError unless a frame of this size has pixels and not too many."""
    if width < 1 or height < 1:
        raise BadMediaError(f"{name} has no pixels: {width}x{height}")
    if width * height > MAX_PIXELS:
        raise BadMediaError(f"{name} is too large: {width}x{height}, at most {MAX_PIXELS / 1e6:.0f} megapixels")


def open_picture(data: bytes, *, name: str) -> ImageFile:
    """A Pillow picture with its header read and its size checked, and nothing decoded yet. Call inside `untrusted`."""
    known = format_of(data)
    if known not in _PICTURES:
        raise BadMediaError(f"{name} is {what_is(data)}; a picture is PNG, JPEG, WebP, GIF or BMP")
    if known == "webp":
        # Its decoder reserves room for the whole canvas as soon as it is made.
        check_pixels(*_webp_size(data), name=name)
    if known == "png":
        # Pillow skips the checksums of the pixel data; verify() is where it reads them.
        checked = PngImageFile(BytesIO(data))
        check_pixels(*checked.size, name=name)
        checked.verify()
    picture = _PICTURES[known](BytesIO(data))
    check_pixels(*picture.size, name=name)
    return picture


def open_container(data: bytes, *, name: str) -> av.container.InputContainer:
    """A PyAV container, its streams probed. Call inside `untrusted` and close it.

    The demuxer is named and not guessed: among those that would be guessed are playlists, which open other files.
    """
    known = format_of(data)
    if known not in _DEMUXERS:
        raise BadMediaError(f"{name} is {what_is(data)}; a clip is MP4, MOV, WebM, GIF or WebP")
    options = {"max_pixels": str(MAX_PIXELS)}
    container = av.open(BytesIO(data), mode="r", format=_DEMUXERS[known], options=options, metadata_errors="replace")
    for stream in container.streams.video:
        stream.codec_context.options = options  # those above reach the probing of streams, not the decoding
    return container


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height of a WebP's canvas (Google's container specification; RFC 9649)."""
    kind, body = data[12:16], data[20:30]
    if len(body) == 10 and kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if len(body) == 10 and kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if len(body) == 10 and kind == b"VP8 ":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    raise ValueError("its header is incomplete")


def _reason(error: BaseException) -> str:
    """One line that says what went wrong, without addresses of objects."""
    text: Any = getattr(error, "strerror", None) or str(error)
    lines = str(text).strip().splitlines()
    return lines[0] if lines else type(error).__name__
