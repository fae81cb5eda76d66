"""Reads a picture or clip back: which subject, background, size, position and motion it shows."""

# Shapes: T frames, H height, W width, C channels (RGB).

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from petzval.errors import BadRequestError
from petzval.scenes.draw import CANVAS, SIZE_PIXELS, START_X, Scene
from petzval.scenes.matching import (
    Array,
    Match,
    Matcher,
    background_errors,
    rank_subjects,
    settled_background,
    shrink,
)
from petzval.scenes.tracks import read_motion
from petzval.scenes.vocabulary import BACKGROUNDS

FINE_PIXELS: Final = (36, 40, 44, 48, 56, 64, 72, 76)
"""Sides at which the `FINALISTS` best subjects are measured."""
FINALISTS = 4
SEEN_FIT = 0.2
"""From this share of the background's error explained, something is there: it has a place, a size and a motion."""
NAMED_FIT = 0.45
"""From this share, it is the subject that explains it; an edge that moved by 4 pixels reaches 0.43."""
LEAST_CONTRAST = 40.0
"""Nor under this squared error explained per half-resolution pixel of the sprite's square (about 4 levels a colour)."""


@dataclass(frozen=True)
class Verdict:
    """What the judge reads.

    `size`, `position` and `motion` are None where nothing stands before the background, `motion` also for a single
    frame; `subject` also where what stands there is like no subject. `position` and `size` are those of the first
    frame that shows something.
    """

    subject: str | None
    background: str
    size: str | None
    position: str | None
    motion: str | None
    confidence: float
    """How much of what the background leaves open the subject explains where it is seen, 0 to 1, mean over frames."""
    margin: float
    """How much worse the second-best subject explains it, 0 to 1."""
    track: tuple[Match, ...]
    """Where the best subject is in each frame, whether it convinces or not."""


def judge(frames_THWC: NDArray[np.uint8]) -> Verdict:
    """Reads uint8 sRGB frames, T H W 3, square, of any side.

    The background is the one that fits best where it is best seen; the subject is the sprite whose composition over
    that background explains the most squared error, summed over the frames, at its best place and size in each.
    Raises `BadRequestError` for other arrays and `UnavailableError` without the emoji font.
    """
    pictures = [shrink(frame_HWC) for frame_HWC in _on_canvas(frames_THWC)]
    background = _read_background(pictures)
    behind = [settled_background(picture, background, frame=frame) for frame, picture in enumerate(pictures)]
    finalists = rank_subjects(pictures, behind)[:FINALISTS]
    matchers = [Matcher(picture, blank) for picture, blank in zip(pictures, behind, strict=True)]
    fine = {subject: _track(matchers, subject) for subject in finalists}
    subject, second = sorted(finalists, key=lambda name: -_total_gain(fine[name]))[:2]
    track = fine[subject]
    seen = [_convinces(match) for match in track]
    gain, second_gain = _total_gain(track), _total_gain(fine[second])
    confidence = float(np.mean([max(0.0, match.fit) for match in track]))
    if sum(seen) * 2 < len(track):
        return Verdict(None, background, None, None, None, confidence, 0.0, tuple(track))
    first = track[seen.index(True)]
    return Verdict(
        subject=subject if confidence >= NAMED_FIT else None,
        background=background,
        size=_nearest(SIZE_PIXELS, first.pixels),
        position=_nearest(START_X, first.x),
        motion=read_motion(track, seen) if len(track) > 1 else None,
        confidence=confidence,
        margin=1 - max(0.0, second_gain) / gain,
        track=tuple(track),
    )


def score(scene: Scene, states: Set[str], verdict: Verdict) -> dict[str, bool]:
    """Whether each stated attribute is read as `scene` has it; attributes that the caption leaves free are absent."""
    return {name: getattr(verdict, name) == getattr(scene, name) for name in sorted(states)}


def _on_canvas(frames_THWC: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    shape = frames_THWC.shape
    if frames_THWC.dtype != np.uint8 or len(shape) != 4 or shape[0] < 1 or shape[1] != shape[2] or shape[3] != 3:
        raise BadRequestError(
            f"frames must be uint8 of shape T x side x side x 3, got {frames_THWC.dtype} of {'x'.join(map(str, shape))}"
        )
    if shape[1] == CANVAS:
        return list(frames_THWC)
    size = (CANVAS, CANVAS)
    return [np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS)) for frame in frames_THWC]


def _read_background(pictures: Sequence[Array]) -> str:
    errors = sum(background_errors(picture, frame=frame) for frame, picture in enumerate(pictures))
    return BACKGROUNDS[int(np.argmin(errors))]


def _track(matchers: Sequence[Matcher], subject: str) -> list[Match]:
    """The subject's best match in each frame."""
    # Sides outside, frames inside: a template is large, and stays in the processor's cache meanwhile.
    by_side = [[matcher.match(subject, pixels) for matcher in matchers] for pixels in FINE_PIXELS]
    return [max(of_frame, key=lambda match: match.gain) for of_frame in zip(*by_side, strict=True)]


def _total_gain(track: Sequence[Match]) -> float:
    return sum(match.gain for match in track)


def _convinces(match: Match) -> bool:
    return match.fit >= SEEN_FIT and match.gain >= LEAST_CONTRAST * (match.pixels / 2) ** 2


def _nearest(places: dict[str, int], value: float) -> str:
    return min(places, key=lambda name: abs(places[name] - value))
