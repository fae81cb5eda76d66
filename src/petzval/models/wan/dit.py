"""The Wan diffusion transformer (2.1 and 2.2, all variants), as plain math with the parameter names of its checkpoints.

The work that is the same at every step of a trajectory stands in methods of its own (`modulation`, `text_kv`, `rope`);
`forward` is what is left for each step.

Shapes: B batch, R timesteps, T frames (of patches), H height, W width, C channels, L tokens (T*H*W patches),
S text tokens, D width, N heads, K head width, F mlp width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from petzval.errors import CheckpointError

Attention = Callable[..., Tensor]
Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class WanConfig:
    """`transformer/config.json` of a Wan checkpoint, by its own names."""

    patch_size: tuple[int, int, int] = (1, 2, 2)
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 13824
    num_layers: int = 40
    cross_attn_norm: bool = True
    qk_norm: str | None = "rms_norm_across_heads"
    eps: float = 1e-6
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None
    rope_max_seq_len: int = 1024
    pos_embed_seq_len: int | None = None

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> WanConfig:
        """Raises CheckpointError for a setting this forward does not have."""
        known = {f.name for f in fields(cls)}
        given = {key: value for key, value in record.items() if not key.startswith("_")}
        if unknown := sorted(set(given) - known):
            raise CheckpointError(f"transformer config has settings that Wan does not: {', '.join(unknown)}")
        qk_norm = given.get("qk_norm", "rms_norm_across_heads")
        if qk_norm != "rms_norm_across_heads":
            raise CheckpointError(f"transformer config: qk_norm must be rms_norm_across_heads, got {qk_norm!r}")
        if "patch_size" in given:
            given["patch_size"] = tuple(given["patch_size"])
        return cls(**{**given, "out_channels": given.get("out_channels") or given.get("in_channels", 16)})


class Modulation(NamedTuple):
    """Shift, scale and gate that timesteps stand for, before each block adds its own table. float32."""

    block: Tensor
    """R 6 D"""
    out: Tensor
    """R D"""

    def take(self, rows: Sequence[int] | Tensor) -> Modulation:
        return Modulation(self.block[rows], self.out[rows])


class TextKV(NamedTuple):
    """Keys and values of one block's cross-attention: constant over a trajectory."""

    k: Tensor
    """B S N K"""
    v: Tensor
    image_k: Tensor | None = None
    image_v: Tensor | None = None


def apply_rope(x_BLNK: Tensor, rope: Rope) -> Tensor:
    """Rotate neighbouring pairs of channels by the tokens' angles; the tables are L (K/2)."""
    cos, sin = (table[None, :, None, :] for table in rope)
    even, odd = x_BLNK.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).type_as(x_BLNK)


def rope_table(grid: tuple[int, int, int], head_dim: int, theta: float = 10000.0) -> Rope:
    """Rotary angles of a T x H x W grid of patches, K split over the three axes. Two float32 tables, L x K/2."""
    side = 2 * (head_dim // 6)
    tables = []
    for axis, (length, dim) in enumerate(zip(grid, (head_dim - 2 * side, side, side), strict=True)):
        frequency = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
        shape = [1, 1, 1, angles.shape[1]]
        shape[axis] = length
        tables.append(angles.view(shape).expand(*grid, -1))
    angles_LK = torch.cat(tables, dim=-1).flatten(0, 2)
    return angles_LK.cos().float(), angles_LK.sin().float()


def timestep_features(timestep_R: Tensor, dim: int) -> Tensor:
    """Cosines then sines of a timestep at `dim / 2` frequencies, float32."""
    frequency = torch.exp(-math.log(10000.0) * torch.arange(dim // 2, device=timestep_R.device) / (dim // 2))
    angles = timestep_R.float()[:, None] * frequency[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def layer_norm(x: Tensor, norm: nn.LayerNorm | nn.Identity) -> Tensor:
    """Layer norm computed in float32, left there."""
    if isinstance(norm, nn.Identity):
        return x.float()
    weight, bias = (None if p is None else p.float() for p in (norm.weight, norm.bias))
    return F.layer_norm(x.float(), norm.normalized_shape, weight, bias, norm.eps)


class TwoLinears(nn.Module):
    """linear_1, activation, linear_2: the shape of Wan's time and text embedders."""

    def __init__(self, dim_in: int, dim: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(dim_in, dim)
        self.linear_2 = nn.Linear(dim, dim)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.activation(self.linear_1(x)))


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, dim: int, dim_mlp: int, dim_out: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        first = nn.Module()
        first.proj = nn.Linear(dim, dim_mlp)
        self.net = nn.ModuleList([first, nn.Identity(), nn.Linear(dim_mlp, dim_out)])
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](self.activation(self.net[0].proj(x)))  # type: ignore[operator]


class ImageEmbedding(nn.Module):
    """Wan 2.1 image-to-video: CLIP tokens of the picture (or of first and last picture) to the model's width."""

    def __init__(self, dim_in: int, dim: int, num_positions: int | None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim_in)
        self.ff = FeedForward(dim_in, dim_in, dim, F.gelu)
        self.norm2 = nn.LayerNorm(dim)
        self.pos_embed = nn.Parameter(torch.zeros(1, num_positions, dim_in)) if num_positions else None

    def forward(self, tokens_BSD: Tensor) -> Tensor:
        if self.pos_embed is not None:
            tokens_BSD = tokens_BSD.reshape(-1, 2 * tokens_BSD.shape[1], tokens_BSD.shape[2]) + self.pos_embed
        x = layer_norm(tokens_BSD, self.norm1).type_as(tokens_BSD)
        x = self.ff(x)
        return layer_norm(x, self.norm2).type_as(x)


class ConditionEmbedder(nn.Module):
    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        width = config.width
        self.time_embedder = TwoLinears(config.freq_dim, width, F.silu)
        self.time_proj = nn.Linear(width, 6 * width)
        self.text_embedder = TwoLinears(config.text_dim, width, gelu_tanh)
        if config.image_dim is not None:
            self.image_embedder = ImageEmbedding(config.image_dim, width, config.pos_embed_seq_len)


class Attention_(nn.Module):  # noqa: N801 (the name Attention is the function's type)
    """Projections and norms around the attention function."""

    def __init__(self, config: WanConfig, attention: Attention, *, image_dim: int | None = None) -> None:
        super().__init__()
        width = config.width
        self.num_heads, self.attention = config.num_attention_heads, attention
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])
        self.norm_q, self.norm_k = (nn.RMSNorm(width, eps=config.eps) for _ in range(2))
        if image_dim is not None:
            self.add_k_proj, self.add_v_proj = (nn.Linear(image_dim, width) for _ in range(2))
            self.norm_added_k = nn.RMSNorm(width, eps=config.eps)

    def heads(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.unflatten(-1, (self.num_heads, -1))

    def self_attention(self, x_BLD: Tensor, rope: Rope) -> Tensor:
        q = apply_rope(self.heads(self.norm_q(self.to_q(x_BLD))), rope)
        k = apply_rope(self.heads(self.norm_k(self.to_k(x_BLD))), rope)
        return self.to_out[0](self.attention(q, k, self.heads(self.to_v(x_BLD))).flatten(2))

    def kv(self, text_BSD: Tensor, image_BSD: Tensor | None) -> TextKV:
        k, v = self.heads(self.norm_k(self.to_k(text_BSD))), self.heads(self.to_v(text_BSD))
        if image_BSD is None:
            return TextKV(k, v)
        image_k = self.heads(self.norm_added_k(self.add_k_proj(image_BSD)))
        return TextKV(k, v, image_k, self.heads(self.add_v_proj(image_BSD)))

    def cross_attention(self, x_BLD: Tensor, kv: TextKV, text_bias_S: Tensor | None) -> Tensor:
        q = self.heads(self.norm_q(self.to_q(x_BLD)))
        mixed = self.attention(q, kv.k, kv.v, bias_S=text_bias_S).flatten(2)
        if kv.image_k is not None:
            mixed = mixed + self.attention(q, kv.image_k, kv.image_v).flatten(2)
        return self.to_out[0](mixed)


class Block(nn.Module):
    def __init__(self, config: WanConfig, attention: Attention) -> None:
        super().__init__()
        width = config.width
        self.norm1 = nn.LayerNorm(width, eps=config.eps, elementwise_affine=False)
        self.attn1 = Attention_(config, attention)
        self.attn2 = Attention_(config, attention, image_dim=config.added_kv_proj_dim)
        self.norm2 = nn.LayerNorm(width, eps=config.eps) if config.cross_attn_norm else nn.Identity()
        self.ffn = FeedForward(width, config.ffn_dim, width, gelu_tanh)
        self.norm3 = nn.LayerNorm(width, eps=config.eps, elementwise_affine=False)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, width) / width**0.5)

    def forward(
        self, x_BLD: Tensor, block_BT6D: Tensor, kv: TextKV, rope: Rope, text_bias_S: Tensor | None = None
    ) -> Tensor:
        h, gate, mlp_shift, mlp_scale, mlp_gate = self.modulated_input(x_BLD, block_BT6D)
        x_BLD = _add_gated(x_BLD, self.attn1.self_attention(h, rope), gate)
        h = layer_norm(x_BLD, self.norm2).type_as(x_BLD)
        x_BLD = x_BLD + self.attn2.cross_attention(h, kv, text_bias_S)
        h = _per_frame(layer_norm(x_BLD, self.norm3), mlp_scale, mlp_shift).type_as(x_BLD)
        return _add_gated(x_BLD, self.ffn(h), mlp_gate)

    def modulated_input(self, x_BLD: Tensor, block_BT6D: Tensor) -> tuple[Tensor, ...]:
        """What self-attention is given (BLD), its gate, and the mlp's shift, scale and gate."""
        table = (self.scale_shift_table + block_BT6D.float())[:, :, :, None]
        shift, scale, *rest = table.unbind(2)
        return _per_frame(layer_norm(x_BLD, self.norm1), scale, shift).type_as(x_BLD), *rest


def _per_frame(x_BLD: Tensor, scale_BT1D: Tensor, shift_BT1D: Tensor) -> Tensor:
    """x * (1 + scale) + shift with one scale and shift a frame (or one for all frames, T = 1)."""
    x_BTLD = x_BLD.unflatten(1, (scale_BT1D.shape[1], -1))
    return (x_BTLD * (1 + scale_BT1D) + shift_BT1D).flatten(1, 2)


def _add_gated(x_BLD: Tensor, update_BLD: Tensor, gate_BT1D: Tensor) -> Tensor:
    gated = (update_BLD.float().unflatten(1, (gate_BT1D.shape[1], -1)) * gate_BT1D).flatten(1, 2)
    return (x_BLD.float() + gated).type_as(x_BLD)


class WanDiT(nn.Module):
    """Predicts the velocity of video latents from text (and, in some variants, picture) conditions."""

    def __init__(self, config: WanConfig, attention: Attention) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.patch_embedding = nn.Conv3d(config.in_channels, width, config.patch_size, config.patch_size)
        self.condition_embedder = ConditionEmbedder(config)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.num_layers))
        self.norm_out = nn.LayerNorm(width, eps=config.eps, elementwise_affine=False)
        self.proj_out = nn.Linear(width, config.out_channels * math.prod(config.patch_size))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, width) / width**0.5)

    # -- what is constant over a trajectory ----------------------------------------------------------------------------

    def grid(self, latents_shape: Sequence[int]) -> tuple[int, int, int]:
        """Patches along T, H, W of latents whose last three axes are T, H, W."""
        frames, height, width = (n // p for n, p in zip(latents_shape[-3:], self.config.patch_size, strict=True))
        return frames, height, width

    def rope(self, latents_shape: Sequence[int], device: torch.device) -> Rope:
        """Raises CheckpointError when an axis has more patches than the checkpoint has positions."""
        grid, most = self.grid(latents_shape), self.config.rope_max_seq_len
        if max(grid) > most:
            raise CheckpointError(f"{max(grid)} patches along an axis, but positions end at {most}")
        cos, sin = rope_table(grid, self.config.attention_head_dim)
        return cos.to(device), sin.to(device)

    def modulation(self, timestep_R: Tensor) -> Modulation:
        embedder = self.condition_embedder
        dtype = embedder.time_embedder.linear_1.weight.dtype
        out_RD = embedder.time_embedder(timestep_features(timestep_R, self.config.freq_dim).to(dtype))
        out_RD = out_RD.to(embedder.time_proj.weight.dtype)
        block_R6D = embedder.time_proj(F.silu(out_RD)).unflatten(-1, (6, -1))
        return Modulation(block_R6D, out_RD)

    def text_kv(self, prompt_embeds_BSD: Tensor, image_embeds_BSD: Tensor | None = None) -> list[TextKV]:
        """Cross-attention keys and values of every block."""
        text = self.condition_embedder.text_embedder(prompt_embeds_BSD)
        image = None if image_embeds_BSD is None else self.condition_embedder.image_embedder(image_embeds_BSD)
        return [block.attn2.kv(text, image) for block in self.blocks]  # type: ignore[union-attr, operator]

    # -- what runs every step ------------------------------------------------------------------------------------------

    def forward(
        self,
        latents_BCTHW: Tensor,
        modulation: Modulation,
        text: Sequence[TextKV],
        rope: Rope,
        text_bias_S: Tensor | None = None,
    ) -> Tensor:
        """Velocity, of the latents' shape (with the checkpoint's output channels).

        `modulation` holds B T 6 D and B T D: a timestep for each frame of patches, or T = 1 for one that all share.
        """
        grid = self.grid(latents_BCTHW.shape)
        x_BLD = self.embed_patches(latents_BCTHW)
        for block, kv in zip(self.blocks, text, strict=True):
            x_BLD = block(x_BLD, modulation.block, kv, rope, text_bias_S)
        shift, scale = (self.scale_shift_table + modulation.out[:, :, None].float())[:, :, :, None].unbind(2)
        x_BLD = _per_frame(layer_norm(x_BLD, self.norm_out), scale, shift).type_as(x_BLD)
        return self.unpatch(self.proj_out(x_BLD), grid)

    def modulated_input(self, latents_BCTHW: Tensor, modulation: Modulation) -> Tensor:
        """The first block's, BLD."""
        block: Any = self.blocks[0]
        return block.modulated_input(self.embed_patches(latents_BCTHW), modulation.block)[0]

    def first_residual(
        self,
        latents_BCTHW: Tensor,
        modulation: Modulation,
        text: Sequence[TextKV],
        rope: Rope,
        text_bias_S: Tensor | None = None,
    ) -> Tensor:
        """What the first block adds to its input, BLD."""
        x_BLD = self.embed_patches(latents_BCTHW)
        return self.blocks[0](x_BLD, modulation.block, text[0], rope, text_bias_S) - x_BLD

    def embed_patches(self, latents_BCTHW: Tensor) -> Tensor:
        """The patch convolution, whose stride is its kernel, as one matrix product."""
        (frames, height, width), (t, h, w) = self.grid(latents_BCTHW.shape), self.config.patch_size
        batch, channels = latents_BCTHW.shape[:2]
        patches = latents_BCTHW.view(batch, channels, frames, t, height, h, width, w).permute(0, 2, 4, 6, 1, 3, 5, 7)
        weight = self.patch_embedding.weight.flatten(1)
        return F.linear(patches.reshape(batch, frames * height * width, -1), weight, self.patch_embedding.bias)

    def unpatch(self, x_BLP: Tensor, grid: tuple[int, int, int]) -> Tensor:
        (frames, height, width), (t, h, w) = grid, self.config.patch_size
        x = x_BLP.view(-1, frames, height, width, t, h, w, self.config.out_channels).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return x.reshape(x.shape[0], self.config.out_channels, frames * t, height * h, width * w)
