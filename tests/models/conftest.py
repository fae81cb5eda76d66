"""Tiny random checkpoints, written by diffusers and transformers themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers

from petzval.models.checkpoint import Checkpoint

FLUX_INDEX = {
    "_class_name": "FluxPipeline",
    "_diffusers_version": "0.42.1",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "feature_extractor": [None, None],
    "image_encoder": ["transformers", "CLIPVisionModelWithProjection"],
}

CLIP = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "projection_dim": 16,
}


def tiny_flux() -> Any:
    return diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )


@pytest.fixture(scope="session")
def flux_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole FluxPipeline folder; its transformer is in shards of at most 30 kB."""
    folder = tmp_path_factory.mktemp("flux")
    torch.manual_seed(7)
    transformers.utils.logging.disable_progress_bar()
    tiny_flux().save_pretrained(folder / "transformer", max_shard_size="30KB")
    diffusers.AutoencoderKL(block_out_channels=(32,), latent_channels=1).save_pretrained(folder / "vae")
    diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    text = transformers.CLIPTextConfig(**CLIP, vocab_size=100, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    transformers.CLIPTextModel(text).save_pretrained(folder / "text_encoder")
    vision = transformers.CLIPVisionConfig(**CLIP, image_size=8, patch_size=4)
    transformers.CLIPVisionModelWithProjection(vision).save_pretrained(folder / "image_encoder")
    t5 = transformers.T5Config(d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, vocab_size=10)
    transformers.T5EncoderModel(t5).save_pretrained(folder / "text_encoder_2")
    merges = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "f": 3, "o": 4, "x</w>": 5}
    transformers.CLIPTokenizer(vocab=merges, merges=[]).save_pretrained(folder / "tokenizer")
    pieces = [(piece, 0.0) for piece in ("<pad>", "</s>", "<unk>", "\u2581a", "\u2581fox")]
    transformers.T5TokenizerFast(vocab=pieces, extra_ids=0).save_pretrained(folder / "tokenizer_2")
    (folder / "model_index.json").write_text(json.dumps(FLUX_INDEX))
    return folder


@pytest.fixture
def flux_checkpoint(flux_template: Path, tmp_path: Path) -> Checkpoint:
    """A copy of the FluxPipeline folder that the test may damage."""
    shutil.copytree(flux_template, tmp_path / "flux")
    return Checkpoint(name="tiny-flux", folder=tmp_path / "flux")


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Checkpoint]:
    """A checkpoint whose only component, `dit`, is saved by `save(folder)`."""

    def make(save: Callable[[Path], Any]) -> Checkpoint:
        folder = tmp_path / "checkpoint"
        (folder / "dit").mkdir(parents=True)
        save(folder / "dit")
        index = {"_class_name": "FooPipeline", "dit": ["diffusers", "Foo"]}
        (folder / "model_index.json").write_text(json.dumps(index))
        return Checkpoint(name="foo", folder=folder)

    return make
