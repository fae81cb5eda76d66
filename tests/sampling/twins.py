"""The oracle: one velocity field, integrated by our samplers and by diffusers' schedulers from the same start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

from petzval.sampling.history import History
from petzval.sampling.noise import Noise
from petzval.sampling.samplers import SAMPLERS

Velocity = Callable[[Tensor, float], Tensor]

SCHEDULERS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        DPMSolverMultistepScheduler,
        FlowMatchEulerDiscreteScheduler,
        FlowMatchLCMScheduler,
        UniPCMultistepScheduler,
    )
}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}


def curved(latents: Tensor, sigma: float) -> Tensor:
    """A smooth velocity that depends on place and time in a way no polynomial does."""
    clean = torch.tanh(1.5 * latents.roll(1, -1)) - 0.4 * torch.cos(3.0 * latents + 2.0 * sigma)
    return (latents - clean) / (0.3 + sigma)


def config_of(name: str, **options: Any) -> dict[str, Any]:
    """What diffusers itself would write into scheduler_config.json."""
    return dict(SCHEDULERS[name](**options).config) | {"_class_name": name}


def twin_of(config: dict[str, Any]) -> Any:
    return SCHEDULERS[config["_class_name"]].from_config(config)


def twin_finish(
    twin: Any,
    latents: Tensor,
    *,
    first_step: int,
    velocity: Velocity = curved,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Run a diffusers scheduler whose timesteps are set. `latents` without a batch axis."""
    twin.set_begin_index(first_step)
    extra = {} if generator is None else {"generator": generator}
    sample = latents[None]
    for step in range(first_step, len(twin.timesteps)):
        output = velocity(sample, float(twin.sigmas[step]))
        sample = twin.step(output, twin.timesteps[step], sample, return_dict=False, **extra)[0]
    if twin.config.get("solver_type") == "bh1" and twin.sigmas[-1] == 0:
        # Its last step is infinity times zero. What it should be is the first order to sigma 0: the clean estimate.
        assert torch.isnan(sample).all()
        sample = twin.model_outputs[-1]
    return sample[0]


def finish(
    sampler: str,
    sigmas: tuple[float, ...],
    latents: Tensor,
    *,
    first_step: int = 0,
    velocity: Velocity = curved,
    noise: Noise | None = None,
) -> Tensor:
    """Run one of our samplers, with the history kept as a trajectory should keep it."""
    noise, history, solver = noise or Noise(5), History(), SAMPLERS[sampler]
    shape, device = tuple(latents.shape), latents.device
    for step in range(first_step, len(sigmas) - 1):
        denoised = latents - sigmas[step] * velocity(latents, sigmas[step])
        move = solver.step(latents, denoised, step, sigmas, history, lambda: noise.draw(shape, device))
        for name, value in {"denoised": denoised, **move.remember}.items():
            history.push(name, step, value, keep=max(1, solver.reads.get(name, 1)))
        latents = move.latents
    return latents


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, as a share of the largest value."""
    assert torch.isfinite(theirs).all() and torch.isfinite(ours).all()
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())
