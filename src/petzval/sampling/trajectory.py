"""The trajectory: the whole state of one generation between two denoising steps, and what can be done with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from petzval.sampling.guidance import combine
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


class Probing(Denoiser, Protocol):
    """A model that can be asked for a cheap sign of what its prediction will be, before the prediction is computed."""

    def probe(
        self, name: str, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[Any]
    ) -> Tensor: ...


class Decision(Protocol):
    """What a step computes."""

    @property
    def compute(self) -> tuple[str, ...]:
        """Guidance branches; none when all of the step is forecast."""
        ...


class Settled(Protocol):
    """A step's predictions by branch, and what the history should keep of how they came about."""

    @property
    def predictions(self) -> Mapping[str, Tensor]: ...

    @property
    def remember(self) -> Sequence[tuple[str, Tensor, int]]:
        """(series, entry, how many entries the series keeps)"""
        ...

    @property
    def numbers(self) -> Mapping[str, float]: ...


class Skipping(Protocol):
    """Decides what of a step is not computed, and what stands for it (accel.reuse.skip). It reads trajectories and
    writes nothing: its state is what it asks their histories to remember."""

    def probe(self, t: Any) -> str | None:
        """What to ask the model before `decide`, if anything."""
        ...

    def decide(self, t: Any, probed: Mapping[str, Tensor]) -> Any: ...

    def settle(self, t: Any, decision: Any, outputs: Mapping[str, Tensor]) -> Settled: ...


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
def advance(group: Sequence[Trajectory], model: Denoiser, skipping: Skipping | None = None) -> None:
    """Take one step of every trajectory in `group`, in place; they may be at different steps, of different shapes.

    Rows (a trajectory's branches) of like shape and batch key share one forward; the rest go one bucket after another.
    With `skipping`, each trajectory's plan decides which of its rows are computed at all; without, all are.
    If anything raises, every trajectory is as it was, its noise too: all outcomes are computed before one is kept.
    (Invariants computed on the way stay; they follow from plan and conditioning and change no outcome.)
    """
    assert len({id(trajectory) for trajectory in group}) == len(group), "a trajectory may be in a group only once"
    assert not any(trajectory.done for trajectory in group), "a finished trajectory cannot advance"
    for trajectory in group:
        if trajectory.invariants is None:
            trajectory.invariants = model.invariants(trajectory.plan, trajectory.conditioning)
    if skipping is None:
        outputs = _predict_all(group, [t.plan.schedule.branches(t.step) for t in group], model)
        moved = [_move(t, out, model.prediction) for t, out in zip(group, outputs, strict=True)]
    else:
        moved = _skip_some(group, model, skipping)
    for trajectory, after in zip(group, moved, strict=True):
        # In one call, which no Ctrl-C can cut in two: each trajectory is always at a step boundary.
        vars(trajectory).update(vars(after))


def _skip_some(group: Sequence[Trajectory], model: Denoiser, skipping: Skipping) -> list[_After]:
    """The outcome of one step of each, of which only what the plans ask for is computed."""
    probed = _probe_all(group, model, skipping)
    decisions = [skipping.decide(t, signs) for t, signs in zip(group, probed, strict=True)]
    outputs = _predict_all(group, [decision.compute for decision in decisions], model)
    settled = [skipping.settle(t, d, out) for t, d, out in zip(group, decisions, outputs, strict=True)]
    return [
        _move(t, s.predictions, model.prediction, remember=s.remember, numbers=s.numbers)
        for t, s in zip(group, settled, strict=True)
    ]


def _probe_all(group: Sequence[Trajectory], model: Denoiser, skipping: Skipping) -> list[dict[str, Tensor]]:
    """The signs that trajectories ask for, in as few calls as shapes allow."""
    asked = [skipping.probe(t) for t in group]
    signs: list[dict[str, Tensor]] = [{} for _ in group]
    for name in dict.fromkeys(name for name in asked if name is not None):
        wanted = [t.plan.schedule.branches(t.step) if a == name else () for t, a in zip(group, asked, strict=True)]
        prober = cast(Probing, model)
        for found, sign in zip(_ask_all(group, wanted, partial(prober.probe, name)), signs, strict=True):
            sign |= found
    return signs


def _predict_all(
    group: Sequence[Trajectory], wanted: Sequence[tuple[str, ...]], model: Denoiser
) -> list[dict[str, Tensor]]:
    """The predictions of the wanted branches of every trajectory, computed in as few forwards as shapes allow."""
    outputs = _ask_all(group, wanted, model.predict)
    for t, found in zip(group, outputs, strict=True):
        for row in found.values():
            assert row.shape == t.latents.shape, f"predicted {tuple(row.shape)} for {tuple(t.latents.shape)}"
    return outputs


def _ask_all(
    group: Sequence[Trajectory], wanted: Sequence[tuple[str, ...]], ask: Callable[..., Tensor]
) -> list[dict[str, Tensor]]:
    """What `ask`, which has the arguments of `Denoiser.predict`, says of the wanted branches of every trajectory."""
    buckets: dict[Hashable, list[tuple[int, str]]] = defaultdict(list)
    for index, (t, branches) in enumerate(zip(group, wanted, strict=True)):
        key = (tuple(t.latents.shape), t.invariants.batch_key(t.step)) if branches else ()
        buckets[key].extend((index, branch) for branch in branches)
    buckets.pop((), None)
    outputs: list[dict[str, Tensor]] = [{} for _ in group]
    for rows in buckets.values():
        members = [group[index] for index, _ in rows]
        latents = torch.stack([t.latents for t in members])
        rows_told = ask(
            latents, [t.step for t in members], [branch for _, branch in rows], [t.invariants for t in members]
        )
        for (index, branch), row in zip(rows, rows_told, strict=True):
            outputs[index][branch] = row
    return outputs


@dataclass(frozen=True)
class _After:
    """The fields of a trajectory that a step changes, by their names there."""

    latents: Tensor
    history: History
    noise: Noise
    step: int


def _move(
    t: Trajectory,
    outputs: Mapping[str, Tensor],
    prediction: Prediction,
    *,
    remember: Sequence[tuple[str, Tensor, int]] = (),
    numbers: Mapping[str, float] | None = None,
) -> _After:
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
    for name, value, keep in remember:
        # A row of a batch would keep the whole batch's memory alive.
        history.push(name, t.step, value.clone(), keep=keep)
    history.numbers |= numbers or {}
    return _After(move.latents, history, noise, t.step + 1)
