"""Draws a scene: where the subject is in every frame, and its sprite laid over the background."""

# Shapes: T frames, H height, W width, C channels (RGB).

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from petzval.errors import BadRequestError
from petzval.scenes.backgrounds import background_image
from petzval.scenes.sprites import Sprite, sprite
from petzval.scenes.vocabulary import BACKGROUNDS, MOTIONS, NUM_VARIANTS, POSITIONS, SIZES, SUBJECTS

CANVAS = 128
"""Side in pixels of the square on which lattice, sizes and motions are defined; other canvases scale it."""
LATTICE = 8
"""Subjects' centres are multiples of this: a small autoencoder then sees few sub-patch phases."""
SIZE_PIXELS = {"small": 44, "large": 72}
START_X = {"left": 32, "middle": 64, "right": 96}
START_Y = {"up": 96, "down": 32, "bounces": 80}
REST_Y = 72
GROWTH = 4
"""Pixels a frame by which a subject grows or shrinks: 44 to 76 and 72 to 40 in nine frames."""
GROWN_PIXELS, SHRUNK_PIXELS = 76, 40
HIDDEN = 8
"""Pixels of a sprite's square that may lie outside the canvas."""
BOUNCE = (0, -16, -24, -16)
MAX_JITTER = 40


@dataclass(frozen=True)
class Scene:
    """What a picture (`motion=None`) or a clip shows.

    `position` is where the subject is in the first frame. `jitter_x` and `jitter_y` are pixels on a canvas of 128,
    multiples of 8. A subject that grows starts small, one that shrinks starts large, one that moves right does not
    start at the right, nor one that moves left at the left. Raises `BadRequestError` for anything else.
    """

    subject: str
    background: str
    size: str = "large"
    position: str = "middle"
    motion: str | None = None
    jitter_x: int = 0
    jitter_y: int = 0
    variant: int = 0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("subject", self.subject, SUBJECTS),
            ("background", self.background, BACKGROUNDS),
            ("size", self.size, SIZES),
            ("position", self.position, POSITIONS),
            ("motion", self.motion, (None, *MOTIONS)),
            ("variant", self.variant, tuple(range(NUM_VARIANTS))),
        ):
            if value not in allowed:
                raise BadRequestError(f"{name} {value!r} is not one of {', '.join(map(str, allowed))}")
        for name, jitter in (("jitter_x", self.jitter_x), ("jitter_y", self.jitter_y)):
            if jitter % LATTICE or abs(jitter) > MAX_JITTER:
                nearest = max(-MAX_JITTER, min(MAX_JITTER, round(jitter / LATTICE) * LATTICE))
                raise BadRequestError(
                    f"{name} must be a multiple of {LATTICE} within {MAX_JITTER}, got {jitter}; nearest: {nearest}"
                )
        for name, value, allowed in (
            ("position", self.position, allowed_positions(self.motion)),
            ("size", self.size, allowed_sizes(self.motion)),
        ):
            if value not in allowed:
                listed = ", ".join(allowed)
                raise BadRequestError(f"motion {self.motion!r} cannot start with {name} {value!r}; allowed: {listed}")


@dataclass(frozen=True)
class Placement:
    """Where one frame's sprite is: its centre and its side, in pixels of a canvas of 128."""

    x: int
    y: int
    pixels: int


def allowed_positions(motion: str | None) -> tuple[str, ...]:
    """Positions from which a subject has room for `motion`."""
    return tuple(position for position in POSITIONS if position != motion)


def allowed_sizes(motion: str | None) -> tuple[str, ...]:
    """Sizes at which a subject can begin `motion`."""
    return {"grows": ("small",), "shrinks": ("large",)}.get(motion or "", SIZES)


def placements(scene: Scene, *, num_frames: int = 1) -> list[Placement]:
    """Centre and side of the subject in each frame. A function of the frame's index alone, so that the first
    frames of a long clip are the short clip; a subject that reaches the border stays there."""
    if num_frames < 1:
        raise BadRequestError(f"num_frames must be at least 1, got {num_frames}")
    return [_placement(scene, frame) for frame in range(num_frames)]


def draw(scene: Scene, *, num_frames: int = 1, canvas: int = CANVAS) -> NDArray[np.uint8]:
    """The scene as frames, uint8 sRGB, T H W 3, with H = W = `canvas`.

    Raises `BadRequestError` for a canvas that is not a positive multiple of 16, `UnavailableError` without the font.
    """
    windows = list(_windows(scene, num_frames, canvas))  # which refuses an impossible number of frames
    behind = [background_image(scene.background, scene.variant, canvas, frame=frame) for frame in range(num_frames)]
    frames_THWC = np.stack(behind)
    for frame_HWC, (picture, rows, columns) in zip(frames_THWC, windows, strict=True):
        under_HWC = frame_HWC[rows[0], columns[0]]
        over_HWC = picture.colour_HWC[rows[1], columns[1]] + picture.clear_HWC[rows[1], columns[1]] * under_HWC
        frame_HWC[rows[0], columns[0]] = over_HWC.astype(np.uint8)
    return frames_THWC


def subject_mask(scene: Scene, *, num_frames: int = 1, canvas: int = CANVAS) -> NDArray[np.float32]:
    """How much of each pixel the subject covers, float32 in [0, 1], T H W."""
    mask_THW = np.zeros((num_frames, canvas, canvas), np.float32)
    for mask_HW, (picture, rows, columns) in zip(mask_THW, _windows(scene, num_frames, canvas), strict=True):
        mask_HW[rows[0], columns[0]] = 1 - picture.clear_HWC[rows[1], columns[1], 0]
    return mask_THW


def _placement(scene: Scene, frame: int) -> Placement:
    pixels = SIZE_PIXELS[scene.size]
    x = START_X[scene.position] + scene.jitter_x
    y = START_Y.get(scene.motion or "", REST_Y) + scene.jitter_y
    match scene.motion:
        case "left":
            x = _inside(x, pixels) - LATTICE * frame
        case "right":
            x = _inside(x, pixels) + LATTICE * frame
        case "up":
            y = _inside(y, pixels) - LATTICE * frame
        case "down":
            y = _inside(y, pixels) + LATTICE * frame
        case "bounces":
            y += BOUNCE[frame % len(BOUNCE)]
        case "grows":
            pixels = min(GROWN_PIXELS, pixels + GROWTH * frame)
        case "shrinks":
            pixels = max(SHRUNK_PIXELS, pixels - GROWTH * frame)
    # A subject that changes size keeps its centre: the border is that of its largest size.
    widest = GROWN_PIXELS if scene.motion == "grows" else max(pixels, SIZE_PIXELS[scene.size])
    return Placement(_inside(x, widest), _inside(y, widest), pixels)


def _inside(centre: int, pixels: int) -> int:
    """The nearest lattice centre at which at most `HIDDEN` pixels of the sprite's square are outside."""
    least = -(-(pixels // 2 - HIDDEN) // LATTICE) * LATTICE
    return max(least, min(CANVAS - least, centre))


_Window = tuple[Sprite, tuple[slice, slice], tuple[slice, slice]]


def _windows(scene: Scene, num_frames: int, canvas: int) -> Iterator[_Window]:
    """Each frame's sprite with its rows and columns, first in the frame, then in the sprite."""
    for place in placements(scene, num_frames=num_frames):
        picture = _scaled_sprite(scene.subject, place.pixels, canvas)
        side = picture.clear_HWC.shape[0]
        top, left = (round(centre * canvas / CANVAS) - side // 2 for centre in (place.y, place.x))
        yield picture, _overlap(top, side, canvas), _overlap(left, side, canvas)


@lru_cache(maxsize=4096)
def _scaled_sprite(subject: str, pixels: int, canvas: int) -> Sprite:
    return sprite(subject, 2 * round(pixels * canvas / CANVAS / 2))


def _overlap(start: int, side: int, canvas: int) -> tuple[slice, slice]:
    first, last = max(0, start), min(canvas, start + side)
    return slice(first, last), slice(first - start, last - start)
