"""Subjects' sprites: emoji bitmaps of the Noto Color Emoji font, cropped to what is drawn and scaled."""

# Shapes: H height, W width, C channels (RGB).

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from petzval.env import emoji_font
from petzval.errors import UnavailableError
from petzval.scenes.vocabulary import SUBJECT_GLYPHS

DEBIAN_FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
STRIKE = 109
"""The only size, in pixels per em, at which the font's bitmaps exist."""


@dataclass(frozen=True)
class Sprite:
    """A subject ready to be laid over a background: frame = colour + clear x background."""

    colour_HWC: NDArray[np.float32]
    """Colour times coverage, plus one half so that truncation to integers rounds."""
    clear_HWC: NDArray[np.float32]
    """One minus coverage, H W 1."""


@lru_cache(maxsize=4096)
def sprite(subject: str, pixels: int) -> Sprite:
    """The subject in a square of `pixels` a side, its longer side touching the border.

    Raises `UnavailableError` when the font is not installed.
    """
    # Premultiplied while scaling: else the invisible pixels' colours bleed into the outline.
    scaled = _glyph(SUBJECT_GLYPHS[subject]).convert("RGBa").resize((pixels, pixels), Image.Resampling.LANCZOS)
    rgba_HWC = np.asarray(scaled, np.float32)
    clear_HWC = np.float32(1) - rgba_HWC[..., 3:] / np.float32(255)
    colour_HWC = np.minimum(rgba_HWC[..., :3], rgba_HWC[..., 3:]) + np.float32(0.5)
    colour_HWC.setflags(write=False)
    clear_HWC.setflags(write=False)
    return Sprite(colour_HWC, clear_HWC)


def load_font() -> ImageFont.FreeTypeFont:
    """The emoji font at its bitmap size; `UnavailableError` names the package when it is absent or unusable."""
    path = emoji_font() or DEBIAN_FONT
    try:
        return ImageFont.truetype(path, STRIKE, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise UnavailableError(
            f"no usable colour emoji font at {path} ({error}): apt-get install fonts-noto-color-emoji, "
            "or set PETZVAL_EMOJI_FONT to a NotoColorEmoji.ttf with bitmaps"
        ) from error


@lru_cache(maxsize=256)
def _glyph(character: str) -> Image.Image:
    """The character's bitmap, centred in the smallest square that holds it, RGBA."""
    image = Image.new("RGBA", (160, 160))
    ImageDraw.Draw(image).text((8, 8), character, font=load_font(), embedded_color=True)
    cropped = image.crop(image.getbbox())
    side = max(cropped.size)
    square = Image.new("RGBA", (side, side))
    square.paste(cropped, ((side - cropped.width) // 2, (side - cropped.height) // 2))
    return square
