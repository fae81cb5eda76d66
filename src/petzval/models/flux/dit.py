"""The FLUX.1 transformer as plain math. Parameter names are diffusers', so one folder of weights serves both.

Architecture: Black Forest Labs' FLUX.1 (2024), an MMDiT (Esser et al. 2024) whose later blocks run attention and mlp in
parallel on one joint stream. All that is constant over a trajectory's steps (prompt tokens, rotary tables, modulation
of every timestep) is computed by methods of its own, so that `forward` holds per-step work alone.

Shapes: B batch, L image tokens (those of a reference included), S prompt tokens, J = S + L, C packed latent channels,
D width, E width of the text encoder, P width of the pooled prompt, N heads, K head width, R timesteps,
M modulation numbers of one timestep. A double block runs two streams, a single block the joint one, prompt first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from petzval.errors import CheckpointError
from petzval.models.family import Attention

Rope = tuple[Tensor, Tensor]
"""(cos, sin) of shape (tokens, K / 2), float32: one entry a pair of neighbouring features."""

ROPE_THETA = 10000.0
TIME_CHANNELS = 256
MLP_RATIO = 4
EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class FluxConfig:
    """What a transformer's config.json says; the defaults are FLUX.1's."""

    in_channels: int = 64
    out_channels: int | None = None
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def modulation_numbers(self) -> int:
        return self.width * (12 * self.num_layers + 3 * self.num_single_layers + 2)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> FluxConfig:
        """Raises CheckpointError where the config asks for what this transformer is not."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = [key for key in config if key not in known | {"patch_size"} and not key.startswith("_")]
        if unknown:
            raise CheckpointError(f"transformer config has settings that FLUX.1 does not know: {', '.join(unknown)}")
        if config.get("patch_size", 1) != 1:
            raise CheckpointError(f"transformer config: patch_size must be 1, got {config['patch_size']}")
        values = {key: config[key] for key in known if key in config}
        values["axes_dims_rope"] = tuple(values.get("axes_dims_rope", cls.axes_dims_rope))
        made = cls(**values)
        if sum(made.axes_dims_rope) != made.attention_head_dim or len(made.axes_dims_rope) != 3:
            raise CheckpointError(
                f"transformer config: axes_dims_rope {made.axes_dims_rope} must be three numbers that add up to "
                f"attention_head_dim {made.attention_head_dim}"
            )
        return made


# -- small parts ------------------------------------------------------------------------------------------------------


class Modulated(nn.Module):
    """The linear that turns a timestep's embedding into shifts, scales and gates."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, parts * width)


class TwoLinears(nn.Module):
    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class TimeTextEmbed(nn.Module):
    """Timestep, pooled prompt and (in a guidance-distilled model) guidance -> one vector."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.timestep_embedder = TwoLinears(TIME_CHANNELS, config.width)
        if config.guidance_embeds:
            self.guidance_embedder = TwoLinears(TIME_CHANNELS, config.width)
        self.text_embedder = TwoLinears(config.pooled_projection_dim, config.width)

    def forward(self, timestep_R: Tensor, pooled_RP: Tensor, guidance_R: Tensor | None) -> Tensor:
        dtype = pooled_RP.dtype
        time_RD = self.timestep_embedder(sinusoids(timestep_R).to(dtype))
        if guidance_R is not None:
            time_RD = time_RD + self.guidance_embedder(sinusoids(guidance_R).to(dtype))
        return time_RD + self.text_embedder(pooled_RP)


def sinusoids(numbers_R: Tensor) -> Tensor:
    """(R,) -> (R, 256) float32: cosines, then sines, of 128 frequencies from 1 down to almost 1 / 10000."""
    half = TIME_CHANNELS // 2
    index = torch.arange(half, dtype=torch.float32, device=numbers_R.device)
    angles = numbers_R.float()[:, None] * torch.exp(-math.log(10000.0) * index / half)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Gelu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x), approximate="tanh")


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # The middle place is upstream's dropout; it holds no weights and keeps the numbering of their names.
        self.net = nn.Sequential(Gelu(width, MLP_RATIO * width), nn.Identity(), nn.Linear(MLP_RATIO * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm without weights, then the timestep's scale and shift."""
    return F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift


def rotate(x_BJNK: Tensor, rope: Rope) -> Tensor:
    """Rotate neighbouring pairs of features by their token's position, in float32."""
    cos, sin = (table[None, :, None] for table in rope)
    even, odd = x_BJNK.float().reshape(*x_BJNK.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2).to(x_BJNK.dtype)


def within_range(x: Tensor) -> Tensor:
    """Float16 residual streams overflow in late blocks; upstream clips them, other dtypes pass."""
    return x.clip(-65504, 65504) if x.dtype == torch.float16 else x


# -- blocks -----------------------------------------------------------------------------------------------------------


class JointAttention(nn.Module):
    """Projections of one stream or of two; in a double block the prompt's are the `add` ones."""

    def __init__(self, config: FluxConfig, attention: Attention, *, double: bool) -> None:
        super().__init__()
        width, head = config.width, config.attention_head_dim
        self.num_heads, self.attention = config.num_attention_heads, attention
        self.norm_q, self.norm_k = nn.RMSNorm(head, eps=EPS), nn.RMSNorm(head, eps=EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        if double:
            self.to_out = nn.ModuleList([nn.Linear(width, width)])
            self.norm_added_q, self.norm_added_k = nn.RMSNorm(head, eps=EPS), nn.RMSNorm(head, eps=EPS)
            self.add_q_proj, self.add_k_proj, self.add_v_proj = (nn.Linear(width, width) for _ in range(3))
            self.to_add_out = nn.Linear(width, width)

    def heads(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.reshape(*x_BLD.shape[:-1], self.num_heads, -1)

    def project(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.heads(linear(x_BLD)) for linear in (self.to_q, self.to_k, self.to_v))
        return self.norm_q(q), self.norm_k(k), v

    def project_prompt(self, prompt_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.heads(linear(prompt_BSD)) for linear in (self.add_q_proj, self.add_k_proj, self.add_v_proj))
        return self.norm_added_q(q), self.norm_added_k(k), v

    def attend(self, q_BJNK: Tensor, k_BJNK: Tensor, v_BJNK: Tensor, rope: Rope) -> Tensor:
        return self.attention(rotate(q_BJNK, rope), rotate(k_BJNK, rope), v_BJNK).flatten(2)


class DoubleBlock(nn.Module):
    """Image and prompt with weights of their own, meeting in attention."""

    def __init__(self, config: FluxConfig, attention: Attention) -> None:
        super().__init__()
        self.norm1, self.norm1_context = Modulated(config.width, 6), Modulated(config.width, 6)
        self.attn = JointAttention(config, attention, double=True)
        self.ff, self.ff_context = Mlp(config.width), Mlp(config.width)

    def modulation(self, silu_RD: Tensor) -> Tensor:
        return torch.cat([self.norm1.linear(silu_RD), self.norm1_context.linear(silu_RD)], dim=-1)

    def forward(
        self, x_BLD: Tensor, prompt_BSD: Tensor, modulation: Sequence[Tensor], rope: Rope
    ) -> tuple[Tensor, Tensor]:
        """`modulation`: 12 tensors (B, 1, D): shift, scale, gate of attention and of mlp, of image, then of prompt."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation[:6]
        p_shift, p_scale, p_gate, p_mlp_shift, p_mlp_scale, p_mlp_gate = modulation[6:]
        image = self.attn.project(modulate(x_BLD, shift, scale))
        prompt = self.attn.project_prompt(modulate(prompt_BSD, p_shift, p_scale))
        q, k, v = (torch.cat(streams, dim=1) for streams in zip(prompt, image, strict=True))
        mixed_BJD = self.attn.attend(q, k, v, rope)
        num_prompt = prompt_BSD.shape[1]
        prompt_mixed, image_mixed = mixed_BJD[:, :num_prompt], mixed_BJD[:, num_prompt:]

        x_BLD = x_BLD + gate * self.attn.to_out[0](image_mixed)
        x_BLD = x_BLD + mlp_gate * self.ff(modulate(x_BLD, mlp_shift, mlp_scale))
        prompt_BSD = prompt_BSD + p_gate * self.attn.to_add_out(prompt_mixed)
        prompt_BSD = prompt_BSD + p_mlp_gate * self.ff_context(modulate(prompt_BSD, p_mlp_shift, p_mlp_scale))
        return x_BLD, within_range(prompt_BSD)


class SingleBlock(nn.Module):
    """Attention and mlp side by side on the joint stream, joined by one projection."""

    def __init__(self, config: FluxConfig, attention: Attention) -> None:
        super().__init__()
        hidden = MLP_RATIO * config.width
        self.norm = Modulated(config.width, 3)
        self.attn = JointAttention(config, attention, double=False)
        self.proj_mlp = nn.Linear(config.width, hidden)
        self.proj_out = nn.Linear(config.width + hidden, config.width)

    def modulation(self, silu_RD: Tensor) -> Tensor:
        return self.norm.linear(silu_RD)

    def forward(self, joint_BJD: Tensor, modulation: Sequence[Tensor], rope: Rope) -> Tensor:
        """`modulation`: shift, scale, gate, each (B, 1, D)."""
        shift, scale, gate = modulation
        h_BJD = modulate(joint_BJD, shift, scale)
        q, k, v = self.attn.project(h_BJD)
        mixed_BJD = self.attn.attend(q, k, v, rope)
        hidden = F.gelu(self.proj_mlp(h_BJD), approximate="tanh")
        return within_range(joint_BJD + gate * self.proj_out(torch.cat([mixed_BJD, hidden], dim=-1)))


# -- the transformer --------------------------------------------------------------------------------------------------


class FluxDiT(nn.Module):
    """Predicts the velocity of packed latents."""

    def __init__(self, config: FluxConfig, attention: Attention) -> None:
        super().__init__()
        self.config = config
        self.time_text_embed = TimeTextEmbed(config)
        self.context_embedder = nn.Linear(config.joint_attention_dim, config.width)
        self.x_embedder = nn.Linear(config.in_channels, config.width)
        self.transformer_blocks = nn.ModuleList(DoubleBlock(config, attention) for _ in range(config.num_layers))
        self.single_transformer_blocks = nn.ModuleList(
            SingleBlock(config, attention) for _ in range(config.num_single_layers)
        )
        self.norm_out = Modulated(config.width, 2)
        self.proj_out = nn.Linear(config.width, config.out_channels or config.in_channels)

    @property
    def dtype(self) -> torch.dtype:
        return self.x_embedder.weight.dtype

    # Constant over a trajectory's steps.

    def embed_prompt(self, prompt_embeds_BSE: Tensor) -> Tensor:
        """Text encoder states -> prompt tokens BSD."""
        return self.context_embedder(prompt_embeds_BSE.to(self.dtype))

    def rope(self, ids_L3: Tensor) -> Rope:
        """Tables for tokens at (index, row, column), computed in float64."""
        angles = []
        for axis, dim in enumerate(self.config.axes_dims_rope):
            frequencies = ROPE_THETA ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=ids_L3.device) / dim)
            angles.append(torch.outer(ids_L3[:, axis].double(), frequencies))
        table = torch.cat(angles, dim=-1)
        return table.cos().float(), table.sin().float()

    def modulation(self, timesteps_R: Tensor, pooled_P: Tensor, embedded_guidance: float | None) -> Tensor:
        """Every block's shifts, scales and gates at each of a schedule's timesteps (0 to 1000): RM.

        Timesteps and guidance are rounded to the weights' dtype first and divided and multiplied by 1000 in it, as the
        published pipeline does; in bfloat16 that is not a detail.
        """
        timesteps_R = timesteps_R.to(self.dtype) / 1000 * 1000
        guidance_R = None
        if embedded_guidance is not None:
            guidance_R = torch.full_like(timesteps_R, embedded_guidance) * 1000
        pooled_RP = pooled_P.to(self.dtype).expand(len(timesteps_R), -1)
        silu_RD = F.silu(self.time_text_embed(timesteps_R, pooled_RP, guidance_R))
        blocks = [*self.transformer_blocks, *self.single_transformer_blocks]
        return torch.cat([*(block.modulation(silu_RD) for block in blocks), self.norm_out.linear(silu_RD)], dim=-1)

    # Per step.

    def forward(
        self, x_BLC: Tensor, prompt_BSD: Tensor, modulation_BM: Tensor, *, x_rope: Rope, prompt_rope: Rope
    ) -> Tensor:
        """Velocity BLC of packed latents. Prompt tokens are `embed_prompt`'s, each row of modulation is one of
        `modulation`'s, and both streams have tables of `rope`."""
        rope = _joined(prompt_rope, x_rope)
        parts = iter(modulation_BM[:, None].chunk(self.config.modulation_numbers // self.config.width, dim=-1))
        x_BLD = self.x_embedder(x_BLC)
        for block in self.transformer_blocks:
            x_BLD, prompt_BSD = block(x_BLD, prompt_BSD, [next(parts) for _ in range(12)], rope)
        joint_BJD = torch.cat([prompt_BSD, x_BLD], dim=1)
        for block in self.single_transformer_blocks:
            joint_BJD = block(joint_BJD, [next(parts) for _ in range(3)], rope)
        scale, shift = next(parts), next(parts)
        return self.proj_out(modulate(joint_BJD[:, prompt_BSD.shape[1] :], shift, scale))

    def modulated_input(self, x_BLC: Tensor, modulation_BM: Tensor) -> Tensor:
        """The first block's, of the image stream, BLD."""
        shift, scale = modulation_BM[:, None].chunk(self.config.modulation_numbers // self.config.width, dim=-1)[:2]
        return modulate(self.x_embedder(x_BLC), shift, scale)

    def first_residual(
        self, x_BLC: Tensor, prompt_BSD: Tensor, modulation_BM: Tensor, *, x_rope: Rope, prompt_rope: Rope
    ) -> Tensor:
        """What the first block adds to the image stream, BLD."""
        parts = modulation_BM[:, None].chunk(self.config.modulation_numbers // self.config.width, dim=-1)
        x_BLD = self.x_embedder(x_BLC)
        return self.transformer_blocks[0](x_BLD, prompt_BSD, parts[:12], _joined(prompt_rope, x_rope))[0] - x_BLD


def _joined(prompt_rope: Rope, x_rope: Rope) -> Rope:
    return torch.cat([prompt_rope[0], x_rope[0]]), torch.cat([prompt_rope[1], x_rope[1]])
