"""Facts of Wan checkpoints: which variant a folder holds, what it can do, and its published defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from petzval.errors import BadRequestError, CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.validate import complete
from petzval.models.wan.dit import WanConfig
from petzval.types import DiTSpec, InputImage, ModelSpec, Request, Task, TaskDefaults

FAMILY = "wan"
LICENCE = "Apache-2.0"
MAX_PROMPT_TOKENS = 512
FACTS_FILE = "petzval.json"
"""Beside model_index.json: what a checkpoint that is not one of the published says of itself (licence, defaults)."""
OWN_FACTS = {"variant", "licence", "square", "defaults", "training"}
"""What FACTS_FILE may hold; `training` is the digest of the recipe, for the reader."""

DIT = DiTSpec(
    blocks=("blocks",),
    column_split=(
        "blocks.*.attn1.to_q",
        "blocks.*.attn1.to_k",
        "blocks.*.attn1.to_v",
        "blocks.*.attn2.to_q",
        "blocks.*.attn2.to_k",
        "blocks.*.attn2.to_v",
        "blocks.*.attn2.add_k_proj",
        "blocks.*.attn2.add_v_proj",
        "blocks.*.ffn.net.0.proj",
    ),
    row_split=("blocks.*.attn1.to_out.0", "blocks.*.attn2.to_out.0", "blocks.*.ffn.net.2"),
    keep_full_precision=("patch_embedding", "condition_embedder", "*.norm*", "proj_out"),
    sequence_inputs=("latents_BCTHW",),
)

KEEP_FLOAT32 = ("*time_embedder*", "*scale_shift_table", "*.norm1.*", "*.norm2.*", "*.norm3.*")
"""Parameters that stay float32 whatever the dtype, as published."""


@dataclass(frozen=True, kw_only=True)
class WanLayout:
    """How a checkpoint's parts fit together, read from its configs."""

    variant: str
    """"t2v", "ti2v", "i2v"; two experts add "-a14b"."""
    config: WanConfig
    experts: tuple[str, ...]
    boundary: float | None
    """Timestep below which the second expert computes."""
    expand_timesteps: bool
    """A given first frame is kept clean and told timestep 0 (TI2V), instead of extra channels."""
    temporal_stride: int
    spatial_stride: int
    latent_channels: int

    @property
    def concatenates_image(self) -> bool:
        return self.config.in_channels > self.latent_channels

    @property
    def needs_last_image(self) -> bool:
        """Its positions of CLIP tokens are those of a first and a last picture."""
        return self.config.pos_embed_seq_len is not None

    @property
    def max_images(self) -> int:
        """Of image-to-video: a last picture too where it is needed, or where no CLIP tokens tell of the first alone."""
        if not self.concatenates_image:
            return int(self.expand_timesteps)
        return 2 if self.needs_last_image or self.config.image_dim is None else 1


def layout(checkpoint: Checkpoint) -> WanLayout:
    """Raises CheckpointError when components do not fit Wan, or each other."""
    experts = _experts(checkpoint)
    config = WanConfig.from_json(checkpoint.config("transformer"))
    vae, settings = checkpoint.config("vae"), checkpoint.settings()
    channels, temporal = int(vae.get("z_dim", 16)), int(vae.get("scale_factor_temporal", 4))
    _check_config(checkpoint, config, channels=channels, temporal=temporal)
    ratio, expand = settings.get("boundary_ratio"), bool(settings.get("expand_timesteps", False))
    if (ratio is not None) != (len(experts) == 2):
        raise CheckpointError(f"{checkpoint.name}: two experts need a boundary_ratio, and one must not have it")
    if len(experts) == 2 and WanConfig.from_json(checkpoint.config("transformer_2")) != config:
        raise CheckpointError(f"{checkpoint.name}: transformer and transformer_2 have different configs")
    concatenates = config.in_channels > channels
    if expand and (concatenates or len(experts) == 2):
        raise CheckpointError(f"{checkpoint.name}: expand_timesteps is for one expert without a picture's channels")
    kind = "i2v" if concatenates else "ti2v" if expand else "t2v"
    train_timesteps = int(checkpoint.scheduler_config().get("num_train_timesteps", 1000))
    return WanLayout(
        variant=kind + ("-a14b" if len(experts) == 2 else ""),
        config=config,
        experts=experts,
        boundary=None if ratio is None else float(ratio) * train_timesteps,
        expand_timesteps=expand,
        temporal_stride=temporal,
        spatial_stride=int(vae.get("scale_factor_spatial", 8)),
        latent_channels=channels,
    )


def _experts(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The transformers, once every component is of Wan's class. Raises CheckpointError."""
    components = checkpoint.components()
    experts = ("transformer", "transformer_2") if "transformer_2" in components else ("transformer",)
    wanted = {**dict.fromkeys(experts, "WanTransformer3DModel"), "vae": "AutoencoderKLWan"}
    for name, cls in {**wanted, "text_encoder": "UMT5EncoderModel"}.items():
        _, found = components.get(name, ("", "none"))
        if found != cls:
            raise CheckpointError(f"{checkpoint.name}: {name} must be {cls}, it is {found}")
    return experts


def _check_config(checkpoint: Checkpoint, config: WanConfig, *, channels: int, temporal: int) -> None:
    """Raises CheckpointError when the transformer does not fit the components around it."""
    # The autoencoder encodes clips in groups of 4 frames, so only such a clip has latents of the sample's length.
    with_picture = {2 * channels + temporal} if temporal == 4 else set()
    if config.out_channels != channels or config.in_channels not in {channels} | with_picture:
        taken = " or ".join(map(str, sorted({channels} | with_picture)))
        raise CheckpointError(
            f"{checkpoint.name}: transformer takes {config.in_channels} channels and gives {config.out_channels}; "
            f"its vae has {channels}, so it must take {taken} and give {channels}"
        )
    t, h, w = config.patch_size
    if t != 1 or h != w:
        raise CheckpointError(f"{checkpoint.name}: patches must be square and one frame deep, got {t} x {h} x {w}")
    fits: list[tuple[str, Any, Any]] = [("text_dim", config.text_dim, checkpoint.config("text_encoder").get("d_model"))]
    if config.image_dim is not None:
        if config.in_channels == channels:
            raise CheckpointError(f"{checkpoint.name}: a transformer with image_dim must take a picture's channels too")
        fits.append(("image_dim", config.image_dim, checkpoint.config("image_encoder").get("hidden_size")))
    image_width = None if config.image_dim is None else config.width
    fits.append(("added_kv_proj_dim", config.added_kv_proj_dim, image_width))
    for name, found, needed in fits:
        if found != needed:
            raise CheckpointError(
                f"{checkpoint.name}: transformer {name} is {found}, but its other components need {needed}"
            )


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """What the checkpoint's configs say of it. Reads no weights. Raises CheckpointError when it is not Wan."""
    parts = layout(checkpoint)
    facts = own_facts(checkpoint)
    found = ModelSpec(
        family=FAMILY,
        variant=str(facts.get("variant", parts.variant)),
        licence=str(facts.get("licence", LICENCE)),
        tasks=_with_own(checkpoint, _tasks(parts), facts.get("defaults", {})),
        dit=DIT,
        prediction="velocity",
        samplers=_samplers(checkpoint.scheduler_config()),
        size_multiple=parts.spatial_stride * parts.config.patch_size[1],
        frame_stride=parts.temporal_stride,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        parameters=checkpoint.parameters(),
    )
    _check_own_defaults(checkpoint, found, facts.get("defaults", {}))
    return found


def own_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the checkpoint says of itself in FACTS_FILE. Raises CheckpointError when that is not understood."""
    facts = checkpoint.extra(FACTS_FILE)
    if unknown := sorted(set(facts) - OWN_FACTS):
        raise CheckpointError(f"{checkpoint.name}: {FACTS_FILE} has facts that are not known: {', '.join(unknown)}")
    return facts


def _samplers(scheduler_config: dict[str, Any]) -> tuple[str, ...]:
    published = {
        "UniPCMultistepScheduler": "unipc",
        "DPMSolverMultistepScheduler": "dpm++2m",
        "FlowMatchEulerDiscreteScheduler": "euler",
    }.get(str(scheduler_config.get("_class_name")))
    if published is None:
        raise CheckpointError(f"Wan has no sampler for scheduler {scheduler_config.get('_class_name')!r}")
    return tuple(dict.fromkeys((published, "euler", "unipc", "dpm++2m")))


def _tasks(parts: WanLayout) -> dict[Task, TaskDefaults]:
    """As published: sizes, steps, guidance and fps of the model cards' own examples."""
    common: dict[str, Any] = {
        "t2v": {"width": 832, "height": 480, "num_inference_steps": 50, "guidance_scale": 5.0},
        "ti2v": {"width": 1280, "height": 704, "num_inference_steps": 50, "guidance_scale": 5.0},
        "i2v": {"width": 832, "height": 480, "num_inference_steps": 50, "guidance_scale": 5.0},
        "t2v-a14b": {
            "width": 1280, "height": 720, "num_inference_steps": 40, "guidance_scale": 4.0, "guidance_scale_2": 3.0,
        },
        "i2v-a14b": {
            "width": 832, "height": 480, "num_inference_steps": 40, "guidance_scale": 3.5, "guidance_scale_2": 3.5,
        },
    }[parts.variant]  # fmt: skip
    clip: dict[str, Any] = {"num_frames": 121, "fps": 24} if parts.variant == "ti2v" else {"num_frames": 81, "fps": 16}
    if parts.concatenates_image:
        return {"image-to-video": TaskDefaults(**common, **clip, max_images=parts.max_images)}
    tasks: dict[Task, TaskDefaults] = {
        "text-to-video": TaskDefaults(**common, **clip),
        "text-to-image": TaskDefaults(**common),
        "image-to-image": TaskDefaults(**common, strength=0.8, max_images=1),
    }
    if parts.expand_timesteps:
        tasks["image-to-video"] = TaskDefaults(**common, **clip, max_images=parts.max_images)
    return tasks


def _with_own(
    checkpoint: Checkpoint, tasks: dict[Task, TaskDefaults], own: dict[str, dict[str, Any]]
) -> dict[Task, TaskDefaults]:
    """The defaults that the checkpoint states itself, over the published ones of its layout."""
    try:
        if unknown := sorted(set(own) - set(tasks)):
            raise CheckpointError(
                f"{checkpoint.name}: {FACTS_FILE} has defaults of {', '.join(unknown)}; it can do {', '.join(tasks)}"
            )
        return {task: dataclasses.replace(defaults, **own.get(task, {})) for task, defaults in tasks.items()}
    except (TypeError, AttributeError) as error:
        raise CheckpointError(f"{checkpoint.name}: {FACTS_FILE} has defaults that are not one: {error}") from None


def _check_own_defaults(checkpoint: Checkpoint, found: ModelSpec, own: dict[str, Any]) -> None:
    """A request that leaves everything out must be one that can be made."""
    for task, defaults in found.tasks.items():
        if task in own:
            images = (InputImage(sha256=""),) * defaults.max_images
            try:
                complete(Request(task=task, prompt="", images=images), found)
            except BadRequestError as error:
                raise CheckpointError(f"{checkpoint.name}: {FACTS_FILE}, defaults of {task}: {error}") from None
