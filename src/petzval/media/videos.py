"""Clips: RGB frames to MP4, animated WebP and GIF, and any common clip to RGB frames.

Shapes: T frames, H height, W width, C channels (RGB).
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from PIL import Image

from petzval.errors import BadMediaError, BadRequestError
from petzval.media.files import atomic_write, check_suffix
from petzval.media.images import Bytes8, Pixels, on_white, to_uint8
from petzval.media.record import KEY, Record, to_comment, to_text, to_xmp
from petzval.media.untrusted import (
    Source,
    check_pixels,
    format_of,
    load,
    name_of,
    open_container,
    open_picture,
    untrusted,
)

MAX_CLIP_PIXELS = 500_000_000
"""Of all frames of a clip together: 1.5 GB of RGB."""
MAX_FPS = 240

_GIF_MAX_FPS = 50  # players show frames of less than 20 ms for 100 ms
_PALETTE_SAMPLE = 200_000  # pixels
_DEFAULT_FRAME_MS = 100  # what players do with an animation that names no duration
_BT709, _UNSPECIFIED = 1, 2  # of ITU-T H.273, alike for primaries, transfer and matrix
_HD_HEIGHT = 720  # untagged clips from here up are BT.709, below BT.601, by every player's convention


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Frames of equal length: uint8 THWC, RGB, and how many a second."""

    frames: Bytes8
    fps: float


# -- writing ----------------------------------------------------------------------------------------------------------


def write_video(pixels: Pixels, path: Path, *, fps: float, record: Record | None = None) -> None:
    """Write a clip whole or not at all, in the format that the suffix names: .mp4, .webp or .gif.

    `pixels` are THWC: uint8, or floats in [0, 1]. MP4 is H.264 at CRF 16, yuv420p in BT.709, its index first so that it
    plays while it loads; width and height must be even. GIF holds 256 colours and at most 50 frames a second. Raises
    BadRequestError for another suffix, an odd size or such a rate, BadMediaError when the pixels are not as above, and
    as `atomic_write`.
    """
    suffix = check_suffix(path, kind="video")
    if pixels.ndim != 4 or pixels.shape[3] != 3 or 0 in pixels.shape:
        raise BadMediaError(f"pixels of a clip must have the shape (frames, height, width, 3), got {pixels.shape}")
    check_rate(suffix, fps=fps)
    if suffix == ".mp4":
        _check_even(pixels.shape[2], pixels.shape[1])
        atomic_write(path, lambda part: _write_mp4(pixels, part, fps=fps, record=record))
    elif suffix == ".webp":
        atomic_write(path, _encode_webp(pixels, fps=fps, record=record))
    else:
        atomic_write(path, _encode_gif(pixels, fps=fps, record=record))


def check_rate(suffix: str, *, fps: float) -> None:
    """For asking before the work is done. Raises BadRequestError for a rate that a file of this suffix cannot hold."""
    limit = _GIF_MAX_FPS if suffix == ".gif" else MAX_FPS
    if not 0 < fps <= limit:
        raise BadRequestError(f"fps must be above 0 and at most {limit} in a {suffix} file, got {fps}")


def _check_even(width: int, height: int) -> None:
    if width % 2 or height % 2:
        raise BadRequestError(
            f"width and height of an .mp4 must be even, got {width}x{height}; "
            f"nearest: {width + width % 2}x{height + height % 2}"
        )


def _write_mp4(pixels: Pixels, path: Path, *, fps: float, record: Record | None) -> None:
    # use_metadata_tags: without it the muxer keeps only the few keys that iTunes knows.
    options = {"movflags": "+faststart+use_metadata_tags"}
    try:
        with av.open(str(path), "w", format="mp4", options=options) as container:
            if record is not None:
                container.metadata[KEY] = to_text(record)
            rate = Fraction(fps).limit_denominator(1001)
            stream = container.add_stream("libx264", rate=rate, options={"crf": "16", "preset": "medium"})
            stream.height, stream.width = pixels.shape[1:3]
            stream.pix_fmt = "yuv420p"
            codec = stream.codec_context
            codec.colorspace = codec.color_primaries = codec.color_trc = _BT709
            codec.color_range = ColorRange.MPEG
            for frame in pixels:
                container.mux(stream.encode(_to_yuv(to_uint8(frame))))
            container.mux(stream.encode(None))
    except av.FFmpegError as error:
        raise OSError(error.errno, error.strerror) from error


def _to_yuv(frame_HWC: Bytes8) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
    return frame.reformat(
        format="yuv420p",
        src_color_range=ColorRange.JPEG,
        dst_color_range=ColorRange.MPEG,
        dst_colorspace=Colorspace.ITU709,
        interpolation=Interpolation.AREA,
    )


def _durations(num_frames: int, *, fps: float, unit_ms: int) -> list[int]:
    """Milliseconds of each frame in whole units, rounded so that the sum never drifts from the rate."""
    ends = [round(index * 1000 / fps / unit_ms) * unit_ms for index in range(num_frames + 1)]
    return [end - start for start, end in itertools.pairwise(ends)]


def _encode_webp(pixels: Pixels, *, fps: float, record: Record | None) -> bytes:
    first, *rest = [Image.fromarray(to_uint8(frame)) for frame in pixels]
    metadata = {} if record is None else {"xmp": to_xmp(record)}
    durations = _durations(len(pixels), fps=fps, unit_ms=1)
    return _saved(first, rest, format="webp", quality=90, method=4, duration=durations, loop=0, **metadata)


def _encode_gif(pixels: Pixels, *, fps: float, record: Record | None) -> bytes:
    frames = [to_uint8(frame) for frame in pixels]
    # One palette for the whole clip, from a sample of all its pixels, and no dithering: a palette a frame, or errors
    # diffused from what moves into what does not, make still things shimmer. The k-means steps are worth 2.5 dB.
    colours = np.concatenate([frame.reshape(-1, 3) for frame in frames])
    sample = np.ascontiguousarray(colours[:: max(1, len(colours) // _PALETTE_SAMPLE)])
    palette = Image.fromarray(sample[None]).quantize(256, method=Image.Quantize.MEDIANCUT, kmeans=2)
    first, *rest = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    metadata = {} if record is None else {"comment": to_comment(record)}
    durations = _durations(len(pixels), fps=fps, unit_ms=10)
    return _saved(first, rest, format="gif", duration=durations, loop=0, **metadata)


def _saved(first: Image.Image, rest: list[Image.Image], **options: Any) -> bytes:
    buffer = BytesIO()
    try:
        first.save(buffer, save_all=True, append_images=rest, **options)
    except (OSError, ValueError, RuntimeError) as error:  # more pixels on a side than the format can count
        raise BadMediaError(
            f"{first.width}x{first.height} pixels do not fit in {options['format']}: {error}"
        ) from error
    return buffer.getvalue()


# -- reading ----------------------------------------------------------------------------------------------------------


def read_video(source: Source, *, max_frames: int = 1024, name: str = "video") -> Clip:
    """The frames of an MP4, MOV, WebM, GIF or WebP clip: RGB, upright, on white. One picture is a clip of one frame.

    An animation's frames may last unequally; each is repeated as often as the shortest fits into it. Writers merge
    equal frames, so that a clip of nothing but equal frames reads back as one. `name` is what messages call a source of
    bytes. Raises BadMediaError when there is no such clip, when it is damaged or truncated, and when it has more than
    `max_frames` frames, or more pixels than MAX_PIXELS a frame or MAX_CLIP_PIXELS in all.
    """
    name = name_of(source, name=name)
    data = load(source, name=name)
    limits = _Limits(name=name, max_frames=max_frames)
    with untrusted(name):
        clip = _read_animation(data, limits) if format_of(data) in ("gif", "webp") else _read_film(data, limits)
    return clip


@dataclass
class _Limits:
    """Counts what is decoded, and stops it before it is too much."""

    name: str
    max_frames: int
    num_frames: int = 0
    size: tuple[int, int] = (0, 0)

    def admit(self, width: int, height: int, *, times: int = 1) -> None:
        """To be asked for every frame: before it is decoded where its size is known by then, before it is kept else."""
        check_pixels(width, height, name=self.name)
        if self.num_frames and (width, height) != self.size:
            raise BadMediaError(f"{self.name} changes its size from {self.size} to {(width, height)}")
        self.size = (width, height)
        self.num_frames += times
        if self.num_frames > self.max_frames:
            raise BadMediaError(f"{self.name} is too long: more than {self.max_frames} frames")
        if self.num_frames * width * height > MAX_CLIP_PIXELS:
            raise BadMediaError(
                f"{self.name} is too large: at {width}x{height}, at most {MAX_CLIP_PIXELS // (width * height)} frames"
            )


def _read_film(data: bytes, limits: _Limits) -> Clip:
    # FFmpeg takes a file that ends early for a shorter clip.
    lengths = {"mp4": _mp4_length, "webm": _webm_length}
    known = format_of(data)
    if known in lengths and len(data) < (needed := lengths[known](data)):
        raise BadMediaError(f"{limits.name} is truncated: it has {len(data)} of {needed} bytes")
    frames: list[Bytes8] = []
    with open_container(data, name=limits.name) as container:
        if not container.streams.video:
            raise BadMediaError(f"{limits.name} has no video stream")
        stream = container.streams.video[0]
        check_pixels(stream.width, stream.height, name=limits.name)
        rate = stream.average_rate or stream.guessed_rate
        for frame in container.decode(stream):
            if frame.is_corrupt:
                raise BadMediaError(f"{limits.name} is damaged at frame {len(frames)}")
            limits.admit(frame.width, frame.height)
            frames.append(_to_rgb(frame))
    if not frames:
        raise BadMediaError(f"{limits.name} has no frames")
    if not rate or not 0 < rate <= 1000:
        raise BadMediaError(f"{limits.name} is damaged: it names no usable frame rate")
    return Clip(frames=np.stack(frames), fps=float(rate))


def _to_rgb(frame: av.VideoFrame) -> Bytes8:
    matrix = frame.colorspace
    if matrix == _UNSPECIFIED and frame.height >= _HD_HEIGHT:
        matrix = _BT709
    pixels = frame.to_ndarray(format="rgb24", src_colorspace=matrix).astype(np.uint8, copy=False)
    # Phones store frames as the sensor saw them and note, in degrees against the clock, how to turn them upright.
    return np.rot90(pixels, k=round(frame.rotation / 90))


def _mp4_length(data: bytes) -> int:
    """Where the last box of an MP4 ends that a player needs (ISO/IEC 14496-12, section 4.2)."""
    start = needed = 0
    while start + 8 <= len(data):
        size, kind = int.from_bytes(data[start : start + 4], "big"), data[start + 4 : start + 8]
        if size == 1:
            size = int.from_bytes(data[start + 8 : start + 16], "big")
        if size < 8:  # 0: the box goes on to the end of the file; else: no box, but bytes after the last one
            break
        start += size
        if kind in (b"moov", b"moof", b"mdat"):
            needed = start
    return needed


def _webm_length(data: bytes) -> int:
    """Where the segment of a WebM ends, or 0 when it does not say, as in live recordings (RFC 8794, section 4)."""

    def number(position: int) -> tuple[int, int, int]:
        """A number of variable length, where it ends, and the value that would mean "unknown"."""
        length = 9 - data[position].bit_length()
        unknown = (1 << 7 * length) - 1
        return int.from_bytes(data[position : position + length], "big") & unknown, position + length, unknown

    size, start, _ = number(4)  # after the four bytes of the EBML header's id
    size, start, unknown = number(start + size + 4)  # after those of the segment's
    return 0 if size == unknown else start + size


def _read_animation(data: bytes, limits: _Limits) -> Clip:
    if format_of(data) == "gif" and not _gif_is_whole(data):
        raise BadMediaError(f"{limits.name} is truncated: its end is missing")
    picture = open_picture(data, name=limits.name)
    frames: list[Bytes8] = []
    durations: list[int] = []
    for index in itertools.count():
        try:
            picture.seek(index)
        except EOFError:
            break
        limits.admit(*picture.size)
        frames.append(np.array(on_white(picture)))
        durations.append(int(picture.info.get("duration") or _DEFAULT_FRAME_MS))
    if not frames or min(durations) < 1:
        raise BadMediaError(f"{limits.name} is damaged: it has no frames that last")
    repeats = [max(1, round(duration / min(durations))) for duration in durations]
    limits.admit(*limits.size, times=sum(repeats) - len(repeats))
    return Clip(frames=np.repeat(np.stack(frames), repeats, axis=0), fps=1000 * sum(repeats) / sum(durations))


def _gif_is_whole(data: bytes) -> bool:
    """True when a GIF's blocks lead to its trailer (GIF89a, section 27).

    Pillow takes one that ends between two frames for a shorter clip.
    """

    def after_table(position: int, flags: int) -> int:
        return position + (3 << (flags & 7) + 1 if flags & 0x80 else 0)

    def after_sub_blocks(position: int) -> int:
        while data[position]:
            position += data[position] + 1
        return position + 1

    try:
        position = after_table(13, data[10])
        while data[position] != 0x3B:
            if data[position] == 0x21:
                position = after_sub_blocks(position + 2)
            elif data[position] == 0x2C:
                position = after_sub_blocks(after_table(position + 10, data[position + 9]) + 1)
            else:
                return False
    except IndexError:
        return False
    return True
