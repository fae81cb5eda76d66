"""Pictures: any common file to RGB pixels, and RGB pixels to PNG, JPEG and WebP.

Shapes: H height, W width, C channels (RGB).
"""

from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageCms
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngInfo

from petzval.errors import BadMediaError
from petzval.media.files import atomic_write, check_suffix
from petzval.media.record import KEY, SOFTWARE, Record, to_comment, to_text, to_xmp
from petzval.media.untrusted import PARSER_ERRORS, Source, load, name_of, open_picture, untrusted

ImageFormat = Literal["png", "jpeg", "webp"]
Pixels = npt.NDArray[Any]
"""uint8, or floats in [0, 1]."""
Bytes8 = npt.NDArray[np.uint8]

_FORMATS: dict[str, ImageFormat] = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}
_JPEG_COMMENT_BYTES = 65533
_ORIENTATION_TAG = 0x0112
# How to turn stored pixels upright, by the value of EXIF's Orientation (EXIF 2.3, section 4.6.4); 1 is upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Samples per pixel of the layouts that FFmpeg decodes a 16-bit PNG to.
_WIDE_LAYOUTS = {"gray16be": 1, "ya16be": 2, "rgb48be": 3, "rgba64be": 4}
_PROFILE_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}


# -- reading ----------------------------------------------------------------------------------------------------------


def read_image(source: Source, *, name: str = "image") -> Bytes8:
    """The pixels of a PNG, JPEG, WebP, GIF or BMP: uint8 HWC, RGB, sRGB, upright, on white.

    Of an animation, its first frame. `name` is what messages call a source of bytes. Raises BadMediaError when there is
    no such picture, when it is damaged or truncated, or when it has more pixels than MAX_PIXELS. Bytes after its end
    are ignored, and so is a damaged colour profile or EXIF block.
    """
    name = name_of(source, name=name)
    data = load(source, name=name)
    with untrusted(name):
        file = open_picture(data, name=name)
        orientation, profile = _orientation(file), file.info.get("icc_profile")
        picture = on_white(_to_srgb(_eight_bit(file, data), profile))
        if orientation in _UPRIGHT:
            picture = picture.transpose(_UPRIGHT[orientation])
        return np.array(picture)


def on_white(picture: Image.Image) -> Image.Image:
    """An RGB picture: what is transparent shows white."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    white = Image.new("RGB", picture.size, "white")
    white.paste(picture, mask=picture)
    return white


def _orientation(file: ImageFile) -> int:
    with suppress(*PARSER_ERRORS):
        return int(file.getexif().get(_ORIENTATION_TAG, 1))
    return 1


def _eight_bit(file: ImageFile, data: bytes) -> Image.Image:
    """The decoded picture with 8 bits a channel, in one of Pillow's modes L, LA, RGB, RGBA and CMYK."""
    file.load()
    if file.format == "PNG":
        depth, is_grey = data[24], data[25] == 0
        if depth == 16:
            return _sixteen_bit(data)
        if is_grey and depth < 8 and "transparency" in file.info:
            # Pillow stretches the samples to 8 bits, but not the one that means transparent.
            file.info["transparency"] = file.info["transparency"] * 255 // (2**depth - 1)
            return file.convert("L").convert("RGBA")
    if file.mode == "CMYK" and "adobe" not in file.info:
        # Pillow reads every CMYK JPEG as Adobe writes it, inverted; without Adobe's marker it is not.
        return ImageChops.invert(file)
    if file.has_transparency_data:
        return file.convert("RGBA")
    if file.mode in ("1", "L"):
        return file.convert("L")
    return file if file.mode == "CMYK" else file.convert("RGB")


def _sixteen_bit(data: bytes) -> Image.Image:
    """A 16-bit PNG, rounded to 8 bits. Pillow drops the low bytes of colours; FFmpeg keeps them."""
    with av.open(BytesIO(data), mode="r", format="png_pipe") as container:
        frame = next(container.decode(video=0))
        channels = _WIDE_LAYOUTS[frame.format.name]
        plane = np.frombuffer(memoryview(frame.planes[0]), dtype=">u2").reshape(frame.height, -1)
        samples = plane[:, : frame.width * channels].reshape(frame.height, frame.width, channels)
        # 65535 = 255 * 257, so that no sample falls halfway between two levels.
        levels = ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return Image.fromarray(levels[..., 0] if channels == 1 else levels)


def _to_srgb(picture: Image.Image, profile: bytes | None) -> Image.Image:
    """The picture in sRGB, its transparency kept. A profile that is damaged or of other channels is ignored."""
    alpha = picture.getchannel("A") if picture.mode in ("LA", "RGBA") else None
    colours = picture.convert(picture.mode.removesuffix("A")) if alpha else picture
    colours = (_through_profile(colours, profile) if profile else None) or colours.convert("RGB")
    if alpha:
        colours.putalpha(alpha)
    return colours


def _through_profile(colours: Image.Image, profile: bytes) -> Image.Image | None:
    """Pixels of mode L, RGB or CMYK taken from their profile to sRGB, or None when the profile does not say how."""
    with suppress(ImageCms.PyCMSError, *PARSER_ERRORS):
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        if (source.profile.profile_description or "").startswith("sRGB"):
            return None  # there already: rounding through floats would only move levels
        mode = _PROFILE_MODES[source.profile.xcolor_space]
        if colours.mode == "L" and mode == "RGB":
            colours = colours.convert("RGB")
        if colours.mode != mode:
            return None
        transform = ImageCms.buildTransform(source, _srgb(), mode, "RGB")
        return ImageCms.applyTransform(colours, transform)
    return None


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


# -- writing ----------------------------------------------------------------------------------------------------------


def to_uint8(pixels: Pixels, *, name: str = "pixels") -> Bytes8:
    """Pixels as uint8 of the same shape: uint8 as they are, floats in [0, 1] as round(255 * x), half to even.

    Raises BadMediaError for other types, for values that are not finite and for values outside [0, 1].
    """
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise BadMediaError(f"{name} must be uint8, or floats in [0, 1], got {pixels.dtype}")
    values = pixels.astype(np.float32)
    if not np.isfinite(values).all():
        raise BadMediaError(f"{name} has {np.count_nonzero(~np.isfinite(values))} values that are not finite")
    # The slack is what arithmetic in bfloat16 leaves; a picture in [-1, 1] is a mistake that must not pass.
    low, high = float(values.min(initial=0)), float(values.max(initial=1))
    if low < -0.01 or high > 1.01:
        raise BadMediaError(f"{name} must lie in [0, 1], got values from {low:.3g} to {high:.3g}")
    return (values.clip(0, 1) * 255).round().astype(np.uint8)


def encode_image(pixels: Pixels, *, format: ImageFormat, record: Record | None = None) -> bytes:
    """A picture file: lossless PNG, or JPEG or WebP at quality 95, with the record of how it was made.

    `pixels` are HWC: uint8, or floats in [0, 1]. Raises BadMediaError when they are not, or when the record
    is too long for the format.
    """
    _check_shape(pixels)
    picture = Image.fromarray(to_uint8(pixels))
    options: dict[str, Any]
    if format == "png":
        texts = PngInfo()
        texts.add_text("Software", SOFTWARE)
        if record is not None:
            texts.add_itxt(KEY, to_text(record))
        options = {"pnginfo": texts}
    elif format == "jpeg":
        options = {"quality": 95, "subsampling": 0, **_jpeg_comment(record)}
    else:
        options = {"quality": 95, "method": 4, **({} if record is None else {"xmp": to_xmp(record)})}
    buffer = BytesIO()
    try:
        picture.save(buffer, format=format, **options)
    except (OSError, ValueError) as error:  # more pixels on a side than the format can count
        raise BadMediaError(
            f"{picture.width}x{picture.height} pixels do not fit in a {format} file: {error}"
        ) from error
    return buffer.getvalue()


def write_image(pixels: Pixels, path: Path, *, record: Record | None = None) -> None:
    """Write a picture whole or not at all, in the format that the suffix names: .png, .jpg, .jpeg or .webp.

    `pixels` are HWC: uint8, or floats in [0, 1]. Raises as `encode_image` and `atomic_write`, and BadRequestError
    for another suffix.
    """
    format = _FORMATS[check_suffix(path, kind="image")]
    atomic_write(path, encode_image(pixels, format=format, record=record))


def _jpeg_comment(record: Record | None) -> dict[str, bytes]:
    if record is None:
        return {}
    comment = to_comment(record)
    if len(comment) > _JPEG_COMMENT_BYTES:
        raise BadMediaError(
            f"the record has {len(comment)} bytes, a JPEG holds at most {_JPEG_COMMENT_BYTES}; PNG and WebP hold any"
        )
    return {"comment": comment}


def _check_shape(pixels: Pixels) -> None:
    if pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise BadMediaError(f"pixels of a picture must have the shape (height, width, 3), got {pixels.shape}")
