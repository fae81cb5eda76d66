"""A checkpoint as it was built to run here: its family, and what was chosen for this machine.

Shapes: B batch, T frames, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petzval.models.family import Conditioning, Family
from petzval.tasks.result import Runs
from petzval.types import CheckpointId, ModelSpec, Plan, Prediction, Request, Task


@dataclass(frozen=True, kw_only=True)
class Model:
    """Implements models.family.Family by the family it holds. Wrappers that speed a family up go between the two."""

    family: Family
    runs: Runs

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
        return self.family.plan(request)

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

    def decode(self, plan: Plan, conditioning: Conditioning, latents: Tensor) -> Tensor:
        return self.family.decode(plan, conditioning, latents)
