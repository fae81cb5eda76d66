"""Finds sprites in a picture: how much better a subject at a place explains the pixels than the background does."""

# Shapes: H height, W width, C channels (RGB), V variants, P padded side, F its half spectrum.

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from petzval.scenes.backgrounds import background_image
from petzval.scenes.draw import CANVAS
from petzval.scenes.sprites import sprite
from petzval.scenes.vocabulary import BACKGROUNDS, NUM_VARIANTS

SIDE = CANVAS // 2
"""Matching is done at half resolution: generated pictures hold no finer detail."""
PADDED = 80
"""Side of the transforms: room for sprites that lie partly outside."""
BLUR = 1.0
"""Standard deviation, in half-resolution pixels, of the blur of pictures, sprites and backgrounds alike. Without it
a soft picture would match flat sprites better than the detailed ones it shows."""
CENTRES = range(8, SIDE - 8 + 1)
"""Where a sprite's centre may be, in half-resolution pixels."""
KEPT = 0.6
"""Share of the pixels that fit a background best and decide about it: a large subject hides up to a third."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Match:
    """The best place of one subject at one size in one picture."""

    gain: float
    """Squared error of the background less that of the sprite over it; negative: no such sprite."""
    fit: float
    """The gain over the background's squared error under the sprite: 1 when the sprite explains all of it."""
    x: float
    """Centre, in pixels of a canvas of 128."""
    y: float
    pixels: int


def shrink(frame_HWC: NDArray[np.uint8]) -> Array:
    """A picture on a canvas of 128 at the resolution of matching, float32 0 to 255, H W 3 with H = W = 64."""
    halved = frame_HWC.reshape(SIDE, 2, SIDE, 2, 3).mean((1, 3), dtype=np.float32)
    return _soften(halved)


def background_errors(picture_HWC: Array) -> dict[str, Array]:
    """Each background's squared error per pixel, H W, of the drawing that fits best after a shift of all colours."""
    best: dict[str, Array] = {}
    for background in BACKGROUNDS:
        errors_VHW = np.square(picture_HWC - _drawings(background)).sum(-1)
        best[background] = errors_VHW[np.argmin([fit_error(error_HW) for error_HW in errors_VHW])]
    return best


def fit_error(error_HW: Array) -> float:
    """Mean squared error over the pixels that fit best: those which no subject hides."""
    flat = error_HW.reshape(-1)
    count = int(KEPT * flat.size)
    return float(np.partition(flat, count)[:count].mean())


def settled_background(picture_HWC: Array, background: str) -> Array:
    """The background behind a picture, H W 3: pixel by pixel the nearest of its drawings, since a generated picture
    may mix them, all colours then moved to the picture's."""
    drawings_VHWC = _drawings(background)
    errors_VHW = np.square(picture_HWC - drawings_VHWC).sum(-1)
    nearest_HW = errors_VHW.argmin(0)
    chosen_HWC = np.take_along_axis(drawings_VHWC, nearest_HW[None, ..., None], 0)[0]
    least_HW = errors_VHW.min(0)
    visible_HW = least_HW <= np.quantile(least_HW, KEPT)
    drift_C = np.median((picture_HWC - chosen_HWC)[visible_HW], axis=0)
    return np.asarray(chosen_HWC + drift_C, np.float32)


class Matcher:
    """One picture, ready to be compared with any sprite at any place."""

    def __init__(self, picture_HWC: Array, background_HWC: Array) -> None:
        """Both at the resolution of matching; `background_HWC` is what the picture would be without its subject."""
        extra_HWC = picture_HWC - background_HWC
        self._error_HW = np.square(extra_HWC).sum(-1)
        planes = np.empty((9, SIDE, SIDE), np.float32)
        planes[:3] = 2 * np.moveaxis(extra_HWC, -1, 0)
        planes[3] = -2 * (extra_HWC * background_HWC).sum(-1)
        planes[4:7] = 2 * np.moveaxis(background_HWC, -1, 0)
        planes[7] = -np.square(background_HWC).sum(-1)
        planes[8] = -1
        self._spectra = scipy.fft.rfft2(planes, (PADDED, PADDED))

    def match(self, subject: str, pixels: int) -> Match:
        """Where the sprite, `pixels` a side on a canvas of 128, explains the picture best.

        With I the picture, B the background, S the sprite's colour and a its coverage, the gain of a place is
        |I - B|^2 - |I - aS - (1 - a)B|^2 = 2 (I - B).(aS - aB) - |aS - aB|^2, summed over the picture: correlations
        of planes made of I and B with planes made of a and S, all in one inverse transform.
        """
        gains = scipy.fft.irfft2((self._spectra * _template(subject, pixels)).sum(0), (PADDED, PADDED))
        window = gains[CENTRES.start : CENTRES.stop, CENTRES.start : CENTRES.stop]
        row, column = (int(index) for index in np.unravel_index(window.argmax(), window.shape))
        row, column = row + CENTRES.start, column + CENTRES.start
        gain, under = float(gains[row, column]), self._under(pixels, row, column)
        return Match(gain, gain / under, 2.0 * column, 2.0 * row, pixels)

    def _under(self, pixels: int, row: int, column: int) -> float:
        """The background's squared error in the sprite's square."""
        reach = pixels // 4
        rows, columns = (slice(max(0, middle - reach), middle + reach) for middle in (row, column))
        return float(self._error_HW[rows, columns].sum()) + 1e-3


@lru_cache(maxsize=320)
def _template(subject: str, pixels: int) -> NDArray[np.complex64]:
    """Conjugate spectra, 9 P F, of aS (three colours), a, a aS (three colours), a a, |aS|^2."""
    picture = sprite(subject, pixels)
    margin = (2 * PADDED - pixels) // 2
    pad = ((margin, margin), (margin, margin), (0, 0))
    coverage_HW1 = np.pad(1 - picture.clear_HWC, pad)
    colour_HWC = np.pad(np.maximum(picture.colour_HWC - 0.5, 0), pad)
    halved_HWC = np.concatenate((colour_HWC, coverage_HW1), -1).reshape(PADDED, 2, PADDED, 2, 4).mean((1, 3))
    soft_HWC = _soften(halved_HWC)
    colour_CHW, coverage_HW = np.moveaxis(soft_HWC[..., :3], -1, 0), soft_HWC[..., 3]
    planes = [*colour_CHW, coverage_HW, *(coverage_HW * colour_CHW), coverage_HW**2, np.square(colour_CHW).sum(0)]
    # The sprite's centre moves to the first pixel, so that a peak lies where the centre is.
    centred = np.roll(np.stack(planes), -(PADDED // 2), (1, 2))
    return np.asarray(np.conj(scipy.fft.rfft2(centred)), np.complex64)


@lru_cache(maxsize=64)
def _drawings(background: str) -> Array:
    return np.stack([shrink(background_image(background, variant, CANVAS)) for variant in range(NUM_VARIANTS)])


def _soften(image_HWC: Array) -> Array:
    return np.asarray(gaussian_filter(image_HWC, (BLUR, BLUR, 0), mode="nearest"), np.float32)
