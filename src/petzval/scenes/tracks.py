"""Reads the motion out of where a subject is in each frame of a clip."""

# Shapes: T frames.

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from petzval.scenes.draw import BOUNCE, GROWTH, LATTICE, SIZE_PIXELS
from petzval.scenes.matching import Match

LONGEST = 9
"""Frames after which drawn motions have reached the border or their last size."""
LEAST = 0.25
"""Share of a drawn motion's extent under which a subject counts as still."""
VERTICAL_WEIGHT = 1.5
"""Pictures leave less room upwards and downwards than sideways: those ways are shorter."""


def read_motion(track: Sequence[Match], seen: Sequence[bool]) -> str:
    """The motion whose extent, as a share of the drawn one, is greatest; "still" when all are small.

    Only frames marked in `seen` count. Least squares split the height into a steady part and the drawn bounce, so that
    a subject that bounces a little while it drifts is read by what is larger.
    """
    frames_T = np.flatnonzero(seen)
    if len(frames_T) < 2:
        return "still"
    shown = [match for match, visible in zip(track, seen, strict=True) if visible]
    x_T, y_T = (np.array([getattr(match, axis) for match in shown]) for axis in ("x", "y"))
    log_side_T = np.log(np.array([match.pixels for match in shown], float))
    steps = min(len(track), LONGEST) - 1
    way = LATTICE * steps
    growth = float(np.log1p(GROWTH * steps / SIZE_PIXELS["small"]))
    across = _fit(frames_T, x_T)[0] / way
    down, bounce = _fit(frames_T, y_T, bounces=len(track) > 2)
    down *= VERTICAL_WEIGHT / way
    grown = _fit(frames_T, log_side_T)[0] / growth
    extents = {"right": across, "left": -across, "down": down, "up": -down, "grows": grown, "shrinks": -grown}
    extents["bounces"] = bounce
    motion = max(extents, key=lambda name: extents[name])
    return motion if extents[motion] >= LEAST else "still"


def _fit(frames_T: NDArray[np.int64], values_T: NDArray[np.float64], *, bounces: bool = False) -> tuple[float, float]:
    """How far the values go steadily from the first frame to the last, and the size of the bounce in drawn bounces."""
    span = frames_T[-1] - frames_T[0]
    columns = [np.ones(len(frames_T)), (frames_T - frames_T[0]) / span]
    if bounces:
        columns.append(np.array(BOUNCE, float)[frames_T % len(BOUNCE)])
    solution = np.linalg.lstsq(np.stack(columns, 1), values_T, rcond=None)[0]
    return float(solution[1]), float(solution[2]) if bounces else 0.0
