"""Skipping steps: what is computed is what the plan says, and it composes with everything a trajectory can do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from petzval.accel.reuse.forecasts import FORECASTS
from petzval.accel.reuse.planning import with_steps
from petzval.accel.reuse.signals import SIGNALS, relative_l1, signal_part
from petzval.accel.reuse.skip import Skipping
from petzval.errors import BadRequestError
from petzval.sampling import trajectory_file
from petzval.sampling.samplers import SAMPLERS
from petzval.sampling.trajectory import Trajectory, advance, fork
from petzval.types import GuidancePlan, ReusePlan, StepPlan
from tests.sampling.tiny_denoiser import CHECKPOINT, CPU, TinyDenoiser, start
from tests.sampling.twins import relative

SKIPPING = Skipping()
STEPS = 16


class ProbedDenoiser(TinyDenoiser):
    """Answers both probes with something cheap of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.probes: list[str] = []

    def probe(self, name: str, latents: torch.Tensor, steps: Any, branches: Any, invariants: Any) -> torch.Tensor:
        self.probes.append(name)
        modulation = torch.stack([k.modulation_RD[b][s] for s, b, k in zip(steps, branches, invariants, strict=True)])
        return self.proj_in(latents.flatten(2).mT) * (1 + modulation[:, None])


@pytest.fixture(scope="module")
def model() -> ProbedDenoiser:
    return ProbedDenoiser()


def begin(steps: StepPlan, **options: Any) -> Trajectory:
    trajectory = start(**{"num_inference_steps": STEPS, **options})
    trajectory.plan = with_steps(trajectory.plan, steps)
    return trajectory


def run(trajectory: Trajectory, model: TinyDenoiser, num_steps: int | None = None) -> Trajectory:
    left = trajectory.plan.schedule.num_steps - trajectory.step
    for _ in range(left if num_steps is None else num_steps):
        advance([trajectory], model, SKIPPING)
    return trajectory


def evaluations(model: TinyDenoiser, trajectory: Trajectory) -> list[tuple[int, tuple[str, ...]]]:
    """(step, branches) of each forward that a run took."""
    model.batches.clear()
    run(trajectory, model)
    return [(steps[0], tuple(branches)) for steps, branches in model.batches]


def reuse(forecast: str, *, signal: str | None = None, budget: float = 0.0, **fields: Any) -> StepPlan:
    row = FORECASTS[forecast]
    order = max(1, row.min_order) if row.reads(9) != 1 else 0
    return StepPlan(
        reuse=ReusePlan(
            **{
                "forecast": forecast,
                "order": order,
                "first_full": max(2, row.reads(order)),
                "signal": signal,
                "budget": budget,
                **fields,
            }
        )
    )


FILLS = sorted(set(FORECASTS) - {"least-squares"})
PLANS = st.one_of(
    st.builds(reuse, st.sampled_from(FILLS), max_consecutive=st.integers(1, 3)),
    st.builds(reuse, st.sampled_from(FILLS), computed=st.sampled_from([(4, 8, 12), (5, 6, 11)])),
    st.builds(
        reuse, st.sampled_from(FILLS), signal=st.sampled_from(sorted(SIGNALS)), budget=st.sampled_from([0.02, 0.1, 0.5])
    ),
    st.just(StepPlan(guidance=GuidancePlan(forecast_from=0.25, forecast_every=3))),
    st.just(StepPlan(guidance=GuidancePlan(interval=(0.1, 0.7), stop_at_cosine=0.97))),
    st.builds(
        lambda steps: dataclasses.replace(steps, guidance=GuidancePlan(forecast_from=0.3, forecast_every=2)),
        st.builds(reuse, st.sampled_from(FILLS), max_consecutive=st.integers(1, 2)),
    ),
    st.just(StepPlan()),
)
OPTIONS = st.fixed_dictionaries(
    {
        "sampler": st.sampled_from(sorted(SAMPLERS)),
        "size": st.sampled_from([(3, 5), (2, 2)]),
        "guidance_scale": st.sampled_from([1.0, 3.0]),
        "strength": st.sampled_from([None, 0.7]),
        "seed": st.integers(0, 1000),
    }
)


# -- what is computed -------------------------------------------------------------------------------------------------


def test_an_offline_schedule_is_computed_and_nothing_else(model: ProbedDenoiser) -> None:
    steps = reuse("taylor", computed=(4, 9), max_consecutive=9, first_full=2, last_full=1)
    assert [step for step, _ in evaluations(model, begin(steps))] == [0, 1, 4, 9, STEPS - 1]


def test_no_more_than_so_many_steps_in_a_row_are_forecast(model: ProbedDenoiser) -> None:
    computed = [step for step, _ in evaluations(model, begin(reuse("hold", max_consecutive=2, first_full=3)))]
    assert computed == [0, 1, 2, 5, 8, 11, 14, 15]


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_larger_budget_computes_less(model: ProbedDenoiser, signal: str) -> None:
    counts = [
        len(evaluations(model, begin(reuse("taylor", signal=signal, budget=budget, max_consecutive=20))))
        for budget in (1e-9, 0.05, 0.5, 100.0)
    ]
    assert counts[0] == STEPS
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 2 + 1
    assert len(set(counts)) > 2, "the budget is felt in between, too"


def test_a_trajectory_that_starts_midway_computes_its_own_first_steps(model: ProbedDenoiser) -> None:
    trajectory = begin(reuse("taylor", max_consecutive=3), strength=0.5)
    first = trajectory.step
    assert first > 0
    assert [step for step, _ in evaluations(model, trajectory)][:2] == [first, first + 1]


def test_another_expert_starts_anew(model: ProbedDenoiser) -> None:
    """Its predictions are other functions: none of the first expert's is read."""
    trajectory = begin(reuse("taylor", max_consecutive=3, first_full=2))
    experts = ("transformer",) * 7 + ("transformer_2",) * (STEPS - 7)
    trajectory.plan = dataclasses.replace(
        trajectory.plan, schedule=dataclasses.replace(trajectory.plan.schedule, experts=experts)
    )
    assert [step for step, _ in evaluations(model, trajectory)][:6] == [0, 1, 5, 7, 8, 12]


def test_guidance_forecast_computes_both_branches_every_third_step(model: ProbedDenoiser) -> None:
    found = evaluations(model, begin(StepPlan(guidance=GuidancePlan(forecast_from=0.5, forecast_every=3))))
    both = [step for step, branches in found if branches == ("cond", "uncond")]
    assert both == [*range(8), 10, 13, 15]
    assert [step for step, _ in found] == list(range(STEPS))


def test_guidance_outside_its_interval_is_not_computed(model: ProbedDenoiser) -> None:
    found = evaluations(model, begin(StepPlan(guidance=GuidancePlan(interval=(0.25, 0.5)))))
    assert [step for step, branches in found if len(branches) == 2] == [4, 5, 6, 7]


def test_guidance_stops_for_good_when_branches_agree(model: ProbedDenoiser) -> None:
    found = evaluations(model, begin(StepPlan(guidance=GuidancePlan(stop_at_cosine=-1.0))))
    assert [len(branches) for _, branches in found] == [2] + [1] * (STEPS - 1)


def test_what_was_saved_is_counted(model: ProbedDenoiser) -> None:
    trajectory = begin(reuse("hold", max_consecutive=1))
    model.batches.clear()
    run(trajectory, model)
    done = sum(len(branches) for _, branches in model.batches)
    assert done + trajectory.history.numbers["reuse/saved"] == 2 * STEPS


def test_nothing_skipped_is_bit_identical(model: ProbedDenoiser) -> None:
    plain = start(num_inference_steps=STEPS)
    while not plain.done:
        advance([plain], model)
    same = run(begin(StepPlan()), model)
    never = run(begin(reuse("taylor", signal="latent-rate", budget=1e-12)), model)
    assert torch.equal(plain.latents, same.latents)
    assert torch.equal(plain.latents, never.latents)


def test_a_gate_corrects_itself_by_what_it_computes(model: ProbedDenoiser) -> None:
    trajectory = begin(reuse("taylor", signal="latent-rate", budget=0.05))
    run(trajectory, model, 8)
    assert trajectory.history.numbers["reuse/gain"] != 1.0


# -- how good it is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forecast", ["taylor", "adams-bashforth", "foca"])
def test_forecasting_beats_holding(model: ProbedDenoiser, forecast: str) -> None:
    """On a smooth model, at equal numbers of evaluations, mean over seeds."""

    def error(name: str) -> float:
        losses = []
        for seed in range(6):
            truth = run(begin(StepPlan(), seed=seed, num_inference_steps=30), model)
            fast = run(begin(reuse(name, max_consecutive=2, first_full=3), seed=seed, num_inference_steps=30), model)
            losses.append(relative(fast.latents, truth.latents))
        return sum(losses) / len(losses)

    assert error(forecast) < error("hold")


# -- composition ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PLANS, OPTIONS, st.integers(0, 9)), min_size=2, max_size=4))
def test_company_does_not_change_a_trajectory(
    model: ProbedDenoiser, members: list[tuple[StepPlan, dict[str, Any], int]]
) -> None:
    """Some forecast while others compute, at different steps, with different plans."""
    alone = [run(begin(steps, **options), model) for steps, options, _ in members]
    group = [run(begin(steps, **options), model, ahead) for steps, options, ahead in members]
    while left := [t for t in group if not t.done]:
        advance(left, model, SKIPPING)
    for together, reference in zip(group, alone, strict=True):
        assert relative(together.latents, reference.latents) <= 1e-5
        assert together.history.numbers.get("reuse/saved") == reference.history.numbers.get("reuse/saved")


@settings(max_examples=40, deadline=None)
@given(PLANS, OPTIONS, st.integers(0, 11))
def test_saved_loaded_and_forked_at_any_step_it_ends_bit_identical(
    model: ProbedDenoiser, steps: StepPlan, options: dict[str, Any], stop: int
) -> None:
    whole = run(begin(steps, **options), model)
    paused = begin(steps, **options)
    run(paused, model, min(stop, paused.plan.schedule.num_steps - paused.step))
    twin = fork(paused)
    loaded = trajectory_file.from_bytes(trajectory_file.to_bytes(paused), CHECKPOINT, CPU)
    for other in (paused, twin, loaded):
        assert torch.equal(run(other, model).latents, whole.latents)
        assert other.history.numbers == whole.history.numbers


def test_a_saved_trajectory_keeps_its_budget(model: ProbedDenoiser, tmp_path: Path) -> None:
    trajectory = run(begin(reuse("taylor", signal="latent-rate", budget=0.3)), model, 7)
    trajectory_file.save(trajectory, tmp_path / "t")
    assert trajectory_file.load(tmp_path / "t", CHECKPOINT, CPU).history.numbers == trajectory.history.numbers
    assert trajectory.history.numbers["reuse/spent"] > 0 or trajectory.history.numbers["reuse/in_a_row"] == 0


def test_histories_stay_short(model: ProbedDenoiser) -> None:
    trajectory = run(begin(reuse("taylor", signal="modulated-input", budget=0.3), num_inference_steps=40), model)
    assert max(len(entries) for entries in trajectory.history.series.values()) <= 3


def test_all_branches_are_asked_and_one_call_serves_a_group(model: ProbedDenoiser) -> None:
    group = [begin(reuse("taylor", signal="first-block", budget=0.1), seed=seed) for seed in (1, 2)]
    model.probes.clear()
    advance(group, model, SKIPPING)
    assert model.probes == ["first-block"]
    assert {"seen/cond", "seen/uncond"} <= set(group[0].history.series)


# -- signals ----------------------------------------------------------------------------------------------------------


def test_filtering_keeps_clean_latents_and_drops_fine_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.linspace(-1, 1, 16)
    smooth = (rows[:, None] + rows[None]).expand(4, 16, 16)
    noise = torch.randn(4, 16, 16, generator=generator)
    assert relative_l1(signal_part(smooth, 0.0), smooth) < 1e-3
    assert signal_part(noise, 0.98).abs().mean() < 0.35 * noise.abs().mean()
    assert relative_l1(signal_part(0.3 * smooth + 0.7 * noise, 0.7), 0.3 * smooth) < relative_l1(
        0.3 * smooth + 0.7 * noise, 0.3 * smooth
    )


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (reuse("hold", first_full=0), "reuse.first_full must be at least 1, got 0"),
        (reuse("taylor", first_full=1), "reuse.first_full must be at least 2, what forecast 'taylor' of order 1 reads"),
        (reuse("hold", max_consecutive=0), "reuse.max_consecutive must be at least 1"),
        (reuse("hold", last_full=-1), "reuse.last_full must be at least 0"),
        (reuse("hold", budget=0.1), "reuse.budget has no effect without reuse.signal"),
        (reuse("hold", signal="latent-rate"), "reuse.budget must be above 0"),
        (reuse("hold", signal="weather", budget=1.0), "signal must be one of latent-rate"),
        (reuse("hold", computed=(3, 2)), "reuse.computed must be rising steps"),
        (reuse("hold", polynomial=(2.0, 0.0)), "reuse.polynomial has no effect"),
        (reuse("least-squares"), "reuse.weights are needed by"),
        (reuse("hold", weights=((1.0,),)), "reuse.weights are needed by"),
        (reuse("least-squares", weights=((1.0,),)), "reuse.weights are fitted for steps named in reuse.computed"),
        (reuse("least-squares", weights=((1.0,),), computed=(3,)), "fitted for 1 steps, the schedule has 16"),
        (StepPlan(guidance=GuidancePlan()), "a plan that changes nothing"),
        (StepPlan(guidance=GuidancePlan(interval=(0.5, 0.5))), "guidance.interval must be"),
        (StepPlan(guidance=GuidancePlan(forecast_from=0.5)), "have no effect without each other"),
        (StepPlan(guidance=GuidancePlan(forecast_every=2)), "have no effect without each other"),
        (StepPlan(guidance=GuidancePlan(forecast_from=0.5, forecast_every=0)), "must be at least 1, got 0"),
        (StepPlan(guidance=GuidancePlan(forecast_from=2.0)), "must be 0 to 1, got 2.0"),
    ],
)
def test_what_cannot_be_planned_is_named(steps: StepPlan, told: str) -> None:
    with pytest.raises(BadRequestError) as error:
        begin(steps)
    assert told in str(error.value)
