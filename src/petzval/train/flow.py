"""Flow matching: noisy latents, the velocity they should be answered with, and the loss between the two.

Shapes: B batch, T frames, H height, W width, C channels, S text tokens, D text width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from petzval.models.wan.dit import Modulation, WanDiT

NUM_TRAIN_TIMESTEPS = 1000.0


@dataclass(frozen=True)
class FlowBatch:
    """One training batch."""

    latents_BCTHW: Tensor
    weight_BTHW: Tensor
    """Loss weight of each 2x2 patch of latents."""
    token_ids_BS: Tensor
    token_mask_BS: Tensor
    sigma_BT: Tensor
    """Noise level of each frame; 0 for a frame that is given."""
    noise_BCTHW: Tensor


class TextToVelocity(nn.Module):
    """Text encoder and transformer, trained together."""

    def __init__(self, dit: WanDiT, text_encoder: Any, max_tokens: int) -> None:
        super().__init__()
        self.dit, self.text_encoder, self.max_tokens = dit, text_encoder, max_tokens

    def prompt_embeds(self, token_ids_BS: Tensor, token_mask_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings with one zero token at the end that stands for all padding, and the bias that counts it.

        The published pipeline pads embeddings with zeros to `max_tokens`. Equal keys add up in a softmax, so n of them
        are one key whose score is raised by log n: the same result without the padding's work.
        """
        embeds = self.text_encoder(token_ids_BS, attention_mask=token_mask_BS).last_hidden_state
        embeds = F.pad(embeds * token_mask_BS[..., None], (0, 0, 0, 1))
        bias_S = embeds.new_zeros(embeds.shape[1])
        bias_S[-1] = float(self.max_tokens - token_ids_BS.shape[1])
        bias_S[-1] = bias_S[-1].log()
        return embeds, bias_S

    def forward(self, latents_BCTHW: Tensor, sigma_BT: Tensor, embeds_BSD: Tensor, bias_S: Tensor) -> Tensor:
        """Velocity (noise minus clean) at each frame's noise level."""
        batch, frames = sigma_BT.shape
        flat = self.dit.modulation(sigma_BT.flatten() * NUM_TRAIN_TIMESTEPS)
        modulation = Modulation(flat.block.unflatten(0, (batch, frames)), flat.out.unflatten(0, (batch, frames)))
        rope = self.dit.rope(latents_BCTHW.shape, latents_BCTHW.device)
        return self.dit(latents_BCTHW, modulation, self.dit.text_kv(embeds_BSD), rope, bias_S)


def flow_loss(model: TextToVelocity, batch: FlowBatch) -> Tensor:
    """Weighted mean squared error of the velocity (Lipman et al. 2023, Liu et al. 2023), given frames left out."""
    sigma = batch.sigma_BT[:, None, :, None, None]
    noisy = (1 - sigma) * batch.latents_BCTHW + sigma * batch.noise_BCTHW
    # A clip whose frames share one noise level needs one row of modulation, not one a frame.
    levels = batch.sigma_BT if bool((batch.sigma_BT == 0).any()) else batch.sigma_BT[:, :1]
    predicted = model(noisy, levels, *model.prompt_embeds(batch.token_ids_BS, batch.token_mask_BS))
    error = (predicted - (batch.noise_BCTHW - batch.latents_BCTHW)).square().mean(1)
    patch = error.shape[-1] // batch.weight_BTHW.shape[-1]
    weight = batch.weight_BTHW * (batch.sigma_BT > 0)[:, :, None, None]
    weight = weight.repeat_interleave(patch, -1).repeat_interleave(patch, -2)
    return (error * weight).sum() / weight.sum()


def draw_sigmas(means: Tensor, generator: torch.Generator) -> Tensor:
    """Logit-normal noise levels in (0, 1), one for each mean (Esser et al. 2024)."""
    return torch.sigmoid(torch.randn(means.shape, generator=generator) + means)
