"""Facts of HiDream-I1 checkpoints: which variant a folder holds, what it can do, and its published defaults."""

from __future__ import annotations

from typing import Any

from petzval.errors import CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.hidream.conditioning import MAX_PROMPT_TOKENS
from petzval.models.hidream.dit import HiDreamConfig
from petzval.types import DiTSpec, ModelSpec, TaskDefaults

FAMILY = "hidream"
LATENT_SIDE = 128
"""Latent pixels along one side of the published default picture."""

STEPS = {"full": 50, "dev": 28, "fast": 16}
GUIDANCE = {"full": 5.0, "dev": 1.0, "fast": 1.0}
"""Dev and Fast are published with guidance 0, by which diffusers means the conditional branch alone: 1 here."""

_MLPS = (
    *(
        f"{stack}.*.block.ff_i.{part}"
        for stack in ("double_stream_blocks", "single_stream_blocks")
        for part in ("shared_experts", "experts.*")
    ),
    "double_stream_blocks.*.block.ff_t",
)
_STACKS = ("double_stream_blocks", "single_stream_blocks")
DIT = DiTSpec(
    blocks=_STACKS,
    # Queries and keys are normed over all heads at once, so attention is not split by heads.
    column_split=tuple(f"{mlp}.{name}" for mlp in _MLPS for name in ("w1", "w3")),
    row_split=tuple(f"{mlp}.w2" for mlp in _MLPS),
    keep_full_precision=(
        "x_embedder", "caption_projection", "t_embedder", "p_embedder", "double_stream_blocks.*.block.adaLN_modulation",
        "single_stream_blocks.*.block.adaLN_modulation", "double_stream_blocks.*.block.ff_i.gate",
        "single_stream_blocks.*.block.ff_i.gate", "final_layer",
    ),
    sequence_inputs=("x_BLC", "prompt", "rope"),
)  # fmt: skip


def stride(config: dict[str, Any]) -> int:
    """Pixels along one side of a latent pixel: every level of the VAE but the last halves the picture."""
    return int(2 ** (len(config["block_out_channels"]) - 1))


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What the checkpoint's configs say of it. Reads no weights. Raises CheckpointError when it is not HiDream-I1."""
    config = transformer_config(checkpoint)
    found = variant(checkpoint.scheduler_config())
    pixels = stride(checkpoint.config("vae"))
    common: dict[str, Any] = {
        "width": LATENT_SIDE * pixels,
        "height": LATENT_SIDE * pixels,
        "num_inference_steps": STEPS[found],
        "guidance_scale": GUIDANCE[found],
    }
    published = "unipc" if found == "full" else "euler-stochastic"
    return ModelSpec(
        family=FAMILY,
        variant=found,
        licence="MIT",
        tasks={
            "text-to-image": TaskDefaults(**common),
            # Nobody publishes image to image for HiDream-I1: the strength is ours.
            "image-to-image": TaskDefaults(**common, strength=0.6, max_images=1),
        },
        dit=DIT,
        prediction="velocity",
        samplers=tuple(dict.fromkeys((published, "euler", "unipc", "dpm++2m"))),
        size_multiple=pixels * config.patch_size,
        frame_stride=1,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        parameters=checkpoint.parameters(),
    )


def variant(scheduler: dict[str, Any]) -> str:
    """The three share one layout and differ in their schedulers: LCM with shift 6 is Dev's, with shift 3 Fast's."""
    if scheduler.get("_class_name") != "FlowMatchLCMScheduler":
        return "full"
    return "dev" if scheduler.get("shift", 1.0) > 3.0 else "fast"


def transformer_config(checkpoint: Checkpoint) -> HiDreamConfig:
    """The transformer's config, once every component is what it must be. Raises CheckpointError."""
    for component, wanted in {
        "transformer": "HiDreamImageTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "CLIPTextModelWithProjection",
        "text_encoder_2": "CLIPTextModelWithProjection",
        "text_encoder_3": "T5EncoderModel",
        "text_encoder_4": "LlamaForCausalLM",
    }.items():
        _, found = checkpoint.components().get(component, ("", "none"))
        if found != wanted:
            raise CheckpointError(f"{checkpoint.name}: {component} must be {wanted}, it is {found}")
    config = HiDreamConfig.from_dict(checkpoint.config("transformer"))
    channels, layers = checkpoint.config("vae")["latent_channels"], max(config.llama_layers) + 1
    if config.in_channels != channels:
        raise CheckpointError(f"{checkpoint.name}: transformer in_channels is {config.in_channels}, not {channels}")
    if checkpoint.config("text_encoder_4")["num_hidden_layers"] < layers:
        raise CheckpointError(f"{checkpoint.name}: text_encoder_4 has fewer than the {layers} layers that are read")
    return config
