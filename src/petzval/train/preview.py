"""Pictures of what a run has learned so far, drawn with its averaged weights.

Shapes: B batch, T frames, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petzval.models.wan.vae import decode_frame, latent_scale
from petzval.train.flow import TextToVelocity
from petzval.train.state import RunState

PICTURE_PROMPTS = (
    "a large fox on the left, a beach",
    "a small rocket in the middle, the night sky",
    "a large lion in the middle, grass",
    "a large castle on the right, mountains",
    "the fox, in snow",
    "a small whale on the left, a plain blue background",
    "a large rose, a plain white background",
    "a large robot on a city street",
    "a large penguin in the middle, snow",
    "a small strawberry on the right, a plain yellow background",
    "a large pizza, grass",
    "a large owl in the night sky",
)
CLIP_PROMPTS = ("a small rocket flies up, the night sky", "the fox moves right", "a large pumpkin shrinks, grass")


@contextmanager
def averaged(state: RunState) -> Iterator[None]:
    """The model with its averaged weights, for as long as the block lasts."""
    kept = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    _assign(state.model, state.ema)
    try:
        yield
    finally:
        _assign(state.model, kept)


@torch.no_grad()
def _assign(model: torch.nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])


@torch.inference_mode()
def sample(
    model: TextToVelocity,
    tokenizer: Any,
    vae: Any,
    prompts: Sequence[str],
    *,
    num_frames: int,
    size: int,
    num_inference_steps: int = 20,
    guidance_scale: float = 4.0,
) -> np.ndarray:
    """Frames as float pixels in [0, 1], B T H W C, by plain Euler steps with guidance."""
    side = size // vae.config.scale_factor_spatial
    shape = (len(prompts), vae.config.z_dim, num_frames, side, side)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    tokens = tokenizer([*prompts, *[""] * len(prompts)], padding="longest", return_tensors="pt")
    embeds, bias = model.prompt_embeds(tokens["input_ids"], tokens["attention_mask"])
    sigmas = torch.linspace(1, 0, num_inference_steps + 1)
    for sigma, sigma_next in pairwise(sigmas):
        levels = sigma.expand(2 * len(prompts), 1)
        cond, uncond = model(torch.cat([latents, latents]), levels, embeds, bias).chunk(2)
        latents = latents + (sigma_next - sigma) * (uncond + guidance_scale * (cond - uncond))
    codes = latent_scale(vae.config).denormalise(latents).transpose(1, 2).flatten(0, 1)
    pixels = decode_frame(vae, codes).clamp(-1, 1).add(1).div(2).unflatten(0, (len(prompts), num_frames))
    return pixels.permute(0, 1, 3, 4, 2).numpy()
