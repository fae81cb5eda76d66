"""Wan's autoencoder around diffusers' AutoencoderKLWan: scaled latents, and the exact single-frame path.

Shapes: B batch, T frames, H height, W width, C channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from petzval.models.pixels import LatentScale, from_pixels, to_pixels


def latent_scale(config: Any, device: torch.device | str = "cpu") -> LatentScale:
    """The checkpoint's own mean and deviation of every latent channel; broadcasts over CTHW and BCTHW."""
    mean, deviation = (
        torch.tensor(config[name], dtype=torch.float32, device=device).view(-1, 1, 1, 1)
        for name in ("latents_mean", "latents_std")
    )
    return LatentScale(mean=mean, scale=1.0 / deviation)


def decode_frame(vae: Any, latents_BCHW: Tensor) -> Tensor:
    """Decode single frames; equal to `vae.decode` of clips of one frame at a third of its work, not clamped. BCHW.

    With nothing before it, a causal 3-D convolution sees zeros but for its last temporal slice, so it is a 2-D one.
    """
    x = _conv(vae.post_quant_conv, latents_BCHW)
    decoder = vae.decoder
    x = _middle(decoder.mid_block, _conv(decoder.conv_in, x))
    for block in decoder.up_blocks:
        x = _up_block(block, x)
    x = _conv(decoder.conv_out, F.silu(_norm(decoder.norm_out, x)))
    return unpatch(x, vae.config.patch_size or 1)


def encode_frame(vae: Any, pixels_BCHW: Tensor) -> Tensor:
    """The posterior's mean of single frames, not scaled; equal to `vae.encode` of clips of one frame. BCHW."""
    encoder = vae.encoder
    x = _conv(encoder.conv_in, patch(pixels_BCHW, vae.config.patch_size or 1))
    for block in encoder.down_blocks:
        x = _down_block(block, x)
    x = _middle(encoder.mid_block, x)
    x = _conv(vae.quant_conv, _conv(encoder.conv_out, F.silu(_norm(encoder.norm_out, x))))
    return x.chunk(2, dim=1)[0]


def _conv(conv: nn.Conv3d, x_BCHW: Tensor) -> Tensor:
    kernel = conv.weight[:, :, -1]
    return F.conv2d(x_BCHW, kernel, conv.bias, padding=(kernel.shape[-2] // 2, kernel.shape[-1] // 2))


def _norm(norm: Any, x_BCHW: Tensor) -> Tensor:
    return norm(x_BCHW.unsqueeze(2)).squeeze(2) if norm.gamma.dim() == 4 else norm(x_BCHW)


def _residual(block: Any, x: Tensor) -> Tensor:
    shortcut = x if isinstance(block.conv_shortcut, nn.Identity) else _conv(block.conv_shortcut, x)
    h = _conv(block.conv1, F.silu(_norm(block.norm1, x)))
    return _conv(block.conv2, F.silu(_norm(block.norm2, h))) + shortcut


def _middle(block: Any, x: Tensor) -> Tensor:
    x = _residual(block.resnets[0], x)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _residual(resnet, attention(x.unsqueeze(2)).squeeze(2))
    return x


def _up_block(block: Any, x: Tensor) -> Tensor:
    before = x
    for resnet in block.resnets:
        x = _residual(resnet, x)
    upsamplers = getattr(block, "upsamplers", None) or (getattr(block, "upsampler", None),)
    if (upsampler := upsamplers[0]) is not None:
        x = upsampler.resample(x)
    if getattr(block, "avg_shortcut", None) is not None:
        x = x + block.avg_shortcut(before.unsqueeze(2), first_chunk=True).squeeze(2)
    return x


def _down_block(block: Any, x: Tensor) -> Tensor:
    if hasattr(block, "resample"):
        return block.resample(x)
    if hasattr(block, "to_qkv"):
        return block(x.unsqueeze(2)).squeeze(2)
    if hasattr(block, "conv1"):
        return _residual(block, x)
    before = x
    for resnet in block.resnets:
        x = _residual(resnet, x)
    if block.downsampler is not None:
        x = block.downsampler.resample(x)
    return x + block.avg_shortcut(before.unsqueeze(2)).squeeze(2)


def patch(x_BCHW: Tensor, size: int) -> Tensor:
    """Space to channels, in the order of the checkpoint: channel, then column, then row within the patch."""
    batch, channels, height, width = x_BCHW.shape
    x = x_BCHW.view(batch, channels, height // size, size, width // size, size)
    return x.permute(0, 1, 5, 3, 2, 4).reshape(batch, channels * size * size, height // size, width // size)


def unpatch(x_BCHW: Tensor, size: int) -> Tensor:
    batch, _, height, width = x_BCHW.shape
    x = x_BCHW.view(batch, -1, size, size, height, width).permute(0, 1, 4, 3, 5, 2)
    return x.reshape(batch, -1, height * size, width * size)


class WanVae:
    """Pixels to scaled latents and back. The VAE's own precision is float32, as published."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self.module, self.device = module, device
        self.scale = latent_scale(module.config, device)

    @torch.no_grad()
    def encode_picture(self, image_HWC: np.ndarray, *, width: int, height: int) -> Tensor:
        """A uint8 picture, resized -> the posterior's mode as C 1 H W, float32, scaled."""
        pixels = to_pixels(image_HWC, width=width, height=height).to(self.device)
        return self.scale.normalise(encode_frame(self.module, pixels[None]).transpose(0, 1))

    @torch.no_grad()
    def encode_clip(self, pixels_CTHW: Tensor) -> Tensor:
        """Pixels in [-1, 1] -> the posterior's mode as C T H W, float32, scaled."""
        latents = self.module.encode(pixels_CTHW[None].to(self.device), return_dict=False)[0].mode()
        return self.scale.normalise(latents[0])

    @torch.no_grad()
    def decode(self, latents_CTHW: Tensor) -> Tensor:
        """Scaled latents -> pixels THWC, float32 in [0, 1] on the CPU."""
        latents = self.scale.denormalise(latents_CTHW.to(self.device, torch.float32))
        if latents.shape[1] == 1:
            return from_pixels(decode_frame(self.module, latents.transpose(0, 1)).transpose(0, 1))
        return from_pixels(self.module.decode(latents[None], return_dict=False)[0][0])
