"""Pictures to and from tensors, and the scale of latents: what every family does around its VAE.

Shapes: T frames, H height, W width, C channels (3 for pixels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from petzval.errors import NotFiniteError


def to_pixels(image_HWC: np.ndarray, *, width: int, height: int) -> Tensor:
    """A uint8 RGB picture of any size -> float32 CHW in [-1, 1] of the given size (Lanczos, aspect not kept).

    Resampled in 8 bits by Pillow, as diffusers' image processor does, so that both read the same pixels.
    """
    resized = np.asarray(Image.fromarray(image_HWC).resize((width, height), Image.Resampling.LANCZOS))
    unit = torch.from_numpy(resized.astype(np.float32) / 255.0)
    # Contiguous, since torch's group norm on the CPU loses three digits of a megapixel picture in channels-last memory.
    return (2.0 * unit - 1.0).permute(2, 0, 1).contiguous()


def from_pixels(pixels_CTHW: Tensor) -> Tensor:
    """What a VAE decodes, about [-1, 1], CTHW or CHW -> float32 THWC in [0, 1] on the CPU (T = 1 for CHW).

    Raises NotFiniteError: clamped, infinities would be black and white like any other.
    """
    check_finite(pixels_CTHW, "the decoded pixels")
    clip = pixels_CTHW if pixels_CTHW.ndim == 4 else pixels_CTHW.unsqueeze(1)
    unit = (clip.float() * 0.5 + 0.5).clamp(0, 1)
    return unit.permute(1, 2, 3, 0).contiguous().cpu()


def check_finite(values: Tensor, what: str) -> None:
    """Raises NotFiniteError when any of `values` is infinite or not a number. `what` is what messages call them."""
    lost = values.numel() - int(values.isfinite().sum())
    if lost:
        raise NotFiniteError(
            f"{lost} of {values.numel()} values of {what} are not finite: the checkpoint's weights are damaged, or its "
            f"numbers do not fit in {str(values.dtype).removeprefix('torch.')} with these settings"
        )


@dataclass(frozen=True)
class LatentScale:
    """Between a VAE's own latents and the unit-variance ones that a diffusion model sees.

    Numbers, or tensors that broadcast over the latents (one entry a channel). Where a config states deviations,
    `scale` is 1 / deviation.
    """

    mean: float | Tensor
    scale: float | Tensor

    def normalise(self, vae_latents: Tensor) -> Tensor:
        return (vae_latents - self.mean) * self.scale

    def denormalise(self, latents: Tensor) -> Tensor:
        return latents / self.scale + self.mean


def posterior(vae: Any, pixels: Tensor, generator: torch.Generator | None) -> Tensor:
    """A VAE's latents (its own scale, B first) of `pixels` (B first, in the VAE's dtype and on its device).

    Drawn from the posterior with `generator` where the published pipeline samples; its mode when None.
    """
    distribution = vae.encode(pixels, return_dict=False)[0]
    if generator is None:
        return distribution.mode()
    return distribution.sample(generator)
