"""Judges a checkpoint: generates for prompts about drawn scenes, in groups, and reads the pictures or clips back.

Shapes: T frames, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from petzval.errors import BadRequestError
from petzval.media.images import to_uint8
from petzval.scenes.evaluate import Accuracy, evaluate
from petzval.tasks.generate import Model, generate
from petzval.types import Request, Task


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """How much is judged, and how it is generated. None: as the checkpoint's published default."""

    prompts: int = 256
    seed: int = 0
    batch: int = 8
    """How many are generated as one group."""
    num_inference_steps: int | None = None
    guidance_scale: float | None = None


def judge(
    model: Model, config: JudgeConfig, *, video: bool, on_judged: Callable[[int, int], None] | None = None
) -> Accuracy:
    """How often the pictures (or clips) of a checkpoint show what their prompts say.

    `on_judged(done, in all)` is called after each. Raises BadRequestError for a batch below 1 and for what the
    checkpoint cannot do, UnavailableError without the emoji font that the scenes are drawn with.
    """
    if config.batch < 1:
        raise BadRequestError(f"batch must be at least 1, got {config.batch}")
    task: Task = "text-to-video" if video else "text-to-image"

    def frames(prompts: list[str], seeds: list[int]) -> Iterator[npt.NDArray[np.uint8]]:
        requests = [
            Request(
                task=task,
                prompt=prompt,
                seed=seed,
                num_inference_steps=config.num_inference_steps,
                guidance_scale=config.guidance_scale,
            )
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        for start in range(0, len(requests), config.batch):
            for result in generate(model, requests[start : start + config.batch]):
                yield to_uint8(result.pixels_THWC)

    return evaluate(frames, count=config.prompts, video=video, seed=config.seed, on_judged=on_judged)
