"""The trajectory: the whole state of one generation between two denoising steps, and what can be done with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from petzval.sampling.guidance import branches, combine
from petzval.sampling.history import History
from petzval.sampling.noise import Noise
from petzval.sampling.samplers import SAMPLERS
from petzval.types import Plan, Prediction


class Denoiser(Protocol):
    """All that the trajectory needs of a model (a family is one; so is a wrapper put around a family)."""

    @property
    def prediction(self) -> Prediction: ...

    def invariants(self, plan: Plan, conditioning: dict[str, Tensor]) -> Any: ...

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[Any]
    ) -> Tensor: ...


@dataclass
class Trajectory:
    """State of one generation. Every feature's state lives here or is derived from here; nothing is kept elsewhere."""

    plan: Plan
    latents: Tensor
    """The sample now, float32, without a batch axis."""
    conditioning: dict[str, Tensor]
    """Shared between forks; never changed in place."""
    noise: Noise
    step: int = 0
    """The next step to take."""
    history: History = field(default_factory=History)
    invariants: Any = field(default=None, repr=False)
    """Derived from plan and conditioning; computed at the first advance, never saved."""

    @property
    def done(self) -> bool:
        return self.step >= self.plan.schedule.num_steps

    def clean_estimate(self) -> Tensor:
        """The latest estimate of the clean latents, for previews and mid-way evaluation; the sample itself when done or
        not yet advanced."""
        if self.done or not self.history.length("denoised"):
            return self.latents
        return self.history.last("denoised")


def begin(
    plan: Plan,
    *,
    conditioning: dict[str, Tensor],
    noise: Noise,
    shape: tuple[int, ...],
    device: torch.device,
    image_latents: Tensor | None = None,
) -> Trajectory:
    """The trajectory before its first step: noise of `shape` (no batch axis), or `image_latents` (clean, of that shape)
    re-noised to the sigma of the schedule's first step.

    `noise` may have been drawn from before; what it gives next becomes the latents.
    """
    schedule = plan.schedule
    latents = noise.draw(shape, device)
    if image_latents is None:
        assert schedule.first_step == 0, "a schedule that starts midway needs image latents to start from"
    else:
        assert tuple(image_latents.shape) == shape, (tuple(image_latents.shape), shape)
        sigma = schedule.sigmas[schedule.first_step]
        latents = sigma * latents + (1 - sigma) * image_latents.to(latents)
    return Trajectory(plan=plan, latents=latents, conditioning=conditioning, noise=noise, step=schedule.first_step)


def fork(trajectory: Trajectory) -> Trajectory:
    """An independent trajectory in the same state. Conditioning, history tensors and invariants are shared by
    reference; nothing writes to them."""
    return Trajectory(
        plan=trajectory.plan,
        latents=trajectory.latents,
        conditioning=trajectory.conditioning,
        noise=trajectory.noise.copy(),
        step=trajectory.step,
        history=trajectory.history.copy(),
        invariants=trajectory.invariants,
    )


def to_clean(prediction: Prediction, output: Tensor, latents: Tensor, sigma: float) -> Tensor:
    """The clean estimate that a model output stands for, with latents = (1 - sigma) * clean + sigma * noise.

    Never a view of `output`, which may be a row of a batch that a history should not keep alive.
    """
    if prediction == "velocity":
        return latents - sigma * output
    if prediction == "clean":
        return output.clone()
    assert sigma < 1, "pure noise holds nothing that a noise prediction could be subtracted from"
    return (latents - sigma * output) / (1 - sigma)


# Not inference_mode: its tensors are of another kind, so that a continued and a loaded trajectory would compile twice,
# and a caller could not hand latents to any module that tracks gradients.
@torch.no_grad()
def advance(group: Sequence[Trajectory], model: Denoiser) -> None:
    """Take one step of every trajectory in `group`, in place; they may be at different steps, of different shapes.

    Rows (a trajectory's branches) of like shape and batch key share one forward; the rest go one bucket after another.
    If anything raises, every trajectory is as it was, its noise too: all outcomes are computed before one is kept.
    (Invariants computed on the way stay; they follow from plan and conditioning and change no outcome.)
    """
    assert len({id(trajectory) for trajectory in group}) == len(group), "a trajectory may be in a group only once"
    assert not any(trajectory.done for trajectory in group), "a finished trajectory cannot advance"
    for trajectory in group:
        if trajectory.invariants is None:
            trajectory.invariants = model.invariants(trajectory.plan, trajectory.conditioning)
    outputs = _predict_all(group, model)
    moved = [_move(t, out, model.prediction) for t, out in zip(group, outputs, strict=True)]
    for trajectory, after in zip(group, moved, strict=True):
        # In one call, which no Ctrl-C can cut in two: each trajectory is always at a step boundary.
        vars(trajectory).update(vars(after))


def _predict_all(group: Sequence[Trajectory], model: Denoiser) -> list[dict[str, Tensor]]:
    """The prediction of every branch of every trajectory, computed in as few forwards as shapes allow."""
    buckets: dict[Hashable, list[tuple[int, str]]] = defaultdict(list)
    for index, t in enumerate(group):
        key = (tuple(t.latents.shape), t.invariants.batch_key(t.step))
        buckets[key].extend((index, branch) for branch in branches(t.plan.schedule, t.step))
    outputs: list[dict[str, Tensor]] = [{} for _ in group]
    for rows in buckets.values():
        members = [group[index] for index, _ in rows]
        latents = torch.stack([t.latents for t in members])
        predicted = model.predict(
            latents, [t.step for t in members], [branch for _, branch in rows], [t.invariants for t in members]
        )
        assert predicted.shape == latents.shape, f"predicted {tuple(predicted.shape)} for {tuple(latents.shape)}"
        for (index, branch), row in zip(rows, predicted, strict=True):
            outputs[index][branch] = row
    return outputs


@dataclass(frozen=True)
class _After:
    """The fields of a trajectory that a step changes, by their names there."""

    latents: Tensor
    history: History
    noise: Noise
    step: int


def _move(t: Trajectory, outputs: dict[str, Tensor], prediction: Prediction) -> _After:
    """The outcome of one step. Reads the trajectory and writes nothing to it."""
    schedule = t.plan.schedule
    guided = combine(outputs, schedule.guidance[t.step])
    denoised = to_clean(prediction, guided, t.latents, schedule.sigmas[t.step])
    sampler = SAMPLERS[schedule.sampler]
    noise = t.noise

    def draw() -> Tensor:
        nonlocal noise
        noise = noise.copy() if noise is t.noise else noise
        return noise.draw(tuple(t.latents.shape), t.latents.device)

    move = sampler.step(t.latents, denoised, t.step, schedule.sigmas, t.history, draw)
    history = t.history.copy()
    for name, value in {"denoised": denoised, **move.remember}.items():
        history.push(name, t.step, value, keep=max(1, sampler.reads.get(name, 1)))
    return _After(move.latents, history, noise, t.step + 1)
