"""Tiny random FLUX.1 checkpoints in the diffusers layout, written by diffusers itself, with real tokenizers."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
)
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from petzval.models.checkpoint import Checkpoint
from petzval.models.flux import Flux, load
from petzval.sampling.schedules import make_schedule
from petzval.sampling.trajectory import advance
from petzval.types import Request
from tests.models.drive import start

POOLED, TEXT = 12, 16


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def clip_tokenizer() -> CLIPTokenizer:
    """Byte-level letters, with and without the end of a word, and a few merges."""
    letters = sorted(ByteLevel.alphabet())
    merges = ["a t</w>", "t h", "f o", "fo x</w>", "th e</w>"]
    words = [*letters, *(f"{c}</w>" for c in letters), *(m.replace(" ", "") for m in merges)]
    vocab = {word: index for index, word in enumerate(["<|startoftext|>", *words, "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=[tuple(m.split()) for m in merges], model_max_length=77)


def t5_tokenizer() -> T5Tokenizer:
    """Single characters and a few words, scored."""
    pieces = [(c, -5.0) for c in string.ascii_letters + string.digits + string.punctuation]
    pieces += [("\u2581", -3.0), ("\u2581fox", -4.0), ("\u2581the", -4.0), ("ing", -4.5)]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def components(*, guidance_embeds: bool, dynamic: bool, transformer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Every part of a pipeline. Weights are noisier than an init, so that every number shows in the pixels."""
    torch.manual_seed(3)
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(clip), hidden_size=POOLED, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=77, bos_token_id=clip.bos_token_id, eos_token_id=clip.eos_token_id,
            pad_token_id=clip.pad_token_id,
        )
    )  # fmt: skip
    text_encoder_2 = T5EncoderModel(
        T5Config(vocab_size=len(t5), d_model=TEXT, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0)
    )
    model = FluxTransformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=12, num_attention_heads=2,
        joint_attention_dim=TEXT, pooled_projection_dim=POOLED, guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 4, 4), **(transformer or {}),
    )  # fmt: skip
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(4, 4, 4, 4), layers_per_block=1, latent_channels=4, norm_num_groups=2,
        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
        mid_block_add_attention=False,
    )  # fmt: skip
    with torch.no_grad():
        for part in (text_encoder, text_encoder_2, model, vae):
            for weight in part.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        vae.decoder.conv_out.weight.mul_(0.5)  # keeps pixels inside [0, 1], where clamping hides nothing
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dynamic, shift=3.0 if dynamic else 1.0),
        "text_encoder": text_encoder.eval(),
        "text_encoder_2": text_encoder_2.eval(),
        "tokenizer": clip,
        "tokenizer_2": t5,
        "transformer": model.eval(),
        "vae": vae.eval(),
    }


VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dev": (FluxPipeline, {"guidance_embeds": True, "dynamic": True}),
    "schnell": (FluxPipeline, {"guidance_embeds": False, "dynamic": False}),
    "kontext": (FluxKontextPipeline, {"guidance_embeds": True, "dynamic": True}),
}


def write(variant: str, folder: Path) -> Path:
    pipeline, options = VARIANTS[variant]
    pipeline(**components(**options)).save_pretrained(folder)
    return folder


def load_ours(folder: Path, dtype: torch.dtype = torch.float32) -> Flux:
    return load(
        Checkpoint(name=folder.name, folder=folder),
        device=torch.device("cpu"),
        dtype=dtype,
        attention=attention,
        make_schedule=make_schedule,
    )


def generate(flux: Flux, request: Request, *images: Any) -> Tensor:
    """Words (and pictures) to pixels HWC, through the trajectory."""
    trajectory = start(flux, request, *images)
    while not trajectory.done:
        advance([trajectory], flux)
    return flux.decode(trajectory.plan, trajectory.conditioning, trajectory.latents)[0]


def psnr(a: Tensor, b: Tensor) -> float:
    error = (a.double() - b.double()).square().mean()
    return float("inf") if error == 0 else (-10 * error.log10()).item()
