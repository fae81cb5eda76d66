"""Tiny random Wan checkpoints of every variant in the diffusers layout, written by diffusers itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKLWan,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from torch import Tensor
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel

from petzval.models.checkpoint import Checkpoint
from petzval.models.wan import Wan, load
from petzval.sampling.schedules import make_schedule
from petzval.sampling.trajectory import Trajectory, advance
from petzval.types import Request
from tests.models.drive import start
from tests.models.flux.tiny import psnr, t5_tokenizer

__all__ = ["VAES", "attention", "generate", "load_ours", "picture", "psnr", "start", "vae", "write"]

TEXT, HEADS, HEAD_DIM, LATENT = 16, 2, 12, 4
CLIP_WIDTH, CLIP_TOKENS = 10, 5
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}

VAES: dict[str, dict[str, Any]] = {
    "2.1": {"dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True], "base_dim": 4},
    "2.2": {
        "dim_mult": [1, 2, 4, 4], "temperal_downsample": [False, True, True], "base_dim": 4, "decoder_base_dim": 6,
        "is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16,
    },
    "pocket": {
        "dim_mult": [1], "temperal_downsample": [], "base_dim": 12, "decoder_base_dim": 16, "is_residual": True,
        "patch_size": 8, "in_channels": 192, "out_channels": 192, "scale_factor_temporal": 1, "scale_factor_spatial": 8,
    },
}  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
    bias = None if bias_S is None else bias_S.to(q.dtype).expand(q.shape[1], -1)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


def picture(height: int, width: int, seed: int = 5) -> np.ndarray:
    """Blocks of colour: noise alone would be grey once it is scaled."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    return np.ascontiguousarray(blocks[rows][:, columns])


@torch.no_grad()
def noisier(module: Any, amount: float = 0.1) -> Any:
    """Norms start at one and biases near zero: make every number matter."""
    for weight in module.parameters():
        weight.add_(torch.randn_like(weight) * amount)
    return module.eval()


def vae(kind: str, **changes: Any) -> AutoencoderKLWan:
    """An autoencoder of one of the three layouts, whose pixels stay inside [-1, 1], where clamping hides nothing."""
    torch.manual_seed(4)
    scale = {"latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [1.5, 0.8, 1.1, 2.0]}
    made = noisier(AutoencoderKLWan(**{"z_dim": LATENT, "num_res_blocks": 1, **scale, **VAES[kind], **changes}))
    made.decoder.conv_out.weight.data.mul_(0.3)
    return made


@dataclass(frozen=True)
class Variant:
    """What differs between the tiny checkpoints."""

    vae: str = "2.1"
    image_pipeline: bool = False
    """Published as WanImageToVideoPipeline."""
    scheduler: Any = UniPCMultistepScheduler
    scheduler_config: dict[str, Any] = field(default_factory=lambda: FLOW)
    transformer: dict[str, Any] = field(default_factory=dict)
    clip: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


CONCATENATED = Variant(image_pipeline=True, transformer={"in_channels": 2 * LATENT + 4})
WITH_CLIP = replace(
    CONCATENATED,
    clip=True,
    transformer={**CONCATENATED.transformer, "image_dim": CLIP_WIDTH, "added_kv_proj_dim": HEADS * HEAD_DIM},
)
VARIANTS = {
    "t2v": Variant(),
    "t2v, euler": Variant(scheduler=FlowMatchEulerDiscreteScheduler, scheduler_config={"shift": 3.0}),
    "t2v, dpm++": Variant(
        scheduler=DPMSolverMultistepScheduler, scheduler_config={**FLOW, "algorithm_type": "dpmsolver++"}
    ),
    "ti2v": Variant(vae="2.2", settings={"expand_timesteps": True}),
    "t2v-a14b": Variant(settings={"boundary_ratio": 0.875}),
    "i2v-a14b": replace(CONCATENATED, settings={"boundary_ratio": 0.9}),
    "i2v": WITH_CLIP,
    "flf2v": replace(WITH_CLIP, transformer={**WITH_CLIP.transformer, "pos_embed_seq_len": 2 * CLIP_TOKENS}),
    "pocket": Variant(vae="pocket", settings={"expand_timesteps": True}),
}


def transformer(seed: int, **changes: Any) -> WanTransformer3DModel:
    torch.manual_seed(seed)
    sizes = {"num_attention_heads": HEADS, "attention_head_dim": HEAD_DIM, "ffn_dim": 32, "num_layers": 2}
    channels = {"in_channels": LATENT, "out_channels": LATENT, "text_dim": TEXT, "freq_dim": 16}
    made = noisier(WanTransformer3DModel(**{**sizes, **channels, **changes}))
    for block in made.blocks:  # a few words among hundreds of tokens of padding must be found, and be heard
        block.attn2.norm_q.weight.data.mul_(3.0)
        block.attn2.norm_k.weight.data.mul_(3.0)
        block.attn2.to_out[0].weight.data.mul_(3.0)
    return made


def components(variant: Variant) -> dict[str, Any]:
    """Every part of a pipeline."""
    torch.manual_seed(3)
    tokenizer = t5_tokenizer()
    sizes = {"d_model": TEXT, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    parts = {
        "tokenizer": tokenizer,
        "text_encoder": noisier(UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), **sizes))),
        "vae": vae(variant.vae),
        "scheduler": variant.scheduler(**variant.scheduler_config),
        "transformer": transformer(1, **variant.transformer),
    }
    if "boundary_ratio" in variant.settings:
        parts["transformer_2"] = transformer(2, **variant.transformer)
    if variant.clip:
        config = CLIPVisionConfig(
            hidden_size=CLIP_WIDTH, intermediate_size=20, num_hidden_layers=3, num_attention_heads=2, image_size=8,
            patch_size=4,
        )  # fmt: skip
        parts["image_encoder"] = noisier(CLIPVisionModel(config))
        parts["image_processor"] = CLIPImageProcessor(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    return parts


def write(name: str, folder: Path) -> Path:
    variant = VARIANTS[name]
    pipeline = WanImageToVideoPipeline if variant.image_pipeline else WanPipeline
    pipeline(**components(variant), **variant.settings).save_pretrained(folder)
    return folder


def load_ours(folder: Path, dtype: torch.dtype = torch.float32) -> Wan:
    return load(
        Checkpoint(name=folder.name, folder=folder),
        device=torch.device("cpu"),
        dtype=dtype,
        attention=attention,
        make_schedule=make_schedule,
    )


def finish(group: list[Trajectory], wan: Wan) -> None:
    while left := [trajectory for trajectory in group if not trajectory.done]:
        advance(left, wan)


def generate(wan: Wan, request: Request, *images: np.ndarray) -> Tensor:
    """Words (and pictures) to pixels THWC, through the trajectory."""
    trajectory = start(wan, request, *images)
    finish([trajectory], wan)
    return wan.decode(trajectory.plan, trajectory.conditioning, trajectory.latents)
