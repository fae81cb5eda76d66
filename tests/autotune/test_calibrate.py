"""Schedules and weights found from recordings are the best ones, and do what they promised when they are run."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from petzval.accel.reuse.planning import with_steps
from petzval.accel.reuse.skip import Skipping
from petzval.autotune.calibrate import Trace, at, choose_steps, fit, guess, influence, record
from petzval.errors import BadRequestError
from petzval.sampling.trajectory import Trajectory, advance, fork
from petzval.types import ReusePlan, StepPlan
from tests.sampling.tiny_denoiser import TinyDenoiser, start
from tests.sampling.twins import relative

STEPS = 14
HOLD = ReusePlan(forecast="hold", order=0, first_full=2, last_full=1, max_consecutive=4)


@pytest.fixture(scope="module")
def model() -> TinyDenoiser:
    return TinyDenoiser()


@pytest.fixture(scope="module")
def traces(model: TinyDenoiser) -> list[Trace]:
    return record(model, [start(seed=seed, num_inference_steps=STEPS) for seed in range(4)])


def finish(trajectory: Trajectory, model: TinyDenoiser, steps: StepPlan | None = None) -> torch.Tensor:
    t = fork(trajectory)
    if steps is not None:
        t.plan = with_steps(t.plan, steps)
    while not t.done:
        advance([t], model, Skipping())
    return t.latents


def loss(traces: list[Trace], model: TinyDenoiser, reuse: ReusePlan) -> float:
    plans = [relative(finish(t.states[0], model, StepPlan(reuse=reuse)), t.final) for t in traces]
    return sum(plans) / len(plans)


class Off(Skipping):
    """Moves the prediction of one step by so much, in the direction in which it changed last."""

    def __init__(self, trace: Trace, step: int, size: float) -> None:
        change = at(trace, step) - at(trace, step - 1)
        self.step, self.error = step, change * (size * at(trace, step).norm() / change.norm())

    def settle(self, t: Any, decision: Any, outputs: Any) -> Any:
        if t.step == self.step:
            outputs = {name: value + self.error for name, value in outputs.items()}
        return super().settle(t, decision, outputs)


def test_a_recording_is_the_run_itself(model: TinyDenoiser, traces: list[Trace]) -> None:
    for trace in traces:
        assert [t.step for t in trace.states] == list(range(STEPS))
        assert torch.equal(finish(trace.states[0], model), trace.final)
        assert torch.equal(finish(trace.states[9], model), trace.final), "a state kept on the way goes on as it did"


def test_recording_leaves_the_start_alone_and_wants_one_schedule(model: TinyDenoiser) -> None:
    begun = start(num_inference_steps=4)
    before = begun.latents.clone()
    record(model, [begun])
    assert begun.step == 0
    assert torch.equal(begun.latents, before)
    with pytest.raises(BadRequestError, match="one schedule"):
        record(model, [begun, start(num_inference_steps=5)])


def test_influence_foretells_what_an_error_does(model: TinyDenoiser, traces: list[Trace]) -> None:
    """Of another size than the one it was measured with. Between measured steps it is a guess: multistep samplers
    weigh neighbouring steps unevenly."""
    weights = influence(model, traces, every=3)
    assert len(weights) == STEPS
    for step in (4, 7, 10):
        moved = []
        for trace in traces:
            t = fork(trace.states[0])
            while not t.done:
                advance([t], model, Off(trace, step, 0.02))
            moved.append(relative(t.latents, trace.final) / 0.02)
        assert sum(moved) / len(moved) == pytest.approx(weights[step], rel=0.35)


@pytest.mark.parametrize("forecast", ["hold", "taylor"])
def test_the_schedule_found_is_the_cheapest_of_all(model: TinyDenoiser, traces: list[Trace], forecast: str) -> None:
    """Against trying every set of steps, with the same costs."""
    reuse = dataclasses.replace(HOLD, forecast=forecast, order=0 if forecast == "hold" else 1)
    weights = influence(model, traces, every=4)

    def cost(computed: tuple[int, ...]) -> float:
        from petzval.accel.reuse.forecasts import forecast_named

        row, total = forecast_named(reuse), 0.0
        for step in set(range(STEPS)) - set(computed):
            points = [p for p in sorted(computed, reverse=True) if p < step][: row.reads(reuse.order)]
            w = row.weigh(points, step, traces[0].schedule, reuse)
            errors = [relative(guess(t, w, points, step), at(t, step)) for t in traces]
            total += weights[step] * sum(errors) / len(errors)
        return total

    def allowed(computed: tuple[int, ...]) -> bool:
        return all(b - a <= reuse.max_consecutive + 1 for a, b in itertools.pairwise(computed))

    found = choose_steps(traces, weights, reuse, num_computed=7)
    middle = itertools.combinations(range(2, STEPS - 1), 4)
    every = [c for c in ((0, 1, *inner, STEPS - 1) for inner in middle) if allowed(c)]
    assert found in every
    assert cost(found) == pytest.approx(min(map(cost, every)), rel=1e-4)


def test_what_was_chosen_is_what_is_computed_and_beats_even_spacing(model: TinyDenoiser, traces: list[Trace]) -> None:
    weights = influence(model, traces, every=2)
    chosen = dataclasses.replace(HOLD, computed=choose_steps(traces, weights, HOLD, num_computed=7))
    even = dataclasses.replace(HOLD, computed=(0, 1, 3, 5, 8, 11, 13))
    model.batches.clear()
    finish(traces[0].states[0], model, StepPlan(reuse=chosen))
    assert tuple(steps[0] for steps, _ in model.batches) == chosen.computed
    assert loss(traces, model, chosen) < loss(traces, model, even)


def test_fitted_weights_beat_what_they_start_from_on_other_seeds(model: TinyDenoiser, traces: list[Trace]) -> None:
    others = record(model, [start(seed=seed, num_inference_steps=STEPS) for seed in range(50, 54)])
    computed = (0, 1, 4, 7, 10, 13)
    for order, forecast in ((0, "hold"), (1, "taylor")):
        plain = ReusePlan(forecast=forecast, order=order, first_full=2, max_consecutive=4, computed=computed)
        fitted = dataclasses.replace(plain, forecast="least-squares")
        fitted = dataclasses.replace(fitted, weights=fit(traces, computed, fitted))
        assert loss(others, model, fitted) < loss(others, model, plain)


def test_a_strong_ridge_is_the_taylor_forecast(traces: list[Trace]) -> None:
    plan = ReusePlan(forecast="least-squares", order=1, computed=(0, 1, 4, 13))
    rows = fit(traces, (0, 1, 4, 13), plan, ridge=1e9)
    assert rows[0] == rows[4] == ()
    assert sum(rows[6][:2]) == pytest.approx(1.0, abs=1e-4)
    assert rows[6][2:] == pytest.approx((0, 0, 0), abs=1e-4)


@pytest.mark.parametrize(("count", "told"), [(3, "cannot be reached"), (2, "cannot be reached")])
def test_too_few_steps_are_refused(traces: list[Trace], count: int, told: str) -> None:
    with pytest.raises(BadRequestError, match=told):
        choose_steps(traces, [1.0] * STEPS, HOLD, num_computed=count)
