"""Facts of FLUX.1 checkpoints: which variant a folder holds, what it can do, and its published defaults."""

from __future__ import annotations

from typing import Any

from petzval.errors import CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.flux import tokens, vae
from petzval.models.flux.dit import FluxConfig
from petzval.types import DiTSpec, ModelSpec, Task, TaskDefaults

FAMILY = "flux"

LICENCES = {
    "dev": "FLUX.1 [dev] Non-Commercial License",
    "kontext": "FLUX.1 [dev] Non-Commercial License",
    "schnell": "Apache-2.0",
}
MAX_PROMPT_TOKENS = {"dev": 512, "kontext": 512, "schnell": 256}

LATENT_SIDE = 128
"""Latent pixels along one side of the published default picture."""

DIT = DiTSpec(
    blocks=("transformer_blocks", "single_transformer_blocks"),
    column_split=(
        "transformer_blocks.*.attn.to_q",
        "transformer_blocks.*.attn.to_k",
        "transformer_blocks.*.attn.to_v",
        "transformer_blocks.*.attn.add_q_proj",
        "transformer_blocks.*.attn.add_k_proj",
        "transformer_blocks.*.attn.add_v_proj",
        "transformer_blocks.*.ff.net.0.proj",
        "transformer_blocks.*.ff_context.net.0.proj",
        "single_transformer_blocks.*.attn.to_q",
        "single_transformer_blocks.*.attn.to_k",
        "single_transformer_blocks.*.attn.to_v",
        "single_transformer_blocks.*.proj_mlp",
    ),
    row_split=(
        "transformer_blocks.*.attn.to_out.0",
        "transformer_blocks.*.attn.to_add_out",
        "transformer_blocks.*.ff.net.2",
        "transformer_blocks.*.ff_context.net.2",
        # Its input is attention and mlp side by side: each part is split on its own.
        "single_transformer_blocks.*.proj_out",
    ),
    keep_full_precision=(
        "x_embedder",
        "context_embedder",
        "time_text_embed",
        "transformer_blocks.*.norm1",
        "transformer_blocks.*.norm1_context",
        "single_transformer_blocks.*.norm",
        "norm_out",
        "proj_out",
    ),
    sequence_inputs=("x_BLC", "prompt_BSD", "x_rope", "prompt_rope"),
)


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What the checkpoint's configs say of it. Reads no weights. Raises CheckpointError when it is not FLUX.1."""
    config = transformer_config(checkpoint)
    variant = _variant(checkpoint.class_name, config)
    stride = vae.stride(checkpoint.config("vae"))
    return ModelSpec(
        family=FAMILY,
        variant=variant,
        licence=LICENCES[variant],
        tasks=_tasks(variant, LATENT_SIDE * stride, config),
        dit=DIT,
        prediction="velocity",
        samplers=_samplers(checkpoint.scheduler_config()),
        size_multiple=stride * tokens.PATCH,
        frame_stride=1,
        max_prompt_tokens=MAX_PROMPT_TOKENS[variant],
        parameters=checkpoint.parameters(),
    )


def transformer_config(checkpoint: Checkpoint) -> FluxConfig:
    """The transformer's config, once every component fits it. Raises CheckpointError."""
    for component, wanted in {
        "transformer": "FluxTransformer2DModel",
        "vae": "AutoencoderKL",
        "text_encoder": "CLIPTextModel",
        "text_encoder_2": "T5EncoderModel",
        "scheduler": "FlowMatchEulerDiscreteScheduler",
    }.items():
        _, found = checkpoint.components().get(component, ("", "none"))
        if found != wanted:
            raise CheckpointError(f"{checkpoint.name}: {component} must be {wanted}, it is {found}")
    config = FluxConfig.from_dict(checkpoint.config("transformer"))
    _fits(
        checkpoint, "in_channels", config.in_channels, tokens.PATCH**2 * _number(checkpoint, "vae", "latent_channels")
    )
    _fits(checkpoint, "out_channels", config.out_channels or config.in_channels, config.in_channels)
    pooled = _number(checkpoint, "text_encoder", "hidden_size")
    _fits(checkpoint, "pooled_projection_dim", config.pooled_projection_dim, pooled)
    _fits(
        checkpoint, "joint_attention_dim", config.joint_attention_dim, _number(checkpoint, "text_encoder_2", "d_model")
    )
    return config


def _variant(class_name: str, config: FluxConfig) -> str:
    if class_name == "FluxKontextPipeline":
        return "kontext"
    return "dev" if config.guidance_embeds else "schnell"


def _samplers(scheduler_config: dict[str, Any]) -> tuple[str, ...]:
    published = "euler-stochastic" if scheduler_config.get("stochastic_sampling") else "euler"
    return tuple(dict.fromkeys((published, "euler", "unipc", "dpm++2m")))


def _tasks(variant: str, side: int, config: FluxConfig) -> dict[Task, TaskDefaults]:
    """Published: the pipelines' own defaults, and the model cards' steps and guidance for schnell and Kontext."""
    common: dict[str, Any] = {"width": side, "height": side, "guidance_scale": 1.0}
    common["num_inference_steps"] = 4 if variant == "schnell" else 28

    def embedded(value: float) -> float | None:
        return value if config.guidance_embeds else None

    if variant == "kontext":
        edit = TaskDefaults(**common, embedded_guidance=embedded(2.5), max_images=1)
        return {"text-to-image": TaskDefaults(**common, embedded_guidance=embedded(2.5)), "image-to-image": edit}
    return {
        "text-to-image": TaskDefaults(**common, embedded_guidance=embedded(3.5)),
        "image-to-image": TaskDefaults(**common, embedded_guidance=embedded(7.0), strength=0.6, max_images=1),
    }


def _number(checkpoint: Checkpoint, component: str, key: str) -> int:
    value = checkpoint.config(component).get(key)
    if not isinstance(value, int):
        raise CheckpointError(f"{checkpoint.name}: {component}/config.json has no number {key}")
    return value


def _fits(checkpoint: Checkpoint, name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise CheckpointError(
            f"{checkpoint.name}: transformer {name} is {found}, but its other components need {wanted}"
        )
