"""Writes what a run has learned as a checkpoint in the diffusers layout, which diffusers loads too."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from petzval.media.files import atomic_write
from petzval.models.wan.dit import WanConfig
from petzval.models.weights import save_model_index, save_weights
from petzval.train.config import SamplingConfig, TrainConfig
from petzval.train.preview import averaged
from petzval.train.state import RunState

COMPONENTS: dict[str, tuple[str | None, str | None]] = {
    "scheduler": ("diffusers", "UniPCMultistepScheduler"),
    "text_encoder": ("transformers", "UMT5EncoderModel"),
    "tokenizer": ("transformers", "PreTrainedTokenizerFast"),
    "transformer": ("diffusers", "WanTransformer3DModel"),
    "transformer_2": (None, None),
    "vae": ("diffusers", "AutoencoderKLWan"),
}


def export(config: TrainConfig, folder: Path, state: RunState, tokenizer: Any, vae: Any) -> None:
    """Write the averaged weights, text encoder, tokenizer, VAE, sampler and facts to `folder`, part by part; each part
    is replaced in one move."""
    model: Any = state.model
    with averaged(state):
        record = {"_class_name": "WanTransformer3DModel", **_plain(model.dit.config)}
        save_weights(model.dit, folder / "transformer", config=record)
        encoder = model.text_encoder
        # Where a run started from is nothing of what it made.
        record = {**encoder.config.to_dict(), "_name_or_path": ""}
        save_weights(encoder, folder / "text_encoder", config=record, stem="model")
    _save_tokenizer(tokenizer, folder / "tokenizer")
    save_vae(vae, folder / "vae")
    _write_json(folder / "scheduler" / "scheduler_config.json", scheduler_config(config.sampling))
    _write_json(folder / "petzval.json", facts(config))
    save_model_index(
        folder,
        class_name="WanPipeline",
        components=COMPONENTS,
        settings={"expand_timesteps": True, "boundary_ratio": None},
    )


def save_vae(vae: Any, folder: Path) -> None:
    """An autoencoder in the diffusers layout, there whole or not at all."""
    save_weights(vae, folder, config={"_class_name": "AutoencoderKLWan", **_plain_vae(vae)})


def scheduler_config(sampling: SamplingConfig) -> dict[str, Any]:
    """UniPC for flow matching, with the shift that suits this checkpoint."""
    return {
        "_class_name": "UniPCMultistepScheduler",
        "num_train_timesteps": 1000,
        "prediction_type": "flow_prediction",
        "use_flow_sigmas": True,
        "flow_shift": sampling.flow_shift,
        "solver_order": 2,
        "solver_type": "bh2",
        "predict_x0": True,
        "lower_order_final": True,
        "final_sigmas_type": "zero",
        "timestep_spacing": "linspace",
    }


def facts(config: TrainConfig) -> dict[str, Any]:
    """What the checkpoint says of itself beyond the published layout."""
    sampling, side = config.sampling, config.data.canvas
    common = {
        "width": side,
        "height": side,
        "num_inference_steps": sampling.num_inference_steps,
        "guidance_scale": sampling.guidance_scale,
    }
    clip = {**common, "num_frames": config.data.num_frames, "fps": sampling.fps}
    return {
        "variant": config.name,
        "licence": "Apache-2.0",
        "square": True,
        "defaults": {
            "text-to-image": common,
            "image-to-image": {**common, "strength": sampling.strength},
            "text-to-video": clip,
            "image-to-video": clip,
        },
        "training": config.digest("start", "data", "autoencoder", "text", "transformer", "flow", "optim"),
    }


def _plain(config: WanConfig) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(config)))


def _plain_vae(vae: Any) -> dict[str, Any]:
    return {key: value for key, value in dict(vae.config).items() if not key.startswith("_")}


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    # The class that every version of transformers knows; the writer names its own.
    path = folder / "tokenizer_config.json"
    record = json.loads(path.read_text())
    record["tokenizer_class"] = "PreTrainedTokenizerFast"
    for name in ("is_local", "local_files_only"):  # how it was read, not what it is
        record.pop(name, None)
    _write_json(path, record)


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())
