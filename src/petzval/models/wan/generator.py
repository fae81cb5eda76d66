"""One loaded Wan checkpoint: requests to plans, words and pictures to conditioning, latents to velocities to pixels.

Shapes: B batch, C latent channels, T latent frames, H and W latent height and width, L tokens, S text tokens, D width,
N heads, K head width, R timesteps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petzval.errors import BadRequestError
from petzval.models.checkpoint import Checkpoint
from petzval.models.components import load_image_encoder, load_text_encoder, load_tokenizer, load_vae
from petzval.models.family import Attention, Conditioning, MakeSchedule, Probe
from petzval.models.validate import complete, fit_size
from petzval.models.wan import spec as facts
from petzval.models.wan.conditioning import ImageEncoder, TextEncoder, condition_latents
from petzval.models.wan.dit import Modulation, Rope, TextKV, WanDiT
from petzval.models.wan.vae import WanVae
from petzval.models.weights import load_weights
from petzval.types import CheckpointId, ModelSpec, Plan, Prediction, Request, Schedule, Task


@dataclass(frozen=True)
class WanInvariants:
    """What every step of a trajectory reads, by expert, and by guidance branch where branches differ."""

    text: dict[tuple[str, str], list[TextKV]]
    """(expert, branch) -> keys and values of each block: of the prompt's tokens, then one of padding."""
    modulation: dict[str, Modulation]
    """Rows: the schedule's timesteps, then timestep 0."""
    rope: Rope
    experts: tuple[str, ...]
    """Of each step."""
    first_frame: Tensor | None
    """C 1 H W: a given frame, kept clean (TI2V)."""
    condition: Tensor | None
    """Extra channels (I2V)."""

    def batch_key(self, step: int) -> Hashable:
        return self.experts[step], self.first_frame is not None


@dataclass(frozen=True, kw_only=True)
class Wan:
    """Implements models.family.Family. Latents are CTHW float32."""

    spec: ModelSpec
    checkpoint: CheckpointId
    device: torch.device
    dtype: torch.dtype
    layout: facts.WanLayout
    experts: dict[str, WanDiT]
    text_encoder: TextEncoder
    image_encoder: ImageEncoder | None
    vae: WanVae
    scheduler_config: dict[str, Any]
    make_schedule: MakeSchedule
    square: bool
    """Trained on its default size alone: pictures of another shape are scaled to it."""

    @property
    def prediction(self) -> Prediction:
        return self.spec.prediction

    def natural_size(self, task: Task, width: int, height: int) -> tuple[int, int]:
        """The default number of pixels in the picture's shape; the default size where no other was trained."""
        defaults = self.spec.tasks[task]
        if self.square:
            return defaults.width, defaults.height
        return fit_size(width, height, area=defaults.width * defaults.height, multiple=self.spec.size_multiple)

    def plan(self, request: Request) -> Plan:
        filled = complete(request, self.spec)
        self.text_encoder.check("prompt", filled.prompt)
        if filled.negative_prompt is not None:
            self.text_encoder.check("negative_prompt", filled.negative_prompt)
        self._check_images(filled)
        self._check_positions(filled)
        sampler, sigmas, timesteps, first_step = self.make_schedule(
            self.scheduler_config,
            num_inference_steps=filled.num_inference_steps,
            sampler=filled.sampler,
            strength=filled.strength,
        )
        boundary = self.layout.boundary
        experts = tuple(
            "transformer" if boundary is None or timestep >= boundary else "transformer_2" for timestep in timesteps
        )
        scales = {"transformer": filled.guidance_scale, "transformer_2": filled.guidance_scale_2}
        guidance = tuple(float(scales[expert] or 1.0) for expert in experts)
        schedule = Schedule(
            sampler=sampler,
            sigmas=sigmas,
            timesteps=timesteps,
            guidance=guidance,
            experts=experts,
            first_step=first_step,
        )
        return Plan(request=dataclasses.replace(filled, sampler=sampler), checkpoint=self.checkpoint, schedule=schedule)

    def _check_images(self, request: Request) -> None:
        given, stride = len(request.images), self.layout.temporal_stride
        if self.layout.needs_last_image and given != 2:
            raise BadRequestError(f"images: this checkpoint takes 2, the first and the last frame, got {given}")
        if given == 2 and request.num_frames == 1:
            raise BadRequestError(
                f"num_frames must be at least {1 + stride} to begin and end with a given picture, got 1; "
                f"the nearest is {1 + stride}"
            )

    def _check_positions(self, request: Request) -> None:
        """Along each axis the transformer has positions for so many patches."""
        most, parts = self.layout.config.rope_max_seq_len, self.layout
        assert request.width and request.height and request.num_frames
        longest_side, longest_clip = most * self.spec.size_multiple, 1 + (most - 1) * parts.temporal_stride
        for name, value, limit in (
            ("width", request.width, longest_side),
            ("height", request.height, longest_side),
            ("num_frames", request.num_frames, longest_clip),
        ):
            if value > limit:
                raise BadRequestError(f"{name} must be at most {limit}, got {value}; the nearest is {limit}")

    def encode(self, plan: Plan, images: Sequence[np.ndarray], generator: torch.Generator) -> Conditioning:
        request = plan.request
        if len(images) != len(request.images):
            raise BadRequestError(f"images: the plan says {len(request.images)}, got {len(images)}")
        conditioning = {"prompt_embeds": self.text_encoder.encode(request.prompt)}
        if request.negative_prompt is not None:
            conditioning["negative_prompt_embeds"] = self.text_encoder.encode(request.negative_prompt)
        if images:
            conditioning |= self._encode_images(plan, images)
        return conditioning

    def _encode_images(self, plan: Plan, images: Sequence[np.ndarray]) -> Conditioning:
        request = plan.request
        assert request.width and request.height and request.num_frames
        size = {"width": request.width, "height": request.height}
        if request.task == "image-to-image":
            return {"image_latents": self.vae.encode_picture(images[0], **size)}
        if self.layout.expand_timesteps:
            return {"first_frame_latents": self.vae.encode_picture(images[0], **size)}
        stride = self.layout.temporal_stride
        condition = condition_latents(self.vae, images, **size, num_frames=request.num_frames, temporal_stride=stride)
        found = {"condition_latents": condition}
        if self.image_encoder is not None:
            found["image_embeds"] = torch.stack([self.image_encoder.encode(image) for image in images])
        return found

    def latents_shape(self, plan: Plan) -> tuple[int, ...]:
        request, parts = plan.request, self.layout
        assert request.width and request.height and request.num_frames
        frames, stride = (request.num_frames - 1) // parts.temporal_stride + 1, parts.spatial_stride
        return parts.latent_channels, frames, request.height // stride, request.width // stride

    def image_latents(self, plan: Plan, conditioning: Conditioning) -> Tensor:
        return conditioning["image_latents"].to(self.device)

    @torch.no_grad()
    def invariants(self, plan: Plan, conditioning: Conditioning) -> WanInvariants:
        schedule = plan.schedule
        embeds = {"cond": conditioning["prompt_embeds"]}
        if any(scale != 1.0 for scale in schedule.guidance):
            embeds["uncond"] = conditioning["negative_prompt_embeds"]
        image_embeds = conditioning.get("image_embeds")
        if image_embeds is not None:
            image_embeds = image_embeds.to(self.device, self.dtype)
        timesteps = torch.tensor([*schedule.timesteps, 0.0], device=self.device)
        text, modulation = {}, {}
        for expert in dict.fromkeys(schedule.experts):
            dit = self.experts[expert]
            modulation[expert] = dit.modulation(timesteps)
            for branch, prompt in embeds.items():
                padded = torch.cat([prompt, prompt.new_zeros(1, prompt.shape[1])]).to(self.device, self.dtype)
                text[expert, branch] = dit.text_kv(padded[None], image_embeds)
        first_frame, condition = (conditioning.get(name) for name in ("first_frame_latents", "condition_latents"))
        return WanInvariants(
            text=text,
            modulation=modulation,
            rope=self.experts[schedule.experts[0]].rope(self.latents_shape(plan), self.device),
            experts=schedule.experts,
            first_frame=None if first_frame is None else first_frame.to(self.device),
            condition=None if condition is None else condition.to(self.device),
        )

    @torch.no_grad()
    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[WanInvariants]
    ) -> Tensor:
        """Latents BCTHW -> velocity BCTHW, both float32; see models.family.Family."""
        dit, inputs = self._inputs(latents, steps, branches, invariants)
        return dit(*inputs).float()

    @torch.no_grad()
    def probe(
        self,
        name: Probe,
        latents: Tensor,
        steps: Sequence[int],
        branches: Sequence[str],
        invariants: Sequence[WanInvariants],
    ) -> Tensor:
        """Of the first block, BLD; see models.family.Family."""
        dit, inputs = self._inputs(latents, steps, branches, invariants)
        return dit.modulated_input(*inputs[:2]) if name == "modulated-input" else dit.first_residual(*inputs)

    def _inputs(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[WanInvariants]
    ) -> tuple[WanDiT, tuple[Any, ...]]:
        """The expert that these steps are for, and its forward's arguments."""
        first = invariants[0]
        expert = first.experts[steps[0]]
        dit = self.experts[expert]
        told = [[step] for step in steps]
        x_BCTHW = latents
        if first.first_frame is not None:
            given = torch.stack([row.first_frame for row in invariants if row.first_frame is not None])
            x_BCTHW = torch.cat([given, latents[:, :, 1:]], dim=2)
            told = [[-1] + [step] * (latents.shape[2] - 1) for step in steps]
        if first.condition is not None:
            x_BCTHW = torch.cat([x_BCTHW, torch.stack([r.condition for r in invariants if r.condition is not None])], 1)
        taken = [row.modulation[expert].take(rows) for row, rows in zip(invariants, told, strict=True)]
        modulation = Modulation(*(torch.stack(parts) for parts in zip(*taken, strict=True)))
        text, bias_S = join_text(
            [row.text[expert, branch] for row, branch in zip(invariants, branches, strict=True)],
            self.text_encoder.max_tokens,
        )
        return dit, (x_BCTHW.to(self.dtype), modulation, text, first.rope, bias_S)

    def decode(self, plan: Plan, conditioning: Conditioning, latents: Tensor) -> Tensor:
        first_frame = conditioning.get("first_frame_latents")
        if first_frame is not None:
            latents = torch.cat([first_frame.to(latents.device), latents[:, 1:]], dim=1)
        return self.vae.decode(latents)


def join_text(rows: Sequence[list[TextKV]], max_tokens: int) -> tuple[list[TextKV], Tensor | None]:
    """Rows of one batch, each with its tokens and one of padding at its end, as keys and values of one length.

    The transformer was trained on prompts padded to `max_tokens` with equal tokens. n equal keys weigh in a softmax as
    one whose score is raised by log n, so a single key stands for all padding, exactly. Returns that bias per key, or
    None when every row fills all tokens.
    """
    lengths = [row[0].k.shape[1] - 1 for row in rows]
    longest = max(lengths)
    padding = max_tokens - longest
    keys = longest + (1 if padding else 0)

    def fit(x_BSNK: Tensor, length: int) -> Tensor:
        missing = keys - length
        return torch.cat([x_BSNK[:, :length], x_BSNK[:, length:].expand(-1, missing, -1, -1)], dim=1)

    joined = []
    for block in zip(*rows, strict=True):
        image_k, image_v = (
            None if block[0].image_k is None else torch.cat([getattr(kv, name) for kv in block])
            for name in ("image_k", "image_v")
        )
        joined.append(
            TextKV(
                torch.cat([fit(kv.k, length) for kv, length in zip(block, lengths, strict=True)]),
                torch.cat([fit(kv.v, length) for kv, length in zip(block, lengths, strict=True)]),
                image_k,
                image_v,
            )
        )
    if not padding:
        return joined, None
    bias_S = torch.zeros(keys, device=rows[0][0].k.device)
    bias_S[-1] = float(np.log(padding))
    return joined, bias_S


def load(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: Attention,
    make_schedule: MakeSchedule,
) -> Wan:
    """A Wan checkpoint on `device` in `dtype` (the VAE in float32). Raises CheckpointError."""
    spec, parts = facts.spec(checkpoint), facts.layout(checkpoint)
    experts = {}
    for name in parts.experts:
        with torch.device("meta"):
            dit = WanDiT(parts.config, attention)
        load_weights(
            dit, checkpoint, name, dtype=dtype, device=device, keep_float32=facts.KEEP_FLOAT32, rename=_known_leftovers
        )
        experts[name] = dit.requires_grad_(requires_grad=False).eval()
    image_encoder = None
    if parts.config.image_dim is not None:
        image_encoder = ImageEncoder(
            module=load_image_encoder(checkpoint, dtype=dtype, device=device),
            settings=checkpoint.config("image_processor", file_name="preprocessor_config.json"),
            device=device,
        )
    return Wan(
        spec=spec,
        checkpoint=checkpoint.id(facts.FAMILY),
        device=device,
        dtype=dtype,
        layout=parts,
        experts=experts,
        text_encoder=TextEncoder(
            module=load_text_encoder(checkpoint, dtype=dtype, device=device),
            tokenizer=load_tokenizer(checkpoint),
            max_tokens=spec.max_prompt_tokens,
            device=device,
        ),
        image_encoder=image_encoder,
        vae=WanVae(load_vae(checkpoint, dtype=torch.float32, device=device), device),
        scheduler_config=checkpoint.scheduler_config(),
        make_schedule=make_schedule,
        square=bool(facts.own_facts(checkpoint).get("square", False)),
    )


def _known_leftovers(name: str) -> str | None:
    """Published Wan 2.1 image-to-video files carry an unused norm of a query that does not exist."""
    return None if "norm_added_q" in name else name
