"""FLUX.1's autoencoder: diffusers' AutoencoderKL with the latents' shift and scale around it.

Shapes: C channels, H height, W width, T = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petzval.models.pixels import LatentScale, from_pixels, posterior, to_pixels


def stride(config: dict[str, Any]) -> int:
    """Pixels along one side of a latent pixel: every level but the last halves the picture."""
    return int(2 ** (len(config["block_out_channels"]) - 1))


def latent_scale(config: dict[str, Any]) -> LatentScale:
    return LatentScale(mean=config.get("shift_factor") or 0.0, scale=config["scaling_factor"])


@dataclass(frozen=True)
class FluxVae:
    module: Any
    scale: LatentScale
    device: torch.device
    dtype: torch.dtype

    @torch.no_grad()
    def encode(self, image_HWC: np.ndarray, *, width: int, height: int, generator: torch.Generator | None) -> Tensor:
        """A uint8 picture, resized to `width` x `height` pixels -> latents CHW, float32.

        A sample of the posterior where a generator is given, else its mode.
        """
        pixels = to_pixels(image_HWC, width=width, height=height).to(self.device, self.dtype)
        return self.scale.normalise(posterior(self.module, pixels[None], generator))[0].float()

    @torch.no_grad()
    def decode(self, latents_CHW: Tensor) -> Tensor:
        """Latents -> pixels THWC, float32 in [0, 1] on the CPU."""
        latents = self.scale.denormalise(latents_CHW[None].to(self.device, self.dtype))
        return from_pixels(self.module.decode(latents, return_dict=False)[0][0])
