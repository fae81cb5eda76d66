"""A checkpoint as it was built to run here: its family, and what was chosen for this machine.

Shapes: B batch, T frames, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petzval.accel.reuse.planning import with_steps
from petzval.engine.recipes import Shelf, tier_run
from petzval.models.family import Conditioning, Family, Probe
from petzval.tasks.result import Runs
from petzval.types import BuildPlan, CheckpointId, ModelSpec, Plan, Prediction, Request, StepPlan, Task, TierRun


@dataclass(frozen=True, kw_only=True)
class Model:
    """Implements models.family.Family by the family it holds. Wrappers that speed a family up go between the two."""

    family: Family
    runs: Runs
    build: BuildPlan = field(default_factory=BuildPlan)
    kind: str = ""
    """Of device, as recipes name it."""
    shelf: Shelf = field(default_factory=lambda: Shelf(()), repr=False)

    @property
    def spec(self) -> ModelSpec:
        return self.family.spec

    @property
    def checkpoint(self) -> CheckpointId:
        return self.family.checkpoint

    @property
    def device(self) -> torch.device:
        return self.family.device

    @property
    def prediction(self) -> Prediction:
        return self.family.prediction

    def natural_size(self, task: Task, width: int, height: int) -> tuple[int, int]:
        return self.family.natural_size(task, width, height)

    def plan(self, request: Request) -> Plan:
        """As the family plans it, and as the recipe for the request's tier has it computed."""
        asked = self.family.plan(request)
        recipe, why = self.shelf.find(asked.request, self.checkpoint, self.kind)
        if recipe is not None and recipe.build != self.build:
            why = f"the recipe is for a checkpoint built as {recipe.build}, this one is {self.build}"
            recipe = None
        return self.plan_as(request, recipe.steps if recipe else StepPlan(), tier_run(asked.request, recipe, why))

    def plan_as(self, request: Request, steps: StepPlan, tier: TierRun | None = None) -> Plan:
        """The plan with what `steps` skips. Raises BadRequestError as `with_steps`."""
        plan = self.family.plan(request)
        if steps.num_inference_steps is not None:
            asked = plan.request
            plan = self.family.plan(replace(request, num_inference_steps=steps.num_inference_steps))
            plan = replace(plan, request=asked)
        if tier is not None:
            plan = replace(plan, tier=tier)
        return with_steps(plan, steps) if steps != StepPlan() else plan

    def encode(self, plan: Plan, images: Sequence[np.ndarray], generator: torch.Generator) -> Conditioning:
        return self.family.encode(plan, images, generator)

    def latents_shape(self, plan: Plan) -> tuple[int, ...]:
        return self.family.latents_shape(plan)

    def image_latents(self, plan: Plan, conditioning: Conditioning) -> Tensor:
        return self.family.image_latents(plan, conditioning)

    def invariants(self, plan: Plan, conditioning: Conditioning) -> Any:
        return self.family.invariants(plan, conditioning)

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[Any]
    ) -> Tensor:
        return self.family.predict(latents, steps, branches, invariants)

    def probe(
        self, name: Probe, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[Any]
    ) -> Tensor:
        return self.family.probe(name, latents, steps, branches, invariants)

    def decode(self, plan: Plan, conditioning: Conditioning, latents: Tensor) -> Tensor:
        return self.family.decode(plan, conditioning, latents)
