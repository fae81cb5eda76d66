"""What a generation gives back, what it tells on the way, and how it was run. No torch.

Shapes: T frames, H height, W width, C channels (RGB).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from petzval.types import Data, Plan

Stage = Literal["encode", "denoise", "decode"]


@dataclass(frozen=True, kw_only=True)
class Runs(Data):
    """How a loaded checkpoint runs here: what was chosen where "auto" was asked for."""

    device: str
    dtype: str
    attention: str
    """The row of ops that computes attention."""
    torch: str
    """Version of torch."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Told while a group is generated: a stage starts, a step of one is done, a stage ends."""

    kind: Literal["started", "step", "ended"]
    stage: Stage
    step: int = 0
    """How many steps of the stage are done."""
    num_steps: int = 0
    """How many it has."""
    seconds: float = 0.0
    """Of the step, or of the whole stage when it ended."""


OnEvent = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A picture (T = 1) or a clip, and everything that decided it."""

    pixels_THWC: npt.NDArray[np.float32]
    """In [0, 1]."""
    plan: Plan
    runs: Runs
    seconds: dict[Stage, float]
    """Wall time by stage: of the whole group, since its members shared it."""
    group: int = 1
    """How many requests were advanced together. Rounding depends on it, nothing else does."""
