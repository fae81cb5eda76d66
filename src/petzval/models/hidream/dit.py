"""The HiDream-I1 transformer as plain math. Parameter names are diffusers', so one folder of weights serves both.

Architecture: HiDream-I1 (Cai et al. 2025, arXiv 2505.22705), an MMDiT of double and then single blocks whose image
feed-forward is a sparse mixture of experts beside a shared one. Every block reads a Llama layer of its own; T5 and the
last Llama layer make the prompt tokens that go through all blocks. Where a picture is not square the published model
fills its sequence with empty tokens up to a fixed length: their keys are zeroed, but their values are attended to.
They are all equal in every block, so one of them with log(count) as its key's bias is the same sum.

Shapes: B batch, L image tokens (the empty one last, where there is one), S prompt tokens, J = L + S, C features of a
patch, D width, E width of an encoder, P width of the pooled prompt, N heads, K head width, R timesteps, M modulation
numbers of one timestep, F tokens of a batch in one row, X experts.
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
"""(cos, sin) of shape (image tokens, rotated features / 2), float32. Prompt tokens are not rotated."""

ROPE_THETA = 10000.0
TIME_CHANNELS = 256
HIDDEN_MULTIPLE = 256
NORM_EPS = 1e-6
QK_EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class HiDreamConfig:
    """What a transformer's config.json says; the defaults are HiDream-I1's."""

    patch_size: int = 2
    in_channels: int = 16
    out_channels: int | None = None
    num_layers: int = 16
    num_single_layers: int = 32
    attention_head_dim: int = 128
    num_attention_heads: int = 20
    caption_channels: tuple[int, ...] = (4096, 4096)
    """Width of T5, then of Llama."""
    text_emb_dim: int = 2048
    num_routed_experts: int = 4
    num_activated_experts: int = 2
    axes_dims_rope: tuple[int, ...] = (64, 32, 32)
    max_resolution: tuple[int, ...] = (128, 128)
    llama_layers: tuple[int, ...] = (*range(32), *(31,) * 16)
    """For each block, the Llama layer that it reads."""
    force_inference_output: bool = False

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def max_tokens(self) -> int:
        """Image tokens that a picture which is not square is filled up to."""
        return self.max_resolution[0] * self.max_resolution[1] // self.patch_size**2

    @property
    def modulation_parts(self) -> int:
        return 12 * self.num_layers + 6 * self.num_single_layers + 2

    def empty_tokens(self, rows: int, columns: int) -> int:
        """How many empty tokens the published model adds to a picture of so many patches."""
        return 0 if rows == columns else self.max_tokens - rows * columns

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> HiDreamConfig:
        """Raises CheckpointError where the config asks for what this transformer is not."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = [key for key in config if key not in known and not key.startswith("_")]
        if unknown:
            raise CheckpointError(f"transformer config has settings that HiDream does not know: {', '.join(unknown)}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in config.items() if key in known
        }
        made = cls(**values)
        blocks, rotated = made.num_layers + made.num_single_layers, sum(made.axes_dims_rope)
        if len(made.llama_layers) != blocks:
            raise CheckpointError(
                f"transformer config: llama_layers must name a layer for each of {blocks} blocks, "
                f"it names {len(made.llama_layers)}"
            )
        if len(made.axes_dims_rope) != 3 or rotated not in (made.attention_head_dim, made.attention_head_dim // 2):
            raise CheckpointError(
                f"transformer config: axes_dims_rope {made.axes_dims_rope} must be three numbers that add up to "
                f"attention_head_dim {made.attention_head_dim} or half of it"
            )
        return made


@dataclass(frozen=True)
class Prompt:
    """Prompt tokens of a batch or of one sample, at the transformer's width."""

    lasting: Tensor
    """T5's, then those of the last Llama layer: they go through every block."""
    per_block: tuple[Tensor, ...]
    """Of each block's own Llama layer, dropped after it."""


# -- small parts ------------------------------------------------------------------------------------------------------


class Modulated(nn.Sequential):
    """The linear that turns a timestep's embedding into shifts, scales and gates."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__(nn.SiLU(), nn.Linear(width, parts * width))


class TwoLinears(nn.Module):
    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Named(nn.Module):
    """One module under the name that the published weights have for it."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, module)

    def forward(self, *args: Any) -> Any:
        return self.get_submodule(self.name)(*args)


def sinusoids(numbers_R: Tensor) -> Tensor:
    """(R,) -> (R, 256) float32: cosines, then sines, of 128 frequencies from 1 down to almost 1 / 10000."""
    half = TIME_CHANNELS // 2
    index = torch.arange(half, dtype=torch.float32, device=numbers_R.device)
    angles = numbers_R.float()[:, None] * torch.exp(-math.log(10000.0) * index / half)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm without weights, then the timestep's scale and shift."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift


def rotate(x_BJNK: Tensor, rope: Rope) -> Tensor:
    """Rotate neighbouring pairs of the first features of image tokens by their position, in float32."""
    cos, sin = (table[None, :, None] for table in rope)
    num_tokens, rotated = cos.shape[1], 2 * cos.shape[-1]
    even, odd = x_BJNK[:, :num_tokens, :, :rotated].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2).to(x_BJNK.dtype)
    whole = torch.cat([turned, x_BJNK[:, :num_tokens, :, rotated:]], dim=-1)
    return torch.cat([whole, x_BJNK[:, num_tokens:]], dim=1)


# -- feed-forward -----------------------------------------------------------------------------------------------------


class SwiGlu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        hidden = -(-int(2 * hidden / 3) // HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Gate(nn.Module):
    """Which experts see a token, and with which weights: the largest of a softmax, which need not add up to one."""

    def __init__(self, width: int, experts: int, activated: int) -> None:
        super().__init__()
        self.activated = activated
        self.weight = nn.Parameter(torch.empty(experts, width))

    def forward(self, x_FD: Tensor) -> tuple[Tensor, Tensor]:
        found = F.linear(x_FD, self.weight).softmax(dim=-1).topk(self.activated, dim=-1)
        return found.values, found.indices


class MixtureOfExperts(nn.Module):
    def __init__(self, width: int, experts: int, activated: int) -> None:
        super().__init__()
        self.shared_experts = SwiGlu(width, 2 * width)
        self.experts = nn.ModuleList(SwiGlu(width, 4 * width) for _ in range(experts))
        self.gate = Gate(width, experts, activated)

    def forward(self, x: Tensor) -> Tensor:
        x_FD = x.flatten(0, -2)
        weights, chosen = self.gate(x_FD)
        mixed_FD = torch.zeros_like(x_FD)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            if len(rows):
                mixed_FD.index_add_(0, rows, expert(x_FD[rows]) * weights[rows, place, None])
        return mixed_FD.view_as(x) + self.shared_experts(x)


def image_mlp(config: HiDreamConfig) -> nn.Module:
    if config.num_routed_experts == 0:
        return SwiGlu(config.width, 4 * config.width)
    return MixtureOfExperts(config.width, config.num_routed_experts, config.num_activated_experts)


# -- blocks -----------------------------------------------------------------------------------------------------------


class JointAttention(nn.Module):
    """Projections of one stream or of two; norms are over all heads at once. The prompt's have the suffix `_t`."""

    to_out: nn.Module
    to_out_t: nn.Module

    def __init__(self, config: HiDreamConfig, attention: Attention, *, double: bool) -> None:
        super().__init__()
        self.num_heads, self.attention = config.num_attention_heads, attention
        width = config.width
        for suffix in ("", "_t") if double else ("",):
            for name in ("to_q", "to_k", "to_v", "to_out"):
                self.add_module(name + suffix, nn.Linear(width, width))
            self.add_module(f"q_rms_norm{suffix}", nn.RMSNorm(width, eps=QK_EPS))
            self.add_module(f"k_rms_norm{suffix}", nn.RMSNorm(width, eps=QK_EPS))

    def project(self, x_BLD: Tensor, suffix: str = "") -> list[Tensor]:
        q, k, v = (self.get_submodule(f"to_{name}{suffix}")(x_BLD) for name in "qkv")
        q, k = self.get_submodule(f"q_rms_norm{suffix}")(q), self.get_submodule(f"k_rms_norm{suffix}")(k)
        return [t.unflatten(-1, (self.num_heads, -1)) for t in (q, k, v)]

    def attend(self, q_BJNK: Tensor, k_BJNK: Tensor, v_BJNK: Tensor, rope: Rope, empty: int) -> Tensor:
        q_BJNK, k_BJNK = rotate(q_BJNK, rope), rotate(k_BJNK, rope)
        if not empty:
            return self.attention(q_BJNK, k_BJNK, v_BJNK).flatten(2)
        last = len(rope[0]) - 1
        kept_J = torch.ones(k_BJNK.shape[1], dtype=k_BJNK.dtype, device=k_BJNK.device)
        bias_J = torch.zeros(k_BJNK.shape[1], device=k_BJNK.device)
        kept_J[last], bias_J[last] = 0, math.log(empty)
        return self.attention(q_BJNK, k_BJNK * kept_J[:, None, None], v_BJNK, bias_S=bias_J).flatten(2)


class DoubleBlock(nn.Module):
    """Image and prompt with weights of their own, meeting in attention."""

    def __init__(self, config: HiDreamConfig, attention: Attention) -> None:
        super().__init__()
        self.adaLN_modulation = Modulated(config.width, 12)
        self.attn1 = JointAttention(config, attention, double=True)
        self.ff_i = image_mlp(config)
        self.ff_t = SwiGlu(config.width, 4 * config.width)

    def forward(
        self, x_BLD: Tensor, prompt_BSD: Tensor, modulation: Sequence[Tensor], rope: Rope, empty: int
    ) -> tuple[Tensor, Tensor]:
        """`modulation`: 12 tensors (B, 1, D): shift, scale, gate of attention and of mlp, of image, then of prompt."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation[:6]
        p_shift, p_scale, p_gate, p_mlp_shift, p_mlp_scale, p_mlp_gate = modulation[6:]
        image = self.attn1.project(modulate(x_BLD, shift, scale))
        prompt = self.attn1.project(modulate(prompt_BSD, p_shift, p_scale), "_t")
        q, k, v = (torch.cat(streams, dim=1) for streams in zip(image, prompt, strict=True))
        mixed_BJD = self.attn1.attend(q, k, v, rope, empty)
        num_image = x_BLD.shape[1]
        x_BLD = x_BLD + gate * self.attn1.to_out(mixed_BJD[:, :num_image])
        prompt_BSD = prompt_BSD + p_gate * self.attn1.to_out_t(mixed_BJD[:, num_image:])
        x_BLD = x_BLD + mlp_gate * self.ff_i(modulate(x_BLD, mlp_shift, mlp_scale))
        return x_BLD, prompt_BSD + p_mlp_gate * self.ff_t(modulate(prompt_BSD, p_mlp_shift, p_mlp_scale))


class SingleBlock(nn.Module):
    """One set of weights for the joint stream, image first."""

    def __init__(self, config: HiDreamConfig, attention: Attention) -> None:
        super().__init__()
        self.adaLN_modulation = Modulated(config.width, 6)
        self.attn1 = JointAttention(config, attention, double=False)
        self.ff_i = image_mlp(config)

    def forward(self, joint_BJD: Tensor, modulation: Sequence[Tensor], rope: Rope, empty: int) -> Tensor:
        """`modulation`: shift, scale, gate of attention, then of mlp, each (B, 1, D)."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        q, k, v = self.attn1.project(modulate(joint_BJD, shift, scale))
        joint_BJD = joint_BJD + gate * self.attn1.to_out(self.attn1.attend(q, k, v, rope, empty))
        return joint_BJD + mlp_gate * self.ff_i(modulate(joint_BJD, mlp_shift, mlp_scale))


# -- the transformer --------------------------------------------------------------------------------------------------


class FinalLayer(nn.Module):
    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, features)
        self.adaLN_modulation = Modulated(width, 2)


class HiDreamDiT(nn.Module):
    """Predicts clean minus noise (the velocity with its sign turned) of a picture's patches."""

    def __init__(self, config: HiDreamConfig, attention: Attention) -> None:
        super().__init__()
        self.config, width = config, config.width
        patch = config.patch_size**2
        self.t_embedder = Named("timestep_embedder", TwoLinears(TIME_CHANNELS, width))
        self.p_embedder = Named("pooled_embedder", TwoLinears(config.text_emb_dim, width))
        self.x_embedder = Named("proj", nn.Linear(config.in_channels * patch, width))
        self.double_stream_blocks = nn.ModuleList(
            Named("block", DoubleBlock(config, attention)) for _ in range(config.num_layers)
        )
        self.single_stream_blocks = nn.ModuleList(
            Named("block", SingleBlock(config, attention)) for _ in range(config.num_single_layers)
        )
        self.final_layer = FinalLayer(width, (config.out_channels or config.in_channels) * patch)
        t5, llama = config.caption_channels
        widths = [llama] * (config.num_layers + config.num_single_layers) + [t5]
        self.caption_projection = nn.ModuleList(Named("linear", nn.Linear(w, width, bias=False)) for w in widths)

    @property
    def dtype(self) -> torch.dtype:
        return self.final_layer.linear.weight.dtype

    # Constant over a trajectory's steps.

    def embed_prompt(self, t5_BSE: Tensor, llama: Sequence[Tensor]) -> Prompt:
        """`llama`: the outputs BSE of all of Llama's layers, first to last; each block takes its own."""
        own = (llama[layer] for layer in self.config.llama_layers)
        per_block = tuple(project(states) for project, states in zip(self.caption_projection[:-1], own, strict=True))
        return Prompt(torch.cat([self.caption_projection[-1](t5_BSE), per_block[-1]], dim=1), per_block)

    def rope(self, rows: int, columns: int) -> Rope:
        """Tables for a picture of `rows` x `columns` patches, the empty token's last, computed in float64."""
        grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places_3L = torch.stack([torch.zeros_like(grid[0]), *grid]).flatten(1).double()
        if self.config.empty_tokens(rows, columns):
            places_3L = F.pad(places_3L, (0, 1))
        angles = [
            torch.outer(place_L, ROPE_THETA ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim))
            for place_L, dim in zip(places_3L, self.config.axes_dims_rope, strict=True)
        ]
        table = torch.cat(angles, dim=-1)
        return table.cos().float(), table.sin().float()

    def modulation(self, timesteps_R: Tensor, pooled_P: Tensor) -> Tensor:
        """Every block's shifts, scales and gates at each of a schedule's timesteps (0 to 1000): RM."""
        time_RD = self.t_embedder(sinusoids(timesteps_R).to(pooled_P.dtype)) + self.p_embedder(pooled_P[None])
        blocks = [named.block for named in (*self.double_stream_blocks, *self.single_stream_blocks)]
        return torch.cat([part.adaLN_modulation(time_RD) for part in (*blocks, self.final_layer)], dim=-1)

    # Per step.

    def forward(self, x_BLC: Tensor, prompt: Prompt, modulation_BM: Tensor, *, rope: Rope, empty: int = 0) -> Tensor:
        """Clean minus noise, BLC, of patches. `prompt` is `embed_prompt`'s, each row of modulation one of
        `modulation`'s; `empty` tokens are stood for by one that is added here."""
        num_image = x_BLC.shape[1]
        parts = iter(modulation_BM[:, None].chunk(self.config.modulation_parts, dim=-1))
        x_BLD = self.x_embedder(F.pad(x_BLC, (0, 0, 0, 1)) if empty else x_BLC)
        num_x, lasting, own = x_BLD.shape[1], prompt.lasting, iter(prompt.per_block)
        for block in self.double_stream_blocks:
            text = torch.cat([lasting, next(own)], dim=1)
            x_BLD, text = block(x_BLD, text, [next(parts) for _ in range(12)], rope, empty)
            lasting = text[:, : lasting.shape[1]]
        joint_BJD = torch.cat([x_BLD, lasting], dim=1)
        for block in self.single_stream_blocks:
            longer = torch.cat([joint_BJD, next(own)], dim=1)
            joint_BJD = block(longer, [next(parts) for _ in range(6)], rope, empty)[:, : num_x + lasting.shape[1]]
        shift, scale = next(parts), next(parts)
        return self.final_layer.linear(modulate(joint_BJD[:, :num_image], shift, scale))

    def modulated_input(self, x_BLC: Tensor, modulation_BM: Tensor) -> Tensor:
        """The first block's, of the image stream, BLD."""
        shift, scale = modulation_BM[:, None].chunk(self.config.modulation_parts, dim=-1)[:2]
        return modulate(self.x_embedder(x_BLC), shift, scale)

    def first_residual(
        self, x_BLC: Tensor, prompt: Prompt, modulation_BM: Tensor, *, rope: Rope, empty: int = 0
    ) -> Tensor:
        """What the first block adds to the image stream, BLD."""
        parts = modulation_BM[:, None].chunk(self.config.modulation_parts, dim=-1)
        x_BLD = self.x_embedder(F.pad(x_BLC, (0, 0, 0, 1)) if empty else x_BLC)
        text = torch.cat([prompt.lasting, prompt.per_block[0]], dim=1)
        after = self.double_stream_blocks[0](x_BLD, text, parts[:12], rope, empty)[0]
        return (after - x_BLD)[:, : x_BLC.shape[1]]
