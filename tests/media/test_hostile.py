"""Damaged files of every format: whatever is cut off or changed, only BadMediaError comes out, in one line."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from petzval.errors import BadMediaError
from petzval.media.images import encode_image, read_image
from petzval.media.record import read_record
from petzval.media.videos import read_video, write_video
from tests.media.craft import clip, picture, png16
from tests.media.test_videos import film

RECORD = {"prompt": "a fox", "seed": 7}
CASES = 30


def seeds(folder) -> dict[str, bytes]:
    """A small valid file of every kind that is read."""
    image = Image.fromarray(picture(24, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {
        f"{format} image": encode_image(picture(24, 20), format=format, record=RECORD)
        for format in ("png", "jpeg", "webp")
    }
    for format, options in (
        ("bmp", {}),
        ("gif", {"transparency": 3}),
        ("jpeg", {"exif": exif, "progressive": True}),
        ("webp", {"exif": exif, "lossless": True}),
        ("png", {"exif": exif}),
    ):
        buffer = BytesIO()
        image.save(buffer, format, **options)
        found[f"{format} of Pillow"] = buffer.getvalue()
    buffer = BytesIO()
    image.convert("CMYK").save(buffer, "jpeg")
    found["CMYK"] = buffer.getvalue()
    buffer = BytesIO()
    image.save(buffer, "png", save_all=True, append_images=[Image.fromarray(picture(24, 20, seed=1))])
    found["APNG"] = buffer.getvalue()
    found["16 bits"] = png16(np.random.default_rng(0).integers(0, 65536, size=(6, 5, 3)))
    for suffix in (".mp4", ".gif", ".webp"):
        write_video(clip(3, 16, 16), folder / f"a{suffix}", fps=8, record=RECORD)
        found[f"{suffix} clip"] = (folder / f"a{suffix}").read_bytes()
    found["webm clip"] = film(clip(3, 16, 16), format="webm", codec="libvpx-vp9")
    return found


def damaged(data: bytes, generator: np.random.Generator) -> bytes:
    """Cut off, changed in a few places (often near the start, where the structure is), or with a piece taken out."""
    kind = generator.integers(4)
    if kind == 0:
        return data[: generator.integers(1, len(data))]
    changed = bytearray(data)
    if kind == 3:
        start = int(generator.integers(len(data)))
        del changed[start : start + int(generator.integers(1, 40))]
        return bytes(changed) or b"\0"
    for _ in range(generator.integers(1, 4)):
        end = len(data) if kind == 1 else min(len(data), 120)
        changed[generator.integers(8, end)] = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.integers(256)])
    return bytes(changed)


def outcome(read, data: bytes) -> bool:
    """True when it was read. Any error but BadMediaError fails the test, a warning included."""
    try:
        read(data)
    except BadMediaError as error:
        assert "\n" not in str(error) and "object at 0x" not in str(error)
        return False
    return True


def test_damage(tmp_path):
    generator = np.random.default_rng(0)
    refused = read = 0
    for data in seeds(tmp_path).values():
        for _ in range(CASES):
            bad = damaged(data, generator)
            for reader in (read_image, read_video, read_record):
                if outcome(reader, bad):
                    read += 1
                else:
                    refused += 1
    assert read > 0 and refused > 0  # some damage is harmless; if none were, or all, the test would prove nothing


def test_the_undamaged_files_read(tmp_path):
    for kind, data in seeds(tmp_path).items():
        assert outcome(read_video if "clip" in kind else read_image, data), kind


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_every_shorter_file_is_refused(format):
    """But for the marks at the end, after the pixels: JPEG's two bytes, and the checksum of PNG's last chunk."""
    data = encode_image(picture(12, 12), format=format)
    last = len(data) - {"png": 4, "jpeg": 2, "webp": 0}[format]
    for length in range(1, last):
        with pytest.raises(BadMediaError):
            read_image(data[:length])
