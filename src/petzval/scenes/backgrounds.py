"""Drawn and plain backgrounds, each in a few variants."""

# Shapes: H height, W width, C channels (RGB).

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from petzval.errors import BadRequestError
from petzval.scenes.vocabulary import PLAIN_COLOURS

OVERSAMPLE = 4
"""Backgrounds are drawn this many times larger than a canvas of 128 and scaled down, so that edges are smooth."""
SIDE = 128 * OVERSAMPLE

DIM = 0.3
"""Share of the light that is gone at the right border: it falls from the left on every background. A picture's left is
then told from its right without words, as its top is from its bottom; a model that need not know where the middle is to
draw a background does not learn it from the few words for places either."""
DAWN = 8
"""Frames in which a clip's light becomes even. A clip's beginning is then told from its end, for the same reason."""

Colour = tuple[int, int, int]


@lru_cache(maxsize=1024)
def background_image(background: str, variant: int, canvas: int, *, frame: int = 0) -> NDArray[np.uint8]:
    """One background in the light of a clip's frame, uint8 sRGB, H W 3, read-only. From frame `DAWN` on they are equal.

    Raises `BadRequestError` for an impossible canvas.
    """
    if canvas < 16 or canvas % 16:
        nearest = max(16, round(canvas / 16) * 16)
        raise BadRequestError(f"canvas must be a positive multiple of 16, got {canvas}; nearest: {nearest}")
    if background in _PAINTERS:
        large = _PAINTERS[background](variant)
        image_HWC = np.array(large.resize((canvas, canvas), Image.Resampling.BOX))
    else:
        shade = (1.0, 0.94, 0.88)[variant]
        colour = np.array(PLAIN_COLOURS[background.removeprefix("plain ")]) * shade
        image_HWC = np.broadcast_to(colour.round().astype(np.uint8), (canvas, canvas, 3))
    dim = DIM * max(0.0, 1 - frame / DAWN)
    columns_W1 = (np.arange(canvas, dtype=np.float32)[:, None] + 0.5) / canvas
    image_HWC = (image_HWC * (1 - dim * columns_W1)).round().astype(np.uint8)
    image_HWC.setflags(write=False)
    return image_HWC


class _Canvas:
    """Draws in pixels of a 128-pixel square on the oversampled image."""

    def __init__(self, top: Colour, bottom: Colour) -> None:
        """Starts with a vertical gradient from `top` to `bottom`."""
        ramp_H11 = np.linspace(0, 1, SIDE, dtype=np.float32)[:, None, None]
        sky_HWC = np.array(top) * (1 - ramp_H11) + np.array(bottom) * ramp_H11
        self.image = Image.fromarray(np.broadcast_to(sky_HWC, (SIDE, SIDE, 3)).round().astype(np.uint8))
        self._draw = ImageDraw.Draw(self.image)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        corners = [value * OVERSAMPLE for value in (left, top, right, bottom)]
        self._draw.rectangle((corners[0], corners[1], corners[2] - 1, corners[3] - 1), fill=colour)

    def disc(self, x: float, y: float, radius: float, colour: Colour, *, flat: float = 1.0) -> None:
        """A disc, or an ellipse `flat` times as high as it is wide."""
        corners = (x - radius, y - radius * flat, x + radius, y + radius * flat)
        self._draw.ellipse([value * OVERSAMPLE for value in corners], fill=colour)

    def shape(self, points: list[tuple[float, float]], colour: Colour) -> None:
        self._draw.polygon([(x * OVERSAMPLE, y * OVERSAMPLE) for x, y in points], fill=colour)

    def cloud(self, x: float, y: float, colour: Colour = (255, 255, 255)) -> None:
        for step, radius in ((-9, 5), (0, 8), (9, 6)):
            self.disc(x + step, y, radius, colour, flat=0.6)


def _grass(variant: int) -> Image.Image:
    canvas = _Canvas((126, 196, 240), (196, 230, 250))
    canvas.cloud((24, 62, 100)[variant], 18)
    canvas.cloud((88, 112, 48)[variant], 30)
    canvas.disc((100, 30, 64)[variant], 84, 62, (118, 192, 92), flat=0.4)
    canvas.box(0, 80, 128, 128, (92, 172, 70))
    for row in range(4):
        for column in range(6):
            x, y = 22 * column + 11 * (row % 2) + 5 * variant, 88 + 11 * row
            canvas.shape([(x, y), (x + 3, y - 6), (x + 6, y)], (62, 140, 52))
    return canvas.image


def _beach(variant: int) -> Image.Image:
    canvas = _Canvas((110, 190, 240), (208, 236, 248))
    canvas.disc((104, 24, 64)[variant], 20, 11, (255, 226, 110))
    canvas.box(0, 56, 128, 84, (40, 138, 190))
    for row, y in enumerate((62, 68, 74)):
        for column in range(4):
            left = 34 * column + 15 * (row % 2) - 6 + 7 * variant
            canvas.box(left, y, left + 14, y + 1.5, (110, 190, 222))
    canvas.disc((30, 96, 64)[variant], 92, 80, (250, 250, 246), flat=0.16)
    canvas.disc((30, 96, 64)[variant], 95, 80, (240, 214, 158), flat=0.16)
    canvas.box(0, 92, 128, 128, (240, 214, 158))
    return canvas.image


def _night_sky(variant: int) -> Image.Image:
    canvas = _Canvas((10, 12, 44), (42, 44, 104))
    stars = np.random.default_rng(40 + variant)
    for _ in range(42):
        x, y = stars.uniform(2, 126, 2)
        canvas.disc(x, y, stars.choice((0.8, 1.2, 1.7)), (250, 246, 214))
    return canvas.image


def _mountains(variant: int) -> Image.Image:
    canvas = _Canvas((150, 186, 222), (236, 226, 214))
    shift = (0, 18, -18)[variant]
    for x, y, half in ((22, 40, 44), (106, 34, 48), (64, 24, 50)):
        peak = x + shift
        grey = (112, 116, 142) if half < 50 else (90, 94, 122)
        canvas.shape([(peak - half, 96), (peak, y), (peak + half, 96)], grey)
        cap = 16 / (96 - y) * half
        canvas.shape([(peak - cap, y + 16), (peak, y), (peak + cap, y + 16), (peak, y + 11)], (250, 250, 252))
    canvas.box(0, 94, 128, 128, (78, 98, 74))
    canvas.disc(20 - shift, 98, 50, (78, 98, 74), flat=0.2)
    return canvas.image


def _city_street(variant: int) -> Image.Image:
    canvas = _Canvas((236, 188, 150), (250, 222, 186))
    heights = np.roll((44, 22, 34, 14, 38, 26, 48), 2 * variant)
    for column, height in enumerate(heights):
        left = 19 * column - 2
        wall = ((150, 92, 80), (108, 106, 124), (176, 138, 106))[column % 3]
        canvas.box(left, height, left + 18, 96, wall)
        for row in range((94 - int(height)) // 12):
            top = height + 5 + 12 * row
            for window in (left + 3, left + 11):
                canvas.box(window, top, window + 5, top + 6, (250, 232, 150))
    canvas.box(0, 94, 128, 102, (176, 174, 172))
    canvas.box(0, 102, 128, 128, (70, 70, 78))
    for dash in range(5):
        left = 30 * dash - 6 + 10 * variant
        canvas.box(left, 113, left + 16, 116, (240, 236, 220))
    return canvas.image


def _snow(variant: int) -> Image.Image:
    canvas = _Canvas((168, 190, 212), (214, 226, 238))
    canvas.disc((98, 26, 64)[variant], 92, 70, (228, 236, 246), flat=0.35)
    canvas.disc((20, 108, 0)[variant], 98, 70, (240, 245, 250), flat=0.3)
    canvas.box(0, 94, 128, 128, (248, 250, 253))
    for x in ((14, 112), (8, 60), (46, 118))[variant]:
        for step in range(3):
            width = 6 + 3 * step
            top = 56 + 9 * step
            canvas.shape([(x - width, top + 14), (x, top), (x + width, top + 14)], (60, 104, 92))
    flakes = np.random.default_rng(70 + variant)
    for _ in range(34):
        x, y = flakes.uniform(2, 126, 2)
        canvas.disc(x, y, 1.6, (255, 255, 255))
    return canvas.image


_PAINTERS: Final[dict[str, Callable[[int], Image.Image]]] = {
    "grass": _grass,
    "beach": _beach,
    "night sky": _night_sky,
    "mountains": _mountains,
    "city street": _city_street,
    "snow": _snow,
}
