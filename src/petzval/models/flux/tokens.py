"""Latents as the transformer's tokens, and back: 2 x 2 patches, and where each of them sits.

Shapes: B batch, C latent channels, H height, W width, L tokens (H / 2 * W / 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

PATCH = 2
"""Latent pixels along one side of a token."""


def pack(latents_BCHW: Tensor) -> Tensor:
    """Latents -> tokens BL(4C), row by row; within a token the channel is the slowest axis."""
    batch, channels, height, width = latents_BCHW.shape
    patches = latents_BCHW.reshape(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * PATCH * PATCH)


def unpack(x_BLC: Tensor, *, height: int, width: int) -> Tensor:
    """Tokens -> latents BCHW of `height` x `width` latent pixels."""
    batch, _, channels = x_BLC.shape
    grid = x_BLC.reshape(batch, height // PATCH, width // PATCH, channels // PATCH**2, PATCH, PATCH)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, height, width)


def positions(*, index: int, height: int, width: int) -> Tensor:
    """(index, row, column) of every token of a picture of `height` x `width` latent pixels: L3, float32.

    The picture being made has index 0; a Kontext reference has 1.
    """
    rows, columns = torch.meshgrid(torch.arange(height // PATCH), torch.arange(width // PATCH), indexing="ij")
    return torch.stack([torch.full_like(rows, index), rows, columns], dim=-1).reshape(-1, 3).float()


def prompt_positions(num_tokens: int) -> Tensor:
    """Prompt tokens all sit at the origin: S3, float32."""
    return torch.zeros(num_tokens, 3)
