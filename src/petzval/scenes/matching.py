"""Finds sprites in a picture: how much better a subject at a place explains the pixels than the background does."""

# Shapes: T frames, H height, W width, C channels (RGB), V variants, M sprites, Q planes, P padded side, F its half
# spectrum, PF the two as one axis.

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from petzval.scenes.backgrounds import DAWN, background_image
from petzval.scenes.draw import CANVAS
from petzval.scenes.sprites import sprite
from petzval.scenes.vocabulary import BACKGROUNDS, NUM_VARIANTS, SUBJECTS

SIDE = CANVAS // 2
"""Matching is done at half resolution: generated pictures hold no finer detail."""
PADDED = 80
"""Side of the transforms: room for sprites that lie partly outside."""
BLUR = 1.0
"""Standard deviation, in half-resolution pixels, of the blur of pictures, sprites and backgrounds alike. Without it
a soft picture would match flat sprites better than the detailed ones it shows."""
BORDER = 8
"""Half-resolution pixels from the border within which no sprite's centre is looked for."""
NUM_PLANES = 9
"""Pairs of planes whose correlations add up to the gain."""
COARSE_PIXELS = (44, 56, 72)
"""Sides at which every subject is tried, at quarter resolution, to find those worth a closer look."""
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
    return _soften(_halve(frame_HWC))


def background_errors(picture_HWC: Array, *, frame: int) -> Array:
    """Each background's mean squared error over the pixels that fit it best, those which no subject hides.

    In the order of `BACKGROUNDS`; the drawing that fits best counts.
    """
    drawings_VHWC = _all_drawings(min(frame, DAWN))
    errors = np.square(_halve(picture_HWC) - drawings_VHWC).sum(-1).reshape(len(drawings_VHWC), -1)
    count = int(KEPT * errors.shape[1])
    kept = np.partition(errors, count, axis=1)[:, :count].mean(1)
    return np.asarray(kept.reshape(len(BACKGROUNDS), NUM_VARIANTS).min(1))


def settled_background(picture_HWC: Array, background: str, *, frame: int) -> Array:
    """The background behind a picture, H W 3: pixel by pixel the nearest of its drawings, since a generated picture
    may mix them, all colours then moved to the picture's."""
    drawings_VHWC = _drawings(background, min(frame, DAWN))
    errors_VHW = np.square(picture_HWC - drawings_VHWC).sum(-1)
    nearest_HW = errors_VHW.argmin(0)
    chosen_HWC = np.take_along_axis(drawings_VHWC, nearest_HW[None, ..., None], 0)[0]
    least_HW = errors_VHW.min(0)
    visible_HW = least_HW <= np.quantile(least_HW, KEPT)
    drift_C = np.median((picture_HWC - chosen_HWC)[visible_HW], axis=0)
    return np.asarray(chosen_HWC + drift_C, np.float32)


def rank_subjects(pictures: Sequence[Array], backgrounds: Sequence[Array]) -> list[str]:
    """All subjects, the likeliest first: by their gains (`Matcher.match`) at quarter resolution, summed up."""
    planes = [_picture_planes(_halve(p), _halve(b)) for p, b in zip(pictures, backgrounds, strict=True)]
    spectra_TQPF = scipy.fft.rfft2(np.stack(planes), (PADDED // 2, PADDED // 2))
    num_frames, half_spectrum = len(planes), spectra_TQPF.shape[2:]
    # One matrix product a frequency: of all sprites' planes with all frames' planes.
    products = _coarse_templates() @ spectra_TQPF.reshape(num_frames, NUM_PLANES, -1).transpose(2, 1, 0)
    gains = scipy.fft.irfft2(products.reshape(*half_spectrum, -1), (PADDED // 2, PADDED // 2), axes=(0, 1))
    window = slice(BORDER // 2, (SIDE - BORDER) // 2 + 1)
    best = gains[window, window].max((0, 1)).reshape(len(SUBJECTS), len(COARSE_PIXELS), num_frames)
    order = np.argsort(-best.max(1).sum(-1), kind="stable")
    return [SUBJECTS[index] for index in order]


class Matcher:
    """One picture, ready to be compared with any sprite at any place."""

    def __init__(self, picture_HWC: Array, background_HWC: Array) -> None:
        """Both at the resolution of matching; `background_HWC` is what the picture would be without its subject."""
        self._error_HW = np.square(picture_HWC - background_HWC).sum(-1)
        self._spectra_QPF = scipy.fft.rfft2(_picture_planes(picture_HWC, background_HWC), (PADDED, PADDED))

    def match(self, subject: str, pixels: int) -> Match:
        """Where the sprite, `pixels` a side on a canvas of 128, explains the picture best.

        With I the picture, B the background, S the sprite's colour and a its coverage, the gain of a place is
        |I - B|^2 - |I - aS - (1 - a)B|^2 = 2 (I - B).(aS - aB) - |aS - aB|^2, summed over the picture: correlations
        of planes made of I and B with planes made of a and S, all in one inverse transform.
        """
        gains = scipy.fft.irfft2((self._spectra_QPF * _template(subject, pixels)).sum(0), (PADDED, PADDED))
        window = gains[BORDER : SIDE - BORDER + 1, BORDER : SIDE - BORDER + 1]
        row, column = (BORDER + int(index) for index in np.unravel_index(window.argmax(), window.shape))
        gain, under = float(gains[row, column]), self._under(pixels, row, column)
        return Match(gain, gain / under, 2.0 * column, 2.0 * row, pixels)

    def _under(self, pixels: int, row: int, column: int) -> float:
        """The background's squared error in the sprite's square."""
        reach = pixels // 4
        rows, columns = (slice(max(0, middle - reach), middle + reach) for middle in (row, column))
        return float(self._error_HW[rows, columns].sum()) + 1e-3


def _picture_planes(picture_HWC: Array, background_HWC: Array) -> Array:
    """What the gain takes of the picture, Q H W: 2 (I - B), -2 (I - B).B, 2 B, -|B|^2 and -1."""
    picture_CHW, background_CHW = (np.moveaxis(image, -1, 0) for image in (picture_HWC, background_HWC))
    extra_CHW = picture_CHW - background_CHW
    flat = (-2 * (extra_CHW * background_CHW).sum(0), -np.square(background_CHW).sum(0))
    planes = [*(2 * extra_CHW), flat[0], *(2 * background_CHW), flat[1], np.full_like(flat[0], -1)]
    return np.stack(planes)


def _sprite_planes(sprite_HWC: Array) -> Array:
    """What the gain takes of a sprite (its colour times coverage, and coverage), Q H W: aS, a, a aS, a a, |aS|^2."""
    colour_CHW, coverage_HW = np.moveaxis(sprite_HWC[..., :3], -1, 0), sprite_HWC[..., 3]
    return np.stack(
        [*colour_CHW, coverage_HW, *(coverage_HW * colour_CHW), coverage_HW**2, np.square(colour_CHW).sum(0)]
    )


@lru_cache(maxsize=400)  # a quarter of a megabyte each
def _template(subject: str, pixels: int) -> NDArray[np.complex64]:
    """Conjugate spectra of a sprite's planes, Q P F."""
    return _conjugate_spectra(_padded_sprite(subject, pixels))


@lru_cache(maxsize=1)
def _coarse_templates() -> NDArray[np.complex64]:
    """Conjugate spectra of all subjects at all coarse sides, at quarter resolution, PF M Q."""
    pairs = [(subject, pixels) for subject in SUBJECTS for pixels in COARSE_PIXELS]
    bank = np.stack([_conjugate_spectra(_halve(_padded_sprite(subject, pixels))) for subject, pixels in pairs])
    return np.ascontiguousarray(bank.reshape(*bank.shape[:2], -1).transpose(2, 0, 1))


def _conjugate_spectra(padded_HWC: Array) -> NDArray[np.complex64]:
    """The sprite's centre moves to the first pixel, so that a peak of a correlation lies where the centre is."""
    planes = np.roll(_sprite_planes(padded_HWC), -(padded_HWC.shape[0] // 2), (1, 2))
    return np.asarray(np.conj(scipy.fft.rfft2(planes)), np.complex64)


def _padded_sprite(subject: str, pixels: int) -> Array:
    """Colour times coverage, and coverage, at the resolution of matching, amid a square of `PADDED` a side."""
    picture = sprite(subject, pixels)
    margin = (2 * PADDED - pixels) // 2
    whole_HWC = np.concatenate((np.maximum(picture.colour_HWC - np.float32(0.5), 0), 1 - picture.clear_HWC), -1)
    return _soften(_halve(np.pad(whole_HWC, ((margin, margin), (margin, margin), (0, 0)))))


@lru_cache(maxsize=len(BACKGROUNDS) * (DAWN + 1))
def _drawings(background: str, frame: int) -> Array:
    variants = range(NUM_VARIANTS)
    return np.stack([shrink(background_image(background, variant, CANVAS, frame=frame)) for variant in variants])


@lru_cache(maxsize=DAWN + 1)
def _all_drawings(frame: int) -> Array:
    """All backgrounds' drawings at quarter resolution, background by background."""
    return np.stack([_halve(drawing) for background in BACKGROUNDS for drawing in _drawings(background, frame)])


def _soften(image_HWC: Array) -> Array:
    return np.asarray(gaussian_filter(image_HWC, (BLUR, BLUR, 0), mode="nearest"), np.float32)


def _halve(image_HWC: NDArray[np.uint8] | Array) -> Array:
    """Means of two by two pixels, float32."""
    wide = image_HWC.astype(np.float32)
    rows = wide[::2] + wide[1::2]
    return np.asarray((rows[:, ::2] + rows[:, 1::2]) / 4, np.float32)
