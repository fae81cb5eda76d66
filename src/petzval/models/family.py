"""The family contract: what every loaded checkpoint offers to sampling, tasks and engine.

Shapes: B batch, T frames, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from petzval.types import CheckpointId, ModelSpec, Plan, Prediction, Request, Task

Attention = Callable[..., Tensor]
"""(q_BLNK, k_BSNK, v_BSNK) -> BLNK, unmasked; and with `bias_S=` an additive float bias per key (see ops.attention)."""

MakeSchedule = Callable[..., tuple[str, tuple[float, ...], tuple[float, ...], int]]
"""(scheduler config, *, num_inference_steps, image_seq_len=None, sampler=None, strength=None) -> (sampler, sigmas,
timesteps, first step). Handed to a family when it is loaded, since models and sampling do not know each other."""

Probe = Literal["modulated-input", "first-block"]

Conditioning = dict[str, Tensor]
"""Named tensors a trajectory is conditioned on. Never changed in place: forks share them."""


class Invariants(Protocol):
    """All that stays constant over a trajectory's steps: text keys and values, rotary tables, modulation of every
    timestep. Derived from plan and conditioning alone, so it is never saved, only computed again."""

    def batch_key(self, step: int) -> Hashable:
        """Trajectories whose latents have one shape and whose keys are equal may share a batch at these steps."""
        ...


class Family(Protocol):
    """One loaded checkpoint of a family. Holds weights and facts, never the state of a generation."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def checkpoint(self) -> CheckpointId: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def prediction(self) -> Prediction: ...

    def natural_size(self, task: Task, width: int, height: int) -> tuple[int, int]:
        """The (width, height) to make from an input picture of this size when the request names none."""
        ...

    def plan(self, request: Request) -> Plan:
        """Fill in the published defaults and decide the schedule. No tensors, no weights.

        Raises BadRequestError naming the argument, what was given and the nearest allowed value.
        """
        ...

    def encode(self, plan: Plan, images: Sequence[np.ndarray], generator: torch.Generator) -> Conditioning:
        """Embed prompts and images (uint8 HWC RGB, any size; the family scales them).

        `generator` (CPU) is read only where the published pipeline samples from the VAE's posterior.
        """
        ...

    def latents_shape(self, plan: Plan) -> tuple[int, ...]:
        """Shape of one sample's latents, without a batch axis: CHW for pictures, CTHW for clips."""
        ...

    def image_latents(self, plan: Plan, conditioning: Conditioning) -> Tensor:
        """The clean latents that image-to-image re-noises. Only asked when the plan has a strength."""
        ...

    def invariants(self, plan: Plan, conditioning: Conditioning) -> Invariants: ...

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[Any]
    ) -> Tensor:
        """One forward for B rows: `latents` (float32, B first), and for each row its step, its guidance branch
        ("cond" or "uncond") and its trajectory's invariants. Returns the prediction, float32, of the latents' shape.

        All rows have one `batch_key`. `steps` index `plan.schedule.timesteps`, for which the invariants hold the
        modulation; a row is never told more about the loop than that.
        """
        ...

    def probe(
        self, name: Probe, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[Any]
    ) -> Tensor:
        """A cheap sign of what `predict` would say for the same arguments, B rows: the first block's modulated input,
        or what the first block adds to its input. Of any shape; reuse compares it between steps."""
        ...

    def decode(self, plan: Plan, conditioning: Conditioning, latents: Tensor) -> Tensor:
        """Latents of one sample -> pixels: float32 THWC in [0, 1] on the CPU (T = 1 for a picture)."""
        ...
