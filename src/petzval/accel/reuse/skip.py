"""Which branches of a step are computed, what stands for the others, and what that costs of a budget.

Everything remembered is in the trajectory's history, so a trajectory skips the same steps alone or in a group, paused
or not, and on whichever machine it goes on.

Series: "computed/cond" and "computed/delta/BRANCH" (the conditional prediction less the branch's) of steps computed;
"computed/latents" there; "seen/NAME" what the signal read last. Numbers: "reuse/...", "guidance/...".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from petzval.accel.reuse.forecasts import Forecast, apply, forecast_named
from petzval.accel.reuse.signals import Look, Signal, signal_named
from petzval.types import GuidancePlan, Plan, ReusePlan

GAIN_LIMITS: Final = (0.1, 10.0)
"""How far computed steps may correct what a signal foresees."""

DELTA_FORECAST: Final = ReusePlan(forecast="taylor", order=1)
"""How the difference between guidance branches is forecast where the conditional branch is computed: it is smoother
than either."""


class Remembered(Protocol):
    """What of a history is read here."""

    series: dict[str, list[tuple[int, Tensor]]]
    numbers: dict[str, float]


class State(Protocol):
    """What of a trajectory is read here."""

    plan: Plan
    latents: Tensor
    step: int
    history: Any


@dataclass(frozen=True)
class Decision:
    """What to compute of one step."""

    compute: tuple[str, ...]
    """Branches."""
    predicted: tuple[str, ...]
    """Branches that must come out, computed or forecast."""
    spent: float = 0.0
    """Of the budget, should nothing be computed."""
    seen: dict[str, Tensor] = field(default_factory=dict)
    """What the signal read, by name."""


@dataclass(frozen=True)
class Settled:
    """A step's predictions, and what should be remembered of how they came about."""

    predictions: dict[str, Tensor]
    remember: list[tuple[str, Tensor, int]] = field(default_factory=list)
    """(series, entry, how many entries the series keeps)"""
    numbers: dict[str, float] = field(default_factory=dict)


class Skipping:
    """Decides by the plan that each trajectory carries. Holds no state."""

    def probe(self, t: State) -> str | None:
        """What must be asked of the model before `decide`: nothing where the step is computed or skipped anyway."""
        reuse = t.plan.steps.reuse
        signal = signal_named(reuse) if reuse else None
        return signal.probe if signal else None

    def decide(self, t: State, probed: Mapping[str, Tensor]) -> Decision:
        """`probed`: the probe's answer by branch."""
        needed = t.plan.schedule.branches(t.step)
        if t.history.numbers.get("guidance/stopped"):
            needed = ("cond",)
        reuse, guidance = t.plan.steps.reuse, t.plan.steps.guidance
        spent = 0.0
        seen: dict[str, Tensor] = {}
        if reuse is not None:
            spent, seen = _foresee(t, reuse, probed)
            if not _must_compute(t, reuse, spent):
                return Decision((), needed, spent, seen)
        if guidance is not None and len(needed) > 1 and _may_forecast_delta(t, guidance, needed):
            return Decision(("cond",), needed, spent, seen)
        return Decision(needed, needed, spent, seen)

    def settle(self, t: State, decision: Decision, outputs: Mapping[str, Tensor]) -> Settled:
        """`outputs`: predictions of the branches that `decision` had computed."""
        reuse, guidance = t.plan.steps.reuse, t.plan.steps.guidance
        if reuse is None and guidance is None:
            return Settled(dict(outputs))
        if not outputs:
            assert reuse is not None
            return _forecast_all(t, reuse, decision)
        predictions, remember = _complete(t, decision, outputs)
        numbers: dict[str, float] = {}
        saved = len(decision.predicted) - len(outputs)
        if saved:
            numbers["reuse/saved"] = t.history.numbers.get("reuse/saved", 0.0) + saved
        if reuse is not None:
            remember += [(name, value, 1) for name, value in decision.seen.items()]
            remember.append(("computed/latents", t.latents, _kept(reuse)))
            numbers |= {"reuse/spent": 0.0, "reuse/in_a_row": 0.0, **_learn(t, reuse, decision, predictions["cond"])}
        if guidance is not None and guidance.stop_at_cosine is not None and len(outputs) > 1:
            alike = min(_cosine(outputs["cond"], value) for name, value in outputs.items() if name != "cond")
            if alike >= guidance.stop_at_cosine:
                numbers["guidance/stopped"] = 1.0
        return Settled(predictions, remember, numbers)


# -- the gate ---------------------------------------------------------------------------------------------------------


def _must_compute(t: State, reuse: ReusePlan, spent: float) -> bool:
    schedule, numbers = t.plan.schedule, t.history.numbers
    begun = max(schedule.first_step, _expert_start(t))
    row = forecast_named(reuse)
    known = len(_points(t, "computed/cond"))
    if t.step - begun < reuse.first_full or known < row.reads(reuse.order):
        return True
    if t.step >= schedule.num_steps - reuse.last_full:
        return True
    if numbers.get("reuse/in_a_row", 0.0) >= reuse.max_consecutive:
        return True
    if reuse.computed is not None and t.step in reuse.computed:
        return True
    return reuse.signal is not None and spent >= reuse.budget


def _expert_start(t: State) -> int:
    """The first step of the run of steps that the present expert computes: another's predictions say nothing of it."""
    experts = t.plan.schedule.experts
    start = t.step
    while start > 0 and experts[start - 1] == experts[t.step]:
        start -= 1
    return start


def _entries(t: State, name: str) -> list[tuple[int, Tensor]]:
    """Entries of a series that the present expert made, newest first."""
    start = _expert_start(t)
    return [entry for entry in reversed(t.history.series.get(name, [])) if entry[0] >= start]


def _points(t: State, name: str) -> list[int]:
    return [step for step, _ in _entries(t, name)]


def _foresee(t: State, reuse: ReusePlan, probed: Mapping[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    """The budget spent if this step is forecast, and what the signal read. Branches are asked together: the one that
    changes most decides for all."""
    signal = signal_named(reuse)
    if signal is None:
        return 0.0, {}
    seen = {f"seen/{branch}": value for branch, value in probed.items()} if signal.probe else {"seen/x": t.latents}
    values = [_value(t, reuse, signal, name, now) for name, now in seen.items()]
    value = max((v for v in values if v is not None), default=0.0)
    gain = t.history.numbers.get("reuse/gain", 1.0)
    before = t.history.numbers.get("reuse/spent", 0.0) if signal.accumulates else 0.0
    return before + gain * value, seen


def _value(t: State, reuse: ReusePlan, signal: Signal, name: str, now: Tensor) -> float | None:
    entries, outputs = _entries(t, name), _entries(t, "computed/cond")
    if not entries or not outputs:
        return None
    at, before = entries[0]
    sigmas = t.plan.schedule.sigmas
    rate = t.history.numbers.get("reuse/rate", 0.0)
    return signal.value(Look(now, before, sigmas[t.step], sigmas[at], rate, outputs[0][1]), reuse)


def _learn(t: State, reuse: ReusePlan, decision: Decision, truth: Tensor) -> dict[str, float]:
    """What a computed step teaches, for free: how far the forecast would have been off against what the signal
    foresaw, and the model's rate of change."""
    if reuse.signal is None:
        return {}
    learnt: dict[str, float] = {}
    outputs, latents = _entries(t, "computed/cond"), _entries(t, "computed/latents")
    if outputs and latents and latents[0][0] == outputs[0][0]:
        moved = float((t.latents - latents[0][1]).abs().mean())
        if moved > 0:
            learnt["reuse/rate"] = float((truth - outputs[0][1]).abs().mean()) / moved
    row = forecast_named(reuse)
    if decision.spent > 0 and len(outputs) >= row.reads(reuse.order):
        guess = _forecast(t, reuse, row, "computed/cond")
        off = float((guess - truth).abs().mean() / truth.abs().mean().clamp_min(1e-12))
        gain = t.history.numbers.get("reuse/gain", 1.0)
        # Halfway on a log scale: one surprising step must not decide alone.
        better = gain * (max(off, 1e-6) / decision.spent) ** 0.5
        learnt["reuse/gain"] = min(GAIN_LIMITS[1], max(GAIN_LIMITS[0], better))
    return learnt


# -- the fill ---------------------------------------------------------------------------------------------------------


def _kept(reuse: ReusePlan | None) -> int:
    deltas = forecast_named(DELTA_FORECAST).reads(DELTA_FORECAST.order)
    return max(deltas, forecast_named(reuse).reads(reuse.order)) if reuse else deltas


def _forecast(t: State, reuse: ReusePlan, row: Forecast, name: str) -> Tensor:
    entries = _entries(t, name)[: row.reads(reuse.order)]
    points = [step for step, _ in entries]
    weights = row.weigh(points, t.step, t.plan.schedule, reuse)
    outputs = [value for _, value in entries]
    if name != "computed/cond" or not row.reads_latents:
        # Branches see the same latents, so their differences have none in them.
        return apply(weights, outputs, (), None)
    past = dict(_entries(t, "computed/latents"))
    return apply(weights, outputs, [past[step] for step in points], t.latents)


def _forecast_all(t: State, reuse: ReusePlan, decision: Decision) -> Settled:
    row = forecast_named(reuse)
    cond = _forecast(t, reuse, row, "computed/cond")
    predictions = {"cond": cond}
    for branch in decision.predicted:
        if branch != "cond":
            predictions[branch] = cond - _forecast(t, reuse, row, f"computed/delta/{branch}")
    signal, numbers = signal_named(reuse), t.history.numbers
    remember = [(name, value, 1) for name, value in decision.seen.items()] if signal and signal.accumulates else []
    return Settled(
        predictions,
        remember,
        {
            "reuse/spent": decision.spent,
            "reuse/in_a_row": numbers.get("reuse/in_a_row", 0.0) + 1,
            "reuse/saved": numbers.get("reuse/saved", 0.0) + len(decision.predicted),
        },
    )


def _complete(
    t: State, decision: Decision, outputs: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[tuple[str, Tensor, int]]]:
    """All predictions, those not computed by the forecast of their difference; and the series to extend."""
    cond, keep = outputs["cond"], _kept(t.plan.steps.reuse)
    predictions = dict(outputs)
    remember = [("computed/cond", cond, keep)]
    for branch in decision.predicted:
        if branch in outputs and branch != "cond":
            remember.append((f"computed/delta/{branch}", cond - outputs[branch], keep))
        elif branch not in outputs:
            row = forecast_named(DELTA_FORECAST)
            predictions[branch] = cond - _forecast(t, DELTA_FORECAST, row, f"computed/delta/{branch}")
    return predictions, remember


def _may_forecast_delta(t: State, guidance: GuidancePlan, needed: tuple[str, ...]) -> bool:
    schedule = t.plan.schedule
    if t.step < guidance.forecast_from * schedule.num_steps or t.step >= schedule.num_steps - 1:
        return False
    for branch in needed:
        points = _points(t, f"computed/delta/{branch}") if branch != "cond" else [t.step, t.step]
        if len(points) < 2 or (t.step - points[0] >= guidance.forecast_every and branch != "cond"):
            return False
    return True


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten().float(), b.flatten().float(), dim=0))
