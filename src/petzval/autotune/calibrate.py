"""Which steps to compute, and how to fill in the others, from a few recorded trajectories.

A search over schedules never runs the model for each candidate: what a forecast would have been wrong by at each step
is known from the recording, and how much an error at that step matters for the end is measured once. The best schedule
for a number of computed steps is then a shortest path (the form of LeMiCa, arXiv 2511.00090, and of DPCache, where the
cost of a stretch depends on the computed step before it, too), and fitted weights are a small linear solve (L2P's
form).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from petzval.accel.reuse.forecasts import Weights, apply, forecast_named
from petzval.accel.reuse.skip import Settled, Skipping
from petzval.errors import BadRequestError
from petzval.sampling.guidance import combine
from petzval.sampling.trajectory import Denoiser, Trajectory, advance, fork
from petzval.types import ReusePlan, Schedule

OnStep = Callable[[int, int], None]
"""(done, in all)"""

PERTURBATION = 0.05
"""Size of the errors that influence is measured with, relative to the prediction: about that of a forecast's error."""


@dataclass
class Trace:
    """One trajectory, computed in full, with what every step saw and said."""

    states: list[Trajectory] = field(default_factory=list)
    """Before each step, from the schedule's first on. Forks: what does not change is shared."""
    outputs: list[Tensor] = field(default_factory=list)
    """Each step's guided prediction."""
    final: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def schedule(self) -> Schedule:
        return self.states[0].plan.schedule


class _Recording(Skipping):
    """Notes what is computed."""

    def __init__(self) -> None:
        self.outputs: dict[int, Tensor] = {}

    def settle(self, t: Any, decision: Any, outputs: Mapping[str, Tensor]) -> Settled:
        self.outputs[id(t)] = combine(outputs, t.plan.schedule.guidance[t.step]).clone()
        return super().settle(t, decision, outputs)


def record(model: Denoiser, starts: Sequence[Trajectory], on_step: OnStep | None = None) -> list[Trace]:
    """Advance each, which has not begun and skips nothing, to its end, keeping what happened. `starts` are left alone.

    Raises BadRequestError for trajectories of more than one schedule: a plan is for one.
    """
    if len({t.plan.schedule for t in starts}) != 1:
        raise BadRequestError("calibration needs trajectories of one schedule: equal steps, sampler and guidance")
    moving = [fork(t) for t in starts]
    traces = [Trace() for _ in starts]
    total = moving[0].plan.schedule.num_steps - moving[0].step
    for done in range(total):
        recording = _Recording()
        for trace, t in zip(traces, moving, strict=True):
            trace.states.append(fork(t))
        advance(moving, model, recording)
        for trace, t in zip(traces, moving, strict=True):
            trace.outputs.append(recording.outputs[id(t)])
        if on_step:
            on_step(done + 1, total)
    for trace, t in zip(traces, moving, strict=True):
        trace.final = t.latents
    return traces


# -- how much a step matters ------------------------------------------------------------------------------------------


class _Perturbing(Skipping):
    """Adds an error to the prediction of one step."""

    def __init__(self, step: int, errors: Mapping[int, Tensor]) -> None:
        self.step, self.errors = step, errors

    def settle(self, t: Any, decision: Any, outputs: Mapping[str, Tensor]) -> Settled:
        if t.step == self.step:
            # The same for every branch, so that the guided prediction is off by just that.
            outputs = {name: value + self.errors[id(t)] for name, value in outputs.items()}
        return super().settle(t, decision, outputs)


def influence(
    model: Denoiser, traces: Sequence[Trace], *, every: int = 1, on_step: OnStep | None = None
) -> list[float]:
    """For each step of the schedule, how far the final latents move, relatively, for an error in its prediction of
    relative size 1. An error has the direction in which the prediction changed last, which is what forecasts err by.

    Measured at every `every`-th step and interpolated between; costs about half a full run a measured step.
    """
    first, count = traces[0].schedule.first_step, traces[0].schedule.num_steps
    places = sorted({*range(first + 1, count, every), count - 1})
    measured: dict[int, float] = {}
    for index, step in enumerate(places):
        measured[step] = _influence_at(model, traces, step)
        if on_step:
            on_step(index + 1, len(places))
    return [_interpolated(measured, step) for step in range(count)]


def _influence_at(model: Denoiser, traces: Sequence[Trace], step: int) -> float:
    moving, errors = [], {}
    for trace in traces:
        at = step - trace.schedule.first_step
        t = fork(trace.states[at])
        truth, change = trace.outputs[at], trace.outputs[at] - trace.outputs[at - 1]
        errors[id(t)] = change * (PERTURBATION * truth.norm() / change.norm().clamp_min(1e-12))
        moving.append(t)
    perturbing = _Perturbing(step, errors)
    while not moving[0].done:
        advance(moving, model, perturbing)
    moved = [_relative(t.latents, trace.final) / PERTURBATION for t, trace in zip(moving, traces, strict=True)]
    return sum(moved) / len(moved)


def _interpolated(measured: Mapping[int, float], step: int) -> float:
    below = max((place for place in measured if place <= step), default=min(measured))
    above = min((place for place in measured if place >= step), default=max(measured))
    if below == above:
        return measured[below]
    share = (step - below) / (above - below)
    return (1 - share) * measured[below] + share * measured[above]


def _relative(now: Tensor, truth: Tensor) -> float:
    return float((now - truth).norm() / truth.norm().clamp_min(1e-12))


# -- which steps to compute -------------------------------------------------------------------------------------------


def choose_steps(
    traces: Sequence[Trace], weight: Sequence[float], reuse: ReusePlan, *, num_computed: int
) -> tuple[int, ...]:
    """The `num_computed` steps whose computation, with all others forecast as `reuse` says, costs the least expected
    error of the result: the sum over forecast steps of their relative error times `weight`, by dynamic programming.

    Orders above 1 are searched as order 1, whose forecast depends on two computed steps. Raises BadRequestError when
    so few steps cannot be reached with `max_consecutive`, or fewer are asked for than must be computed.
    """
    schedule = traces[0].schedule
    first, count = schedule.first_step, schedule.num_steps
    forced = _forced(schedule, reuse)
    errors = _Errors(traces, reuse)
    # best[(p, i)][n]: least cost of a path whose last computed steps are p and i, with n computed in all.
    best: dict[tuple[int, int], dict[int, tuple[float, tuple[int, ...]]]] = {}
    if len(forced) < 2 or forced[:2] != [first, first + 1]:
        raise BadRequestError("reuse.first_full must be at least 2 to choose steps")
    best[first, first + 1] = {2: (0.0, (first, first + 1))}
    for i in range(first + 1, count):
        for j in range(i + 1, min(count, i + reuse.max_consecutive + 1) + 1):
            if any(step in forced for step in range(i + 1, j)):
                break
            for p in range(first, i):
                for n, (cost, path) in best.get((p, i), {}).items():
                    more = sum(weight[s] * errors.of((i, p), s) for s in range(i + 1, j))
                    ended = best.setdefault((i, j), {})
                    number = n + (j < count)
                    if number <= num_computed and cost + more < ended.get(number, (math.inf, ()))[0]:
                        ended[number] = (cost + more, (*path, j) if j < count else path)
    ends = [paths[num_computed] for (_, j), paths in best.items() if j == count and num_computed in paths]
    if not ends:
        least = len(forced) + (count - first - len(forced)) // (reuse.max_consecutive + 1)
        raise BadRequestError(
            f"num_computed {num_computed} of {count - first} steps cannot be reached with max_consecutive "
            f"{reuse.max_consecutive} and {len(forced)} steps that are always computed: at least about {least}"
        )
    return min(ends)[1]


def _forced(schedule: Schedule, reuse: ReusePlan) -> list[int]:
    """Steps that the gate computes whatever the plan says."""
    starts = [schedule.first_step]
    starts += [
        s for s in range(schedule.first_step + 1, schedule.num_steps) if schedule.experts[s] != schedule.experts[s - 1]
    ]
    early = {start + i for start in starts for i in range(reuse.first_full)}
    late = set(range(schedule.num_steps - reuse.last_full, schedule.num_steps))
    return sorted(step for step in early | late if step < schedule.num_steps)


class _Errors:
    """Relative errors of forecasts, from recordings, computed once each."""

    def __init__(self, traces: Sequence[Trace], reuse: ReusePlan) -> None:
        self.traces, self.reuse = traces, reuse
        self.known: dict[tuple[tuple[int, ...], int], float] = {}

    def of(self, points: tuple[int, ...], step: int) -> float:
        """Mean over traces; `points` are computed steps, newest first."""
        row = forecast_named(self.reuse)
        key = points[: row.reads(self.reuse.order)], step
        if key not in self.known:
            weights = row.weigh(key[0], step, self.traces[0].schedule, self.reuse)
            self.known[key] = sum(_relative(guess(t, weights, key[0], step), at(t, step)) for t in self.traces) / len(
                self.traces
            )
        return self.known[key]


def at(trace: Trace, step: int) -> Tensor:
    """The guided prediction that was computed at a step."""
    return trace.outputs[step - trace.schedule.first_step]


def guess(trace: Trace, weights: Weights, points: Sequence[int], step: int) -> Tensor:
    """What a forecast would have said at a step, had `points` been computed."""
    first = trace.schedule.first_step
    latents = [trace.states[p - first].latents for p in points]
    return apply(weights, [at(trace, p) for p in points], latents, trace.states[step - first].latents)


# -- what to fill the others with -------------------------------------------------------------------------------------


def fit(
    traces: Sequence[Trace], computed: Sequence[int], reuse: ReusePlan, *, ridge: float = 1e-3
) -> tuple[tuple[float, ...], ...]:
    """Least-squares weights for every step that is not computed, of the last `order + 1` computed predictions, the
    latents there, and the latents now. Shrunk towards the order-1 Taylor forecast by `ridge` (relative)."""
    schedule = traces[0].schedule
    rows = []
    for step in range(schedule.num_steps):
        points = [p for p in sorted(computed, reverse=True) if p < step][: reuse.order + 1]
        rows.append(() if step in computed or not points else _fit_step(traces, points, step, ridge))
    return tuple(rows)


def _fit_step(traces: Sequence[Trace], points: Sequence[int], step: int, ridge: float) -> tuple[float, ...]:
    first, count = traces[0].schedule.first_step, len(points)
    taylor = ReusePlan(forecast="taylor", order=1)
    prior_weights = forecast_named(taylor).weigh(points[:2], step, traces[0].schedule, taylor).outputs
    prior = torch.zeros(2 * count + 1, dtype=torch.float64)
    prior[: len(prior_weights)] = torch.tensor(prior_weights, dtype=torch.float64)
    gram = torch.zeros(2 * count + 1, 2 * count + 1, dtype=torch.float64)
    right = torch.zeros(2 * count + 1, dtype=torch.float64)
    for trace in traces:
        columns = [at(trace, p) for p in points]
        columns += [trace.states[p - first].latents for p in points] + [trace.states[step - first].latents]
        basis = torch.stack([column.flatten() for column in columns], dim=-1).double().cpu()
        truth = at(trace, step).flatten().double().cpu()
        size = truth.square().sum()  # traces count alike, however loud they are
        gram += basis.mT @ basis / size
        right += basis.mT @ (truth - basis @ prior) / size
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    found = prior + torch.linalg.solve(gram, right)
    return tuple(float(weight) for weight in found)
