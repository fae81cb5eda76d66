"""The pocket autoencoder: a PCA of patches written exactly into Wan's layers, then its decoder trained.

A linear code is where training from noise arrives after minutes; here it is where training starts. The encoder stays
the PCA, so latents can be cached, and the transformer trained, while the decoder still learns.

Shapes: B batch, H height, W width, C channels, P numbers in a patch, Z latent channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from petzval.models.wan.vae import decode_frame, encode_frame, patch
from petzval.scenes.draw import draw
from petzval.scenes.sample import sample_scene
from petzval.train.config import AutoencoderConfig, DecoderConfig, TrainConfig

CARRIER = 40.0
"""A constant hidden channel, far above the unit-scale components, so that RMS norms divide by nearly a constant."""


def to_model(frames_BHWC: np.ndarray) -> Tensor:
    """uint8 BHWC -> float32 BCHW in [-1, 1]."""
    return torch.from_numpy(frames_BHWC).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def pca_autoencoder(frames_BHWC: np.ndarray, config: AutoencoderConfig) -> AutoencoderKLWan:
    """An AutoencoderKLWan that computes the PCA of `frames_BHWC` in patches of `config.patch` pixels."""
    torch.manual_seed(config.seed)
    patches_NP = patch(to_model(frames_BHWC), config.patch).permute(0, 2, 3, 1).flatten(0, 2).double()
    mean_P = patches_NP.mean(0)
    centred = patches_NP - mean_P
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    order = values.argsort(descending=True)[: config.latent_channels]
    spread_Z = values[order].sqrt()
    basis_PZ = vectors[:, order]
    loudness = spread_Z**config.detail_power
    loudness = loudness / loudness.square().mean().sqrt()
    vae = AutoencoderKLWan(
        base_dim=config.encoder_dim,
        decoder_base_dim=config.decoder_dim,
        z_dim=config.latent_channels,
        dim_mult=[1],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[],
        latents_mean=[0.0] * config.latent_channels,
        latents_std=(1.0 / loudness).tolist(),
        is_residual=True,
        in_channels=3 * config.patch**2,
        out_channels=3 * config.patch**2,
        patch_size=config.patch,
        scale_factor_temporal=1,
        scale_factor_spatial=config.patch,
    ).eval()
    with torch.no_grad():
        _silence_residuals(vae)
        _write_encoder(vae, mean_P, basis_PZ, spread_Z)
        _write_decoder(vae, mean_P, basis_PZ, spread_Z)
    return vae


def _silence_residuals(vae: AutoencoderKLWan) -> None:
    """Every residual branch adds nothing at first: its last layer is zero. Only last temporal taps are used at all."""
    for name, module in vae.named_modules():
        if isinstance(module, nn.Conv3d) and module.weight.shape[2] == 3:
            module.weight[:, :, :2] = 0
        if name.endswith((".conv2", ".proj")):
            module.weight.zero_()
            _bias(module).zero_()
    for conv in (vae.quant_conv, vae.post_quant_conv):
        conv.weight.copy_(torch.eye(conv.weight.shape[0]).view_as(conv.weight))
        _bias(conv).zero_()


def _bias(module: nn.Module) -> Tensor:
    bias = module.bias
    assert isinstance(bias, Tensor)
    return bias


def _pairs(conv: nn.Conv3d, rows_ZP: Tensor, offset_Z: Tensor) -> None:
    """Write +component, -component and the carrier into a convolution's centre tap; other channels start at zero."""
    count = len(rows_ZP)
    conv.weight.zero_()
    bias = _bias(conv)
    bias.zero_()
    conv.weight[:count, :, -1, 1, 1] = rows_ZP.float()
    conv.weight[count : 2 * count, :, -1, 1, 1] = -rows_ZP.float()
    bias[:count], bias[count : 2 * count] = offset_Z.float(), -offset_Z.float()
    bias[2 * count] = CARRIER


def _linear_out(norm: Any, conv: nn.Conv3d, rows_OZ: Tensor, offset_O: Tensor) -> None:
    """norm, SiLU and convolution as one linear map: silu(p) - silu(-p) = p, and the norm divides by the carrier."""
    count = rows_OZ.shape[1]
    norm.gamma.fill_(CARRIER / norm.gamma.shape[0] ** 0.5)
    conv.weight.zero_()
    conv.weight[: len(rows_OZ), :count, -1, 1, 1] = rows_OZ.float()
    conv.weight[: len(rows_OZ), count : 2 * count, -1, 1, 1] = -rows_OZ.float()
    _bias(conv).copy_(offset_O.float())


def _write_encoder(vae: AutoencoderKLWan, mean_P: Tensor, basis_PZ: Tensor, spread_Z: Tensor) -> None:
    rows_ZP = (basis_PZ / spread_Z).T
    _pairs(vae.encoder.conv_in, rows_ZP, -(rows_ZP @ mean_P))
    count = len(spread_Z)
    log_variance = torch.full((count,), -20.0, dtype=torch.float64)
    offset = torch.cat([torch.zeros(count, dtype=torch.float64), log_variance])
    _linear_out(vae.encoder.norm_out, vae.encoder.conv_out, torch.eye(count, dtype=torch.float64), offset)


def _write_decoder(vae: AutoencoderKLWan, mean_P: Tensor, basis_PZ: Tensor, spread_Z: Tensor) -> None:
    count = len(spread_Z)
    _pairs(vae.decoder.conv_in, torch.eye(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64))
    _linear_out(vae.decoder.norm_out, vae.decoder.conv_out, basis_PZ * spread_Z, mean_P)


def decoder_parts(vae: AutoencoderKLWan) -> nn.ModuleDict:
    """What of the autoencoder is trained."""
    return nn.ModuleDict({"decoder": vae.decoder, "post_quant_conv": vae.post_quant_conv})


def decoder_batch(train_step: int, config: TrainConfig) -> Tensor:
    """Frames of pictures and of clips (whose subjects have other sizes), the same for the same step. BCHW."""
    rng = np.random.default_rng((config.data.seed + 2, train_step))
    frames: list[np.ndarray] = []
    while len(frames) < config.decoder.batch:
        num_frames = config.data.num_frames if len(frames) % 2 else 1
        scene = sample_scene(rng, video=num_frames > 1)
        frames.append(draw(scene, num_frames=num_frames, canvas=config.data.canvas)[-1])
    return to_model(np.stack(frames))


def decoder_loss(vae: AutoencoderKLWan, pixels_BCHW: Tensor, train_step: int, config: DecoderConfig) -> Tensor:
    """How badly the decoder answers slightly noisy latents of `pixels_BCHW`.

    Frames are decoded one by one, so only last temporal taps learn, and a clip decodes as well as a picture.
    """
    with torch.no_grad():
        latents = encode_frame(vae, pixels_BCHW)
    generator = torch.Generator().manual_seed((config.seed << 32) + train_step)
    scale = torch.tensor(vae.config.latents_std).view(-1, 1, 1) * config.latent_noise
    noisy = latents + scale * torch.randn(latents.shape, generator=generator)
    return reconstruction_loss(decode_frame(vae, noisy), pixels_BCHW, config.edge_weight)


def reconstruction_loss(decoded_BCHW: Tensor, pixels_BCHW: Tensor, edge_weight: float) -> Tensor:
    """Mean absolute error of pixels, plus that of their horizontal and vertical differences."""
    edges = sum(F.l1_loss(decoded_BCHW.diff(dim=d), pixels_BCHW.diff(dim=d)) for d in (-1, -2))
    return F.l1_loss(decoded_BCHW, pixels_BCHW) + edge_weight * edges
