"""How tests of any family get a trajectory, without the tasks above it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from petzval.models.family import Family
from petzval.sampling.noise import Noise
from petzval.sampling.trajectory import Trajectory, begin
from petzval.types import InputImage, Request


def start(model: Family, request: Request, *images: np.ndarray) -> Trajectory:
    """A trajectory at its first step. `images` are uint8 HWC; the request is made to name as many."""
    if images:
        request = replace(request, images=tuple(InputImage.of(image.tobytes()) for image in images))
    plan = model.plan(request)
    noise = Noise(plan.request.seed)
    conditioning = model.encode(plan, images, noise.generator)
    renoised = plan.request.strength is not None
    return begin(
        plan,
        conditioning=conditioning,
        noise=noise,
        shape=model.latents_shape(plan),
        device=model.device,
        image_latents=model.image_latents(plan, conditioning) if renoised else None,
    )
