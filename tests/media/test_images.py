"""Pictures in and out: every encoding of the same colours reads as the same pixels."""

import struct
import warnings
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from petzval.errors import BadMediaError, BadRequestError
from petzval.media.images import encode_image, read_image, to_uint8, write_image
from tests.media.craft import GREY, PNG_SIGNATURE, RGB, chunk, picture, png, png16, psnr

FLOORS = {"png": float("inf"), "jpeg": 38.0, "webp": 31.0}  # WebP halves the resolution of colour


def encoded(image: Image.Image, format: str, **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix, format", [(".png", "png"), (".jpg", "jpeg"), (".jpeg", "jpeg"), (".WebP", "webp")])
def test_what_is_written_reads_back(tmp_path, suffix, format):
    pixels = picture(96, 130)
    path = tmp_path / f"a{suffix}"
    write_image(pixels, path, record={"seed": 7})
    back = read_image(path)
    assert back.shape == pixels.shape and back.dtype == np.uint8
    assert psnr(back, pixels) >= FLOORS[format]
    assert Image.open(BytesIO(path.read_bytes())).format == format.upper()
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    format=st.sampled_from(["png", "jpeg", "webp"]),
    seed=st.integers(0, 9),
)
def test_any_size_reads_back(height, width, format, seed):
    pixels = np.broadcast_to(picture(1, 1, seed=seed), (height, width, 3)).copy()
    back = read_image(encode_image(pixels, format=format))
    assert back.shape == pixels.shape
    assert np.abs(back.astype(int) - pixels).max() <= (0 if format == "png" else 4)


def test_floats_become_the_nearest_level():
    levels = np.arange(256, dtype=np.float32).reshape(8, 32, 1).repeat(3, axis=2)
    for offset in (-0.49, 0.0, 0.49):
        values = ((levels + offset) / 255).clip(0, 1)
        np.testing.assert_array_equal(read_image(encode_image(values, format="png")), levels)
    halves = np.array([0.5, 1.5, 2.5], dtype=np.float32) / 255
    np.testing.assert_array_equal(to_uint8(halves), (halves * 255).round())
    assert to_uint8(np.array([-1e-3, 1 + 1e-3])).tolist() == [0, 255]


@pytest.mark.parametrize(
    "pixels, words",
    [
        (np.zeros((4, 4, 3), np.int64), "uint8"),
        (np.full((4, 4, 3), np.nan, np.float32), "48 values that are not finite"),
        (np.full((4, 4, 3), -1.0, np.float32), r"\[0, 1\], got values from -1"),
        (np.full((4, 4, 3), 255.0, np.float32), "to 255"),
        (np.zeros((4, 4), np.uint8), "height, width, 3"),
        (np.zeros((4, 4, 4), np.uint8), "height, width, 3"),
        (np.zeros((0, 4, 3), np.uint8), "height, width, 3"),
    ],
)
def test_pixels_that_are_no_picture_are_refused(tmp_path, pixels, words):
    with pytest.raises(BadMediaError, match=words):
        write_image(pixels, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_a_side_that_the_format_cannot_count_is_refused():
    with pytest.raises(BadMediaError, match="70000x1 pixels do not fit in a jpeg"):
        encode_image(np.zeros((1, 70000, 3), np.uint8), format="jpeg")


@pytest.mark.parametrize("name", ["a.gif", "a.mp4", "a.txt", "a"])
def test_another_suffix_is_refused(tmp_path, name):
    with pytest.raises(BadRequestError, match=r"\.png, \.jpg, \.jpeg or \.webp"):
        write_image(picture(4, 4), tmp_path / name)


def test_software_is_named():
    assert Image.open(BytesIO(encode_image(picture(4, 4), format="png"))).info["Software"] == "Petzval"


# -- colours ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sixteen_bits_are_rounded_not_cut(channels):
    samples = np.random.default_rng(channels).integers(0, 65536, size=(33, 21, channels))
    samples[:2, :3, 0] = [[0, 128, 129], [65535, 65407, 65406]]
    if channels in (2, 4):
        samples[..., -1] = 65535
    expected = np.round(samples / 257).astype(np.uint8)[..., : 1 if channels < 3 else 3]
    np.testing.assert_array_equal(read_image(png16(samples)), np.broadcast_to(expected, (33, 21, 3)))


def test_sixteen_bit_transparency():
    samples = np.array([[[60000, 100, 100, 0], [60000, 100, 100, 65535], [0, 0, 0, 32768]]])
    np.testing.assert_array_equal(read_image(png16(samples)), [[[255, 255, 255], [233, 0, 0], [127, 127, 127]]])
    # The low byte alone tells the transparent colour from the others.
    key = struct.pack(">HHH", 257, 514, 771)
    keyed = png16(np.array([[[257, 514, 771], [257, 514, 772]]]), before=(chunk(b"tRNS", key),))
    np.testing.assert_array_equal(read_image(keyed), [[[255, 255, 255], [1, 2, 3]]])


@pytest.mark.parametrize(
    "depth, row, levels",
    [(1, b"\x50", [0, 255, 0, 255]), (2, b"\x1b", [0, 85, 170, 255]), (4, b"\x05\xaf", [0, 85, 170, 255])],
)
def test_few_bits_are_stretched(depth, row, levels):
    plain = png([row], width=4, colour=GREY, depth=depth)
    np.testing.assert_array_equal(read_image(plain)[0, :, 0], levels)
    # The second pixel's sample, as stored, is declared transparent.
    sample = levels[1] * (2**depth - 1) // 255
    black_is_clear = png([row], width=4, colour=GREY, depth=depth, before=(chunk(b"tRNS", struct.pack(">H", 0)),))
    np.testing.assert_array_equal(
        read_image(black_is_clear)[0, :, 0], [255 if level == 0 else level for level in levels]
    )
    one_is_clear = png([row], width=4, colour=GREY, depth=depth, before=(chunk(b"tRNS", struct.pack(">H", sample)),))
    np.testing.assert_array_equal(
        read_image(one_is_clear)[0, :, 0], [255 if level == levels[1] else level for level in levels]
    )


def test_transparency_shows_white():
    rgba = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        rgba.putpixel((x, 0), (200, 0, 100, alpha))
    expected = [[[255, 255, 255], [227, 127, 177], [200, 0, 100]]]
    np.testing.assert_array_equal(read_image(encoded(rgba, "png")), expected)
    np.testing.assert_array_equal(read_image(encoded(rgba, "webp", lossless=True, exact=True)), expected)
    grey = Image.new("LA", (2, 1), (10, 0))
    grey.putpixel((1, 0), (10, 255))
    np.testing.assert_array_equal(read_image(encoded(grey, "png")), [[[255] * 3, [10] * 3]])


@pytest.mark.parametrize("format", ["png", "gif"])
def test_palettes_and_their_transparency(format):
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    for x in range(3):
        image.putpixel((x, 0), x)
    expected = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]])
    np.testing.assert_array_equal(read_image(encoded(image, format)), expected)
    expected[0, 1] = 255
    np.testing.assert_array_equal(read_image(encoded(image, format, transparency=1)), expected)


def test_palette_with_a_transparency_per_entry():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([255, 0, 0, 0, 0, 0])
    image.putpixel((1, 0), 1)
    half = encoded(image, "png", transparency=bytes([128, 255]))
    np.testing.assert_array_equal(read_image(half), [[[255, 127, 127], [0, 0, 0]]])


def test_transparent_colour_of_an_rgb_png():
    keyed = encoded(Image.fromarray(np.array([[[1, 2, 3], [1, 2, 4]]], np.uint8)), "png", transparency=(1, 2, 3))
    np.testing.assert_array_equal(read_image(keyed), [[[255, 255, 255], [1, 2, 4]]])


@pytest.mark.parametrize("format", ["png", "jpeg", "bmp", "gif", "webp"])
@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_every_format_reads(format, mode):
    image = Image.fromarray(picture(24, 40)).convert(mode)
    options = {"webp": {"lossless": True}, "jpeg": {"quality": 95, "subsampling": 0}}.get(format, {})
    back = read_image(encoded(image, format, **options))
    floor = {"jpeg": 33, "gif": 30 if mode == "RGB" else 99}.get(format, 99)
    assert psnr(back, np.array(image.convert("RGB"))) >= floor


def without_adobe(jpeg: bytes) -> bytes:
    """A JPEG without its Adobe marker (APP14), as other programs write CMYK."""
    start = jpeg.index(b"\xff\xee")
    length = int.from_bytes(jpeg[start + 2 : start + 4], "big")
    return jpeg[:start] + jpeg[start + 2 + length :]


def test_cmyk_jpegs_keep_their_colours():
    colours = {(0, 255, 255, 0): (255, 0, 0), (255, 0, 255, 0): (0, 255, 0), (0, 0, 0, 0): (255, 255, 255)}
    colours |= {(0, 0, 0, 255): (0, 0, 0), (0, 128, 255, 0): (255, 127, 0)}
    for cmyk, rgb in colours.items():
        adobe = encoded(Image.new("CMYK", (16, 16), cmyk), "jpeg", quality=98)
        assert np.abs(read_image(adobe).astype(int) - rgb).max() <= 3, cmyk
        # Pillow writes them inverted, as Adobe does; without the marker the same bytes mean the inverse.
        inverse = tuple(255 - ink for ink in cmyk)
        plain = without_adobe(encoded(Image.new("CMYK", (16, 16), inverse), "jpeg", quality=98))
        assert np.abs(read_image(plain).astype(int) - rgb).max() <= 3, cmyk


def gamma_profile(gamma: float, *, called: bytes = b"power") -> bytes:
    """A grey ICC profile with a pure power curve, of the fewest tags that a reader needs (ICC.1:2010, section 7)."""
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(called) + 1) + called + b"\0" * 79,
        b"wtpt": b"XYZ \0\0\0\0" + struct.pack(">iii", 63190, 65536, 54061),
        b"kTRC": b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0",
        b"cprt": b"text\0\0\0\0none\0\0\0\0",
    }
    table, body = struct.pack(">I", len(tags)), b""
    for tag, content in tags.items():
        content += b"\0" * (-len(content) % 4)
        table += tag + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(content))
        body += content
    header = bytearray(128)
    header[0:4] = struct.pack(">I", 128 + len(table) + len(body))
    header[8:12] = b"\x02\x10\0\0"
    header[12:24] = b"mntrGRAYXYZ "
    header[36:40] = b"acsp"
    header[68:80] = struct.pack(">iii", 63190, 65536, 54061)
    return bytes(header) + table + body


def test_a_colour_profile_is_applied():
    grey = Image.new("L", (4, 4), 128)
    linear = encoded(grey, "png", icc_profile=gamma_profile(1.0))
    # Half the light is level 188 of sRGB: 1.055 * 0.502 ** (1 / 2.4) - 0.055 = 0.737.
    assert np.abs(read_image(linear).astype(int) - 188).max() <= 1
    clear = Image.merge("LA", (grey, Image.new("L", (4, 4), 0)))
    assert read_image(encoded(clear, "png", icc_profile=gamma_profile(1.0))).min() == 255


def test_a_profile_that_does_not_fit_is_ignored():
    pixels = picture(16, 16)
    image = Image.fromarray(pixels)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for profile in (srgb, b"no profile at all", srgb[:200], gamma_profile(1.0)):
        np.testing.assert_array_equal(read_image(encoded(image, "png", icc_profile=profile)), pixels)
    grey = image.convert("L")
    same = encoded(grey, "png", icc_profile=gamma_profile(2.2, called=b"sRGB of some vendor"))
    np.testing.assert_array_equal(read_image(same)[..., 0], np.array(grey))
    back = read_image(encoded(grey, "png", icc_profile=srgb))
    np.testing.assert_array_equal(back[..., 0], np.array(grey))


# -- orientation ------------------------------------------------------------------------------------------------------

# Where the corners of the upright picture (red, green / blue, white) are stored, by EXIF's definition of each value:
# the side of the scene at which the first row and the first column lie.
R, G, B, W = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
STORED = {
    1: [[R, G], [B, W]],  # row: top, column: left
    2: [[G, R], [W, B]],  # top, right
    3: [[W, B], [G, R]],  # bottom, right
    4: [[B, W], [R, G]],  # bottom, left
    5: [[R, B], [G, W]],  # left, top
    6: [[G, W], [R, B]],  # right, top
    7: [[W, G], [B, R]],  # right, bottom
    8: [[B, R], [W, G]],  # left, bottom
}


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation(format, orientation):
    upright = np.kron(np.array(STORED[1]), np.ones((16, 24, 1))).astype(np.uint8)
    high, wide = (16, 24) if orientation < 5 else (24, 16)
    stored = np.kron(np.array(STORED[orientation]), np.ones((high, wide, 1))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"webp": {"lossless": True}, "jpeg": {"quality": 98, "subsampling": 0}}.get(format, {})
    back = read_image(encoded(Image.fromarray(stored), format, exif=exif, **options))
    assert back.shape == upright.shape
    assert np.abs(back.astype(int) - upright).max() <= (6 if format == "jpeg" else 0)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12"]
)
def test_damaged_exif_is_ignored(exif):
    pixels = picture(16, 16)
    back = read_image(encoded(Image.fromarray(pixels), "png", exif=exif))
    np.testing.assert_array_equal(back, pixels)


def test_unknown_orientation_is_upright():
    exif = Image.Exif()
    exif[0x0112] = 9
    pixels = picture(8, 12)
    np.testing.assert_array_equal(read_image(encoded(Image.fromarray(pixels), "png", exif=exif)), pixels)


# -- files that are not what they should be ---------------------------------------------------------------------------


def test_content_decides_not_the_name(tmp_path):
    path = tmp_path / "really_a_jpeg.png"
    path.write_bytes(encode_image(picture(16, 16), format="jpeg"))
    assert read_image(path).shape == (16, 16, 3)


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_bytes_after_the_end_are_ignored(format):
    data = encode_image(picture(16, 16), format=format)
    np.testing.assert_array_equal(read_image(data + b"and more" * 100), read_image(data))


def test_animations_give_their_first_frame():
    frames = [Image.fromarray(picture(16, 16, seed=seed)) for seed in range(3)]
    for format, options in (("gif", {}), ("webp", {"lossless": True}), ("png", {})):
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=50, **options)
        assert psnr(read_image(data), np.array(frames[0])) >= 30


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is empty"),
        (b"hello, world\n", "is a text file; a picture is PNG, JPEG, WebP, GIF or BMP"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC or AVIF picture"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "a MP4 file"),
        (b"II*\0\x08\0\0\0", "a TIFF file"),
        (bytes(range(128, 256)), "of an unknown format"),
        (PNG_SIGNATURE, "is damaged"),
        (b"\xff\xd8\xff", "is damaged"),
        (b"GIF89a", "is damaged"),
        (b"RIFF\0\0\0\0WEBP", "is damaged"),
        (b"BM", "is damaged"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path, content, words):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(BadMediaError, match=words) as from_file:
        read_image(path)
    assert str(path) in str(from_file.value) and "\n" not in str(from_file.value)
    with pytest.raises(BadMediaError, match=r"^reference image 2 is"):
        read_image(content, name="reference image 2")


def test_paths_that_are_no_file(tmp_path):
    with pytest.raises(BadMediaError, match="does not exist"):
        read_image(tmp_path / "none.png")
    with pytest.raises(BadMediaError, match="is not a file"):
        read_image(tmp_path)
    with pytest.raises(BadMediaError, match="cannot be read"):
        read_image(tmp_path / ("a" * 300))
    with pytest.raises(BadMediaError, match="is not a file"):
        read_image(Path("/dev/zero"))


def webp_header(width: int, height: int) -> bytes:
    body = b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    riff = b"WEBPVP8X" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(riff)) + riff


def webp_lossless_header(width: int, height: int) -> bytes:
    body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + b"\0" * 9
    riff = b"WEBPVP8L" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(riff)) + riff


def bombs() -> dict[str, bytes]:
    jpeg = bytearray(encode_image(picture(16, 16), format="jpeg"))
    start = jpeg.index(b"\xff\xc0")
    jpeg[start + 5 : start + 9] = struct.pack(">HH", 60000, 60000)
    gif = bytearray(encoded(Image.new("L", (4, 4)), "gif"))
    gif[6:10] = struct.pack("<HH", 60000, 60000)
    bmp = bytearray(encoded(Image.new("RGB", (4, 4)), "bmp"))
    bmp[18:26] = struct.pack("<ii", 60000, 60000)
    return {
        "png": png([b""], width=100_000, height=100_000, colour=RGB, depth=8),
        "png just over the limit": png([b""], width=7072, height=7072, colour=RGB, depth=8),
        "jpeg": bytes(jpeg),
        "gif": bytes(gif),
        "bmp": bytes(bmp),
        "webp": webp_header(16_000_000, 200),
        "lossless webp": webp_lossless_header(16383, 16383),
    }


@pytest.mark.parametrize("kind", bombs())
def test_too_many_pixels_are_refused_by_the_header(kind):
    with pytest.raises(BadMediaError, match=r"too large: .* at most 50 megapixels"):
        read_image(bombs()[kind])


def test_no_pixels_are_refused():
    with pytest.raises(BadMediaError, match=r"has no pixels|is damaged"):
        read_image(png([b""], width=0, height=5, colour=RGB, depth=8))
    bmp = bytearray(encoded(Image.new("RGB", (4, 4)), "bmp"))
    bmp[18:22] = struct.pack("<i", 0)
    with pytest.raises(BadMediaError, match=r"is damaged|has no pixels"):
        read_image(bytes(bmp))


def test_a_text_chunk_that_explodes_is_refused():
    bomb = chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 2_000_000))
    with pytest.raises(BadMediaError, match="is damaged"):
        read_image(png([b"\0" * 3], width=1, colour=RGB, depth=8, before=(bomb,)))


def test_a_changed_byte_in_a_png_is_found():
    data = bytearray(encode_image(picture(64, 64), format="png"))
    data[len(data) // 2] ^= 0x10
    with pytest.raises(BadMediaError, match="is damaged"):
        read_image(bytes(data))


def test_the_callers_warning_filters_survive():
    before = list(warnings.filters)
    read_image(encode_image(picture(4, 4), format="png"))
    assert warnings.filters == before
