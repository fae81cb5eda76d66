"""Test pictures and clips, and files made by hand as no library would make them."""

import struct
import zlib

import numpy as np

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB, GREY_ALPHA, RGBA = 0, 2, 4, 6


def picture(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """A smooth colourful picture with a hard-edged square in it: uint8 HWC."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    phase = np.random.default_rng(seed).uniform(0, 6, size=3)
    waves = np.stack([np.sin(5 * x + phase[0]), np.sin(4 * y + phase[1]), np.sin(3 * (x + y) + phase[2])], axis=-1)
    pixels = np.round((waves + 1) * 127.5).astype(np.uint8)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = (250, 200, 20)
    return pixels


def clip(num_frames: int, height: int, width: int) -> np.ndarray:
    """A picture that slides to the right, one pixel a frame: uint8 THWC."""
    first = picture(height, width)
    return np.stack([np.roll(first, shift, axis=1) for shift in range(num_frames)])


def psnr(left: np.ndarray, right: np.ndarray) -> float:
    error = np.mean((left.astype(np.float64) - right.astype(np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    rows: list[bytes], *, width: int, colour: int, depth: int, before: tuple[bytes, ...] = (), height: int = 0
) -> bytes:
    """A PNG of unfiltered rows of packed samples; `before` are chunks ahead of the pixels."""
    header = struct.pack(">IIBBBBB", width, height or len(rows), depth, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"".join((PNG_SIGNATURE, chunk(b"IHDR", header), *before, chunk(b"IDAT", body), chunk(b"IEND", b"")))


def png16(samples_HWC: np.ndarray, *, before: tuple[bytes, ...] = ()) -> bytes:
    """A 16-bit PNG of 1 to 4 channels."""
    colour = {1: GREY, 2: GREY_ALPHA, 3: RGB, 4: RGBA}[samples_HWC.shape[2]]
    rows = [row.astype(">u2").tobytes() for row in samples_HWC]
    return png(rows, width=samples_HWC.shape[1], colour=colour, depth=16, before=before)


def boxes(data: bytes) -> dict[str, tuple[int, int]]:
    """Start and end of each outermost box of an MP4."""
    found, start = {}, 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        found[data[start + 4 : start + 8].decode()] = (start, start + size)
        start += size
    return found
