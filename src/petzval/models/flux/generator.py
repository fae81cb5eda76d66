"""One loaded FLUX.1 checkpoint: requests to plans, pictures and words to conditioning, latents to velocities to pixels.

Shapes: B batch, C latent channels, H and W latent height and width, L image tokens, S prompt tokens, E width of T5,
P width of CLIP, D width of the transformer, R timesteps, M modulation numbers of one timestep.
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
from petzval.models.flux import spec as facts
from petzval.models.flux import tokens
from petzval.models.flux.conditioning import TextEncoders, kontext_size
from petzval.models.flux.dit import FluxDiT, Rope
from petzval.models.flux.vae import FluxVae, latent_scale
from petzval.models.validate import complete, fit_size
from petzval.models.weights import load_weights
from petzval.types import CheckpointId, ModelSpec, Plan, Prediction, Request, Schedule, Task


@dataclass(frozen=True)
class FluxInvariants:
    """What every step of a trajectory reads, by guidance branch where branches differ."""

    prompt_SD: dict[str, Tensor]
    modulation_RM: dict[str, Tensor]
    prompt_rope: Rope
    x_rope: Rope
    """Of the picture's tokens, then the reference's."""
    reference_LC: Tensor | None
    reference_size: tuple[int, int] | None
    """Latent height and width of a Kontext reference."""

    def batch_key(self, step: int) -> Hashable:
        return self.reference_size


@dataclass(frozen=True, kw_only=True)
class Flux:
    """Implements models.family.Family. Latents are CHW float32; the transformer sees them as 2 x 2 patches."""

    spec: ModelSpec
    checkpoint: CheckpointId
    device: torch.device
    dit: FluxDiT
    encoders: TextEncoders
    vae: FluxVae
    scheduler_config: dict[str, Any]
    make_schedule: MakeSchedule

    @property
    def prediction(self) -> Prediction:
        return self.spec.prediction

    def natural_size(self, task: Task, width: int, height: int) -> tuple[int, int]:
        """The (width, height) to make from a picture of this size when none is asked for: Kontext's trained sizes, else
        the default number of pixels in the picture's shape."""
        if self.spec.variant == "kontext":
            return kontext_size(width, height, multiple=self.spec.size_multiple)
        defaults = self.spec.tasks[task]
        return fit_size(width, height, area=defaults.width * defaults.height, multiple=self.spec.size_multiple)

    def plan(self, request: Request) -> Plan:
        filled = complete(request, self.spec)
        self.encoders.check("prompt", filled.prompt)
        if filled.negative_prompt is not None:
            self.encoders.check("negative_prompt", filled.negative_prompt)
        _, height, width = self._latents_shape(filled)
        sampler, sigmas, timesteps, first_step = self.make_schedule(
            self.scheduler_config,
            num_inference_steps=filled.num_inference_steps,
            image_seq_len=height * width // tokens.PATCH**2,
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

    def encode(self, plan: Plan, images: Sequence[np.ndarray], generator: torch.Generator) -> Conditioning:
        request = plan.request
        if len(images) != len(request.images):
            raise BadRequestError(f"images: the plan says {len(request.images)}, got {len(images)}")
        prompt_SE, pooled_P = self.encoders.encode(request.prompt)
        conditioning = {"prompt_embeds": prompt_SE, "pooled_prompt_embeds": pooled_P}
        if request.negative_prompt is not None:
            prompt_SE, pooled_P = self.encoders.encode(request.negative_prompt)
            conditioning |= {"negative_prompt_embeds": prompt_SE, "negative_pooled_prompt_embeds": pooled_P}
        for image in images:
            if self.spec.variant == "kontext":
                height, width, _ = image.shape
                width, height = kontext_size(width, height, multiple=self.spec.size_multiple)
                latents = self.vae.encode(image, width=width, height=height, generator=None)
                conditioning["reference_latents"] = latents
            else:
                assert request.width and request.height
                latents = self.vae.encode(image, width=request.width, height=request.height, generator=generator)
                conditioning["image_latents"] = latents
        return conditioning

    def latents_shape(self, plan: Plan) -> tuple[int, ...]:
        return self._latents_shape(plan.request)

    def _latents_shape(self, request: Request) -> tuple[int, int, int]:
        assert request.width and request.height
        pixels = self.spec.size_multiple // tokens.PATCH
        return self.dit.config.in_channels // tokens.PATCH**2, request.height // pixels, request.width // pixels

    def image_latents(self, plan: Plan, conditioning: Conditioning) -> Tensor:
        return conditioning["image_latents"]

    @torch.no_grad()
    def invariants(self, plan: Plan, conditioning: Conditioning) -> FluxInvariants:
        prefixes = {"cond": ""}
        if any(scale != 1.0 for scale in plan.schedule.guidance):
            prefixes["uncond"] = "negative_"
        timesteps_R = torch.tensor(plan.schedule.timesteps, device=self.device)
        prompts, modulations = {}, {}
        for branch, prefix in prefixes.items():
            prompts[branch] = self.dit.embed_prompt(conditioning[f"{prefix}prompt_embeds"].to(self.device))
            modulations[branch] = self.dit.modulation(
                timesteps_R,
                conditioning[f"{prefix}pooled_prompt_embeds"].to(self.device),
                plan.request.embedded_guidance,
            )
        _, height, width = self._latents_shape(plan.request)
        positions = [tokens.positions(index=0, height=height, width=width)]
        reference, reference_size = conditioning.get("reference_latents"), None
        if reference is not None:
            _, height, width = reference.shape
            reference_size = (height, width)
            positions.append(tokens.positions(index=1, height=height, width=width))
            reference = tokens.pack(reference[None].to(self.device, self.dit.dtype))[0]
        return FluxInvariants(
            prompt_SD=prompts,
            modulation_RM=modulations,
            prompt_rope=self._rope(tokens.prompt_positions(len(prompts["cond"]))),
            x_rope=self._rope(torch.cat(positions)),
            reference_LC=reference,
            reference_size=reference_size,
        )

    def _rope(self, positions_L3: Tensor) -> Rope:
        """Made on the CPU: float64 is slow or missing on some accelerators."""
        cos, sin = self.dit.rope(positions_L3)
        return cos.to(self.device), sin.to(self.device)

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[FluxInvariants]
    ) -> Tensor:
        """Latents BCHW -> velocity BCHW, both float32; see models.family.Family."""
        x_BLC, prompt_BSD, modulation_BM, ropes = self._inputs(latents, steps, branches, invariants)
        velocity_BLC = self.dit(x_BLC, prompt_BSD, modulation_BM, **ropes)[:, : self._num_tokens(latents)]
        return tokens.unpack(velocity_BLC.float(), height=latents.shape[-2], width=latents.shape[-1])

    @torch.no_grad()
    def probe(
        self,
        name: Probe,
        latents: Tensor,
        steps: Sequence[int],
        branches: Sequence[str],
        invariants: Sequence[FluxInvariants],
    ) -> Tensor:
        """Of the first block's image stream, without references, BLD; see models.family.Family."""
        x_BLC, prompt_BSD, modulation_BM, ropes = self._inputs(latents, steps, branches, invariants)
        if name == "modulated-input":
            found = self.dit.modulated_input(x_BLC, modulation_BM)
        else:
            found = self.dit.first_residual(x_BLC, prompt_BSD, modulation_BM, **ropes)
        return found[:, : self._num_tokens(latents)]

    def _num_tokens(self, latents: Tensor) -> int:
        return latents.shape[-2] * latents.shape[-1] // tokens.PATCH**2

    def _inputs(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[FluxInvariants]
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """The transformer's tokens BLC, prompt BSD, modulation BM and rotary tables."""
        rows = list(zip(invariants, branches, steps, strict=True))
        x_BLC = tokens.pack(latents.to(self.dit.dtype))
        references = [row.reference_LC for row in invariants if row.reference_LC is not None]
        if references:
            x_BLC = torch.cat([x_BLC, torch.stack(references)], dim=1)
        return (
            x_BLC,
            torch.stack([row.prompt_SD[branch] for row, branch, _ in rows]),
            torch.stack([row.modulation_RM[branch][step] for row, branch, step in rows]),
            {"x_rope": invariants[0].x_rope, "prompt_rope": invariants[0].prompt_rope},
        )

    def decode(self, plan: Plan, conditioning: Conditioning, latents: Tensor) -> Tensor:
        return self.vae.decode(latents)


def load(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: Attention,
    make_schedule: MakeSchedule,
) -> Flux:
    """A FLUX.1 checkpoint on `device` in `dtype`, every component of it. Raises CheckpointError."""
    spec = facts.spec(checkpoint)
    with torch.device("meta"):
        dit = FluxDiT(facts.transformer_config(checkpoint), attention)
    load_weights(dit, checkpoint, "transformer", dtype=dtype, device=device)
    encoders = TextEncoders(
        clip=load_text_encoder(checkpoint, "text_encoder", dtype=dtype, device=device),
        clip_tokenizer=load_tokenizer(checkpoint, "tokenizer"),
        t5=load_text_encoder(checkpoint, "text_encoder_2", dtype=dtype, device=device),
        t5_tokenizer=load_tokenizer(checkpoint, "tokenizer_2"),
        max_tokens=spec.max_prompt_tokens,
        device=device,
    )
    vae = FluxVae(
        module=load_vae(checkpoint, dtype=dtype, device=device),
        scale=latent_scale(checkpoint.config("vae")),
        device=device,
        dtype=dtype,
    )
    return Flux(
        spec=spec,
        checkpoint=checkpoint.id(facts.FAMILY),
        device=device,
        dit=dit.requires_grad_(requires_grad=False).eval(),
        encoders=encoders,
        vae=vae,
        scheduler_config=checkpoint.scheduler_config(),
        make_schedule=make_schedule,
    )
