"""One loaded HiDream-I1 checkpoint: requests to plans, pictures and words to conditioning, latents to velocities to
pixels.

Shapes: B batch, C latent channels, H and W latent height and width, L image tokens, R timesteps, M modulation numbers.
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
from petzval.models.components import load_text_encoder, load_tokenizer, load_vae
from petzval.models.family import Attention, Conditioning, MakeSchedule, Probe
from petzval.models.hidream import spec as facts
from petzval.models.hidream.conditioning import TextEncoders
from petzval.models.hidream.dit import HiDreamDiT, Prompt, Rope
from petzval.models.pixels import LatentScale, from_pixels, posterior, to_pixels
from petzval.models.validate import complete, fit_size
from petzval.models.weights import load_weights
from petzval.types import CheckpointId, ModelSpec, Plan, Prediction, Request, Schedule, Task


@dataclass(frozen=True)
class HiDreamInvariants:
    """What every step of a trajectory reads, by guidance branch where branches differ."""

    prompts: dict[str, Prompt]
    modulation_RM: dict[str, Tensor]
    rope: Rope
    empty: int

    def batch_key(self, step: int) -> Hashable:
        return None


@dataclass(frozen=True, kw_only=True)
class HiDream:
    """Implements models.family.Family. Latents are CHW float32; the transformer sees them as patches."""

    spec: ModelSpec
    checkpoint: CheckpointId
    device: torch.device
    dit: HiDreamDiT
    encoders: TextEncoders
    vae: Any
    scale: LatentScale
    scheduler_config: dict[str, Any]
    make_schedule: MakeSchedule

    @property
    def prediction(self) -> Prediction:
        return self.spec.prediction

    def natural_size(self, task: Task, width: int, height: int) -> tuple[int, int]:
        """The (width, height) to make from a picture of this size: the default area in the picture's shape, where the
        transformer has tokens for it."""
        defaults, multiple = self.spec.tasks[task], self.spec.size_multiple
        most = min(defaults.width * defaults.height, self.dit.config.max_tokens * multiple**2)
        wide, high = fit_size(width, height, area=most, multiple=multiple)
        while wide != high and wide * high > most:
            wide, high = (wide - multiple, high) if wide > high else (wide, high - multiple)
        return wide, high

    def plan(self, request: Request) -> Plan:
        filled = complete(request, self.spec)
        self.encoders.check("prompt", filled.prompt)
        if filled.negative_prompt is not None:
            self.encoders.check("negative_prompt", filled.negative_prompt)
        self._check_tokens(filled)
        sampler, sigmas, timesteps, first_step = self.make_schedule(
            self.scheduler_config,
            num_inference_steps=filled.num_inference_steps,
            sampler=filled.sampler,
            strength=filled.strength,
        )
        assert filled.guidance_scale is not None
        schedule = Schedule(
            sampler=sampler,
            sigmas=sigmas,
            timesteps=timesteps,
            guidance=(filled.guidance_scale,) * len(timesteps),
            experts=("transformer",) * len(timesteps),
            first_step=first_step,
        )
        return Plan(request=dataclasses.replace(filled, sampler=sampler), checkpoint=self.checkpoint, schedule=schedule)

    def _check_tokens(self, request: Request) -> None:
        rows, columns = self._grid(request)
        most = self.dit.config.max_tokens
        if rows != columns and rows * columns > most:
            raise BadRequestError(
                f"width and height: {request.width} x {request.height} has {rows * columns} tokens; a picture that is "
                f"not square has at most {most}"
            )

    def _grid(self, request: Request) -> tuple[int, int]:
        assert request.width and request.height
        return request.height // self.spec.size_multiple, request.width // self.spec.size_multiple

    @torch.no_grad()
    def encode(self, plan: Plan, images: Sequence[np.ndarray], generator: torch.Generator) -> Conditioning:
        request = plan.request
        if len(images) != len(request.images):
            raise BadRequestError(f"images: the plan says {len(request.images)}, got {len(images)}")
        conditioning = self.encoders.encode(request.prompt)
        if request.negative_prompt is not None:
            negative = self.encoders.encode(request.negative_prompt)
            conditioning |= {f"negative_{name}": value for name, value in negative.items()}
        for image in images:
            assert request.width and request.height
            pixels = to_pixels(image, width=request.width, height=request.height).to(self.device, self.dit.dtype)
            latents = self.scale.normalise(posterior(self.vae, pixels[None], generator))
            conditioning["image_latents"] = latents[0].float()
        return conditioning

    def latents_shape(self, plan: Plan) -> tuple[int, ...]:
        rows, columns = self._grid(plan.request)
        patch = self.dit.config.patch_size
        return self.dit.config.in_channels, rows * patch, columns * patch

    def image_latents(self, plan: Plan, conditioning: Conditioning) -> Tensor:
        return conditioning["image_latents"]

    @torch.no_grad()
    def invariants(self, plan: Plan, conditioning: Conditioning) -> HiDreamInvariants:
        prefixes = {"cond": ""}
        if any(scale != 1.0 for scale in plan.schedule.guidance):
            prefixes["uncond"] = "negative_"
        timesteps_R = torch.tensor(plan.schedule.timesteps, device=self.device)
        prompts, modulations = {}, {}
        for branch, prefix in prefixes.items():
            t5, llama, pooled = (
                conditioning[prefix + name].to(self.device, self.dit.dtype)
                for name in ("t5_embeds", "llama_embeds", "pooled_prompt_embeds")
            )
            prompt = self.dit.embed_prompt(t5[None], list(llama[:, None]))
            prompts[branch] = Prompt(prompt.lasting[0], tuple(own[0] for own in prompt.per_block))
            modulations[branch] = self.dit.modulation(timesteps_R, pooled)
        rows, columns = self._grid(plan.request)
        cos, sin = self.dit.rope(rows, columns)
        return HiDreamInvariants(
            prompts=prompts,
            modulation_RM=modulations,
            rope=(cos.to(self.device), sin.to(self.device)),
            empty=self.dit.config.empty_tokens(rows, columns),
        )

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[HiDreamInvariants]
    ) -> Tensor:
        """Latents BCHW -> velocity BCHW, both float32; see models.family.Family."""
        x_BLC, prompt, modulation_BM, known = self._inputs(latents, steps, branches, invariants)
        found_BLC = self.dit(x_BLC, prompt, modulation_BM, rope=known.rope, empty=known.empty)
        # The transformer says clean minus noise.
        return -unpack(found_BLC.float(), like=latents, patch=self.dit.config.patch_size)

    @torch.no_grad()
    def probe(
        self,
        name: Probe,
        latents: Tensor,
        steps: Sequence[int],
        branches: Sequence[str],
        invariants: Sequence[HiDreamInvariants],
    ) -> Tensor:
        """Of the first block's image stream, BLD; see models.family.Family."""
        x_BLC, prompt, modulation_BM, known = self._inputs(latents, steps, branches, invariants)
        if name == "modulated-input":
            return self.dit.modulated_input(x_BLC, modulation_BM)
        return self.dit.first_residual(x_BLC, prompt, modulation_BM, rope=known.rope, empty=known.empty)

    def _inputs(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[HiDreamInvariants]
    ) -> tuple[Tensor, Prompt, Tensor, HiDreamInvariants]:
        rows = list(zip(invariants, branches, steps, strict=True))
        prompts = [row.prompts[branch] for row, branch, _ in rows]
        own = tuple(torch.stack(tokens) for tokens in zip(*(p.per_block for p in prompts), strict=True))
        return (
            pack(latents.to(self.dit.dtype), self.dit.config.patch_size),
            Prompt(torch.stack([p.lasting for p in prompts]), own),
            torch.stack([row.modulation_RM[branch][step] for row, branch, step in rows]),
            invariants[0],
        )

    @torch.no_grad()
    def decode(self, plan: Plan, conditioning: Conditioning, latents: Tensor) -> Tensor:
        scaled = self.scale.denormalise(latents[None].to(self.device, self.dit.dtype))
        return from_pixels(self.vae.decode(scaled, return_dict=False)[0][0])


def pack(latents_BCHW: Tensor, patch: int) -> Tensor:
    """Latents -> patches BLC, row by row; within one the channel is the fastest axis."""
    cut = latents_BCHW.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def unpack(x_BLC: Tensor, *, like: Tensor, patch: int) -> Tensor:
    """Patches -> latents of the shape of `like`."""
    batch, channels, height, width = like.shape
    grid = x_BLC.reshape(batch, height // patch, width // patch, patch, patch, channels)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(like.shape)


def load(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: Attention,
    make_schedule: MakeSchedule,
) -> HiDream:
    """A HiDream-I1 checkpoint on `device` in `dtype`, every component of it. Raises CheckpointError."""
    spec = facts.spec(checkpoint)
    with torch.device("meta"):
        dit = HiDreamDiT(facts.transformer_config(checkpoint), attention)
    load_weights(dit, checkpoint, "transformer", dtype=dtype, device=device)

    def encoder(component: str) -> Any:
        return load_text_encoder(checkpoint, component, dtype=dtype, device=device)

    encoders = TextEncoders(
        clips=(encoder("text_encoder"), encoder("text_encoder_2")),
        clip_tokenizers=(load_tokenizer(checkpoint, "tokenizer"), load_tokenizer(checkpoint, "tokenizer_2")),
        t5=encoder("text_encoder_3"),
        t5_tokenizer=load_tokenizer(checkpoint, "tokenizer_3"),
        llama=encoder("text_encoder_4"),
        llama_tokenizer=load_tokenizer(checkpoint, "tokenizer_4"),
        device=device,
    )
    encoders.llama_tokenizer.pad_token = encoders.llama_tokenizer.eos_token  # as published
    config = checkpoint.config("vae")
    return HiDream(
        spec=spec,
        checkpoint=checkpoint.id(facts.FAMILY),
        device=device,
        dit=dit.requires_grad_(requires_grad=False).eval(),
        encoders=encoders,
        vae=load_vae(checkpoint, dtype=dtype, device=device),
        scale=LatentScale(mean=config.get("shift_factor") or 0.0, scale=config["scaling_factor"]),
        scheduler_config=checkpoint.scheduler_config(),
        make_schedule=make_schedule,
    )
