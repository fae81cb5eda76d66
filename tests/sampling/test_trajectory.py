"""The trajectory's promises: the same end alone or in a group, forked or not, and no change at all on an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from petzval.sampling.history import History
from petzval.sampling.noise import Noise
from petzval.sampling.samplers import SAMPLERS
from petzval.sampling.trajectory import Trajectory, advance, begin, fork, to_clean
from petzval.sampling.trajectory_file import to_bytes
from tests.sampling.tiny_denoiser import CPU, TinyDenoiser, TinyInvariants, make_plan, run, start
from tests.sampling.twins import finish, relative

NUM_STEPS = 6
MEMBERS = st.fixed_dictionaries(
    {
        "sampler": st.sampled_from(sorted(SAMPLERS)),
        "size": st.sampled_from([(3, 5), (2, 2), (7, 1)]),
        "num_inference_steps": st.integers(NUM_STEPS, NUM_STEPS + 2),
        "guidance_scale": st.sampled_from([1.0, 3.0]),
        "strength": st.sampled_from([None, 0.7]),
        "seed": st.integers(0, 2**32),
    }
)


@pytest.fixture(scope="module")
def model() -> TinyDenoiser:
    return TinyDenoiser()


def same(a: Trajectory, b: Trajectory) -> bool:
    """Equal in every bit of state."""
    return to_bytes(a) == to_bytes(b)


@pytest.mark.parametrize("strength", [None, 0.7])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_whole_trajectory_equals_the_loop_that_diffusers_agrees_with(
    model: TinyDenoiser, sampler: str, strength: float | None
) -> None:
    trajectory = start(sampler=sampler, strength=strength, guidance_scale=1.0, num_inference_steps=8)
    known, sigmas = model.invariants(trajectory.plan, trajectory.conditioning), trajectory.plan.schedule.sigmas

    def velocity(latents: Tensor, sigma: float) -> Tensor:
        return model.predict(latents[None], [sigmas.index(sigma)], ["cond"], [known])[0]

    expected = finish(
        sampler,
        sigmas,
        trajectory.latents,
        first_step=trajectory.step,
        velocity=velocity,
        noise=trajectory.noise.copy(),
    )
    assert relative(run(trajectory, model).latents, expected) <= 1e-6
    reads = SAMPLERS[sampler].reads
    for name, entries in trajectory.history.series.items():
        assert len(entries) <= max(1, reads.get(name, 1)), f"{name} remembers more than anyone reads"


# -- alone, together, forked ------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.tuples(MEMBERS, st.integers(0, 3)), min_size=4, max_size=4), st.permutations(range(4)))
def test_a_group_ends_as_its_members_do_alone(
    model: TinyDenoiser, members: list[tuple[dict[str, Any], int]], order: list[int]
) -> None:
    """Of different shapes, samplers and steps; in any order."""
    alone = [run(start(**options), model) for options, _ in members]
    group, shuffled = ([run(start(**options), model, num_steps=ahead) for options, ahead in members] for _ in range(2))
    while left := [t for t in group if not t.done]:
        advance(left, model)
    while left := [shuffled[place] for place in order if not shuffled[place].done]:
        advance(left, model)
    for together, reordered, reference in zip(group, shuffled, alone, strict=True):
        assert relative(together.latents, reference.latents) <= 1e-5
        assert relative(reordered.latents, reference.latents) <= 1e-5
        assert torch.equal(together.noise.state(), reference.noise.state())


@settings(max_examples=40)
@given(MEMBERS, st.integers(0, 4))
def test_forks_that_advance_equally_are_equal(model: TinyDenoiser, options: dict[str, Any], step: int) -> None:
    original = run(start(**options), model, num_steps=step)
    twin = fork(original)
    assert same(original, twin)
    run(original, model)
    assert twin.step == original.plan.schedule.first_step + step, "a fork stays where it is"
    assert same(original, run(twin, model))


def test_a_fork_shares_what_never_changes(model: TinyDenoiser) -> None:
    original = run(start(), model, num_steps=2)
    twin = fork(original)
    assert twin.conditioning is original.conditioning
    assert twin.invariants is original.invariants
    assert twin.history.last("denoised") is original.history.last("denoised")
    assert twin.noise is not original.noise


@settings(max_examples=20)
@given(st.integers(0, 2**63), st.sampled_from([(3, 5), (1, 1), (4, 4)]))
def test_noise_depends_on_the_seed_alone(seed: int, size: tuple[int, int]) -> None:
    expected = torch.randn(4, *size, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(1)
    first = start(seed=seed, size=size)
    torch.manual_seed(2)
    others = [start(seed=seed + 1), start(seed=seed, size=size)]
    assert torch.equal(first.latents, expected)
    assert torch.equal(others[1].latents, expected)


def test_fresh_noise_of_a_stochastic_sampler_depends_on_the_seed_alone(model: TinyDenoiser) -> None:
    options: dict[str, Any] = {"sampler": "euler-stochastic", "guidance_scale": 1.0}
    alone = run(start(seed=4, **options), model)
    group = [start(seed=seed, **options) for seed in (3, 4, 5)]
    for _ in range(NUM_STEPS):
        torch.randn(7)  # the global generator is nobody's business
        advance(group, model)
    assert relative(group[1].latents, alone.latents) <= 1e-5
    assert torch.equal(group[1].noise.state(), alone.noise.state())
    assert not torch.allclose(group[0].latents, group[1].latents, atol=0.1)


# -- an error changes nothing -----------------------------------------------------------------------------------------


class FailingDenoiser(TinyDenoiser):
    """Raises at its second forward, when one bucket has already been computed."""

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[TinyInvariants]
    ) -> Tensor:
        if self.batches:
            raise RuntimeError("out of luck")
        return super().predict(latents, steps, branches, invariants)


def test_an_error_of_the_model_leaves_every_trajectory_as_it_was(model: TinyDenoiser) -> None:
    group = [run(start(size=size, sampler="euler-stochastic"), model, num_steps=2) for size in ((3, 5), (2, 2))]
    before = [to_bytes(t) for t in group]
    with pytest.raises(RuntimeError, match="out of luck"):
        advance(group, FailingDenoiser())
    assert [to_bytes(t) for t in group] == before


def test_an_error_of_a_sampler_leaves_every_trajectory_as_it_was(model: TinyDenoiser) -> None:
    """The first has drawn fresh noise by the time the second fails; that noise must come again."""
    drawn = run(start(sampler="euler-stochastic"), model, num_steps=2)
    damaged = run(start(sampler="unipc"), model, num_steps=2)
    damaged.history.series.pop("latents")
    before = [to_bytes(t) for t in (drawn, damaged)]
    with pytest.raises(IndexError, match="history has 0 entries of 'latents'"):
        advance([drawn, damaged], model)
    assert [to_bytes(t) for t in (drawn, damaged)] == before
    undisturbed = run(start(sampler="euler-stochastic"), model)
    assert same(run(drawn, model), undisturbed)


class WrongShapeDenoiser(TinyDenoiser):
    """Forgets a channel."""

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[TinyInvariants]
    ) -> Tensor:
        return latents[:, 1:]


def test_a_prediction_of_another_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"predicted \(3, 3, 5\) for \(4, 3, 5\)"):
        advance([start()], WrongShapeDenoiser())


def test_a_trajectory_cannot_be_twice_in_a_group_nor_go_past_its_end(model: TinyDenoiser) -> None:
    trajectory = start()
    with pytest.raises(AssertionError, match="only once"):
        advance([trajectory, trajectory], model)
    done = run(start(), model)
    with pytest.raises(AssertionError, match="finished"):
        advance([trajectory, done], model)
    assert trajectory.step == 0


# -- buckets ----------------------------------------------------------------------------------------------------------


def test_rows_of_one_shape_and_key_share_a_forward() -> None:
    model = TinyDenoiser()
    ahead = run(start(seed=1), model, num_steps=2)
    group = [start(), ahead, start(seed=2, guidance_scale=1.0), start(size=(2, 2))]
    other_key = start(seed=3)
    other_key.invariants = dataclasses.replace(
        model.invariants(other_key.plan, other_key.conditioning), key="another layout"
    )
    model.batches.clear()
    advance([*group, other_key], model)
    assert model.batches == [
        ([0, 0, 2, 2, 0], ["cond", "uncond", "cond", "uncond", "cond"]),
        ([0, 0], ["cond", "uncond"]),
        ([0, 0], ["cond", "uncond"]),
    ]


def test_an_empty_group_is_no_work() -> None:
    model = TinyDenoiser()
    advance([], model)
    assert model.batches == []


# -- the clean estimate and the start ---------------------------------------------------------------------------------


def test_the_clean_estimate_is_what_the_last_forward_says(model: TinyDenoiser) -> None:
    trajectory = start(guidance_scale=1.0)
    assert trajectory.clean_estimate() is trajectory.latents
    known = model.invariants(trajectory.plan, trajectory.conditioning)
    for step in range(NUM_STEPS - 1):
        sigma = trajectory.plan.schedule.sigmas[step]
        expected = trajectory.latents - sigma * model.predict(trajectory.latents[None], [step], ["cond"], [known])[0]
        advance([trajectory], model)
        torch.testing.assert_close(trajectory.clean_estimate(), expected, rtol=1e-6, atol=1e-6)
    advance([trajectory], model)
    assert trajectory.clean_estimate() is trajectory.latents


def test_guidance_moves_the_estimate_away_from_the_unconditional_one(model: TinyDenoiser) -> None:
    plain, guided = (run(start(guidance_scale=scale), model, num_steps=1) for scale in (1.0, 4.0))
    latents, known = start().latents, model.invariants(plain.plan, plain.conditioning)
    sigma = plain.plan.schedule.sigmas[0]
    uncond = latents - sigma * model.predict(latents[None], [0], ["uncond"], [known])[0]
    expected = uncond + 4.0 * (plain.clean_estimate() - uncond)
    torch.testing.assert_close(guided.clean_estimate(), expected, rtol=1e-5, atol=1e-5)


def test_what_the_model_predicts_makes_no_difference_to_the_clean_estimate() -> None:
    clean, noise = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    sigma = 0.7
    latents = (1 - sigma) * clean + sigma * noise
    for prediction, output in (("velocity", noise - clean), ("clean", clean), ("noise", noise)):
        estimate = to_clean(prediction, output, latents, sigma)  # type: ignore[arg-type]
        torch.testing.assert_close(estimate, clean)
        assert estimate.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()


def test_an_input_image_is_renoised_to_the_first_step() -> None:
    plan = make_plan(strength=0.5, seed=9)
    image = torch.linspace(-1, 1, 60).view(4, 3, 5)
    trajectory = begin(plan, conditioning={}, noise=Noise(9), shape=(4, 3, 5), device=CPU, image_latents=image.double())
    sigma = plan.schedule.sigmas[3]
    assert trajectory.step == plan.schedule.first_step == 3
    assert torch.equal(trajectory.latents, sigma * Noise(9).draw((4, 3, 5), CPU) + (1 - sigma) * image)
    assert trajectory.latents.dtype == torch.float32


def test_a_start_midway_needs_an_image() -> None:
    with pytest.raises(AssertionError, match="needs image latents"):
        begin(make_plan(strength=0.5), conditioning={}, noise=Noise(0), shape=(4, 3, 5), device=CPU)


# -- history and noise ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 99), max_size=8), st.integers(1, 4))
def test_history_keeps_the_newest(values: list[int], keep: int) -> None:
    history = History()
    for step, value in enumerate(values):
        history.push("denoised", step, torch.tensor(value), keep=keep)
    kept = values[-keep:]
    assert history.length("denoised") == len(kept)
    assert [int(history.last("denoised", back + 1)) for back in range(len(kept))] == kept[::-1]
    assert [step for step, _ in history.series.get("denoised", [])] == list(range(len(values)))[-keep:]
    for wrong in (0, len(kept) + 1):
        with pytest.raises(IndexError, match=f"asked for number {wrong}"):
            history.last("denoised", wrong)


def test_a_copied_history_grows_on_its_own() -> None:
    history = History()
    history.push("denoised", 0, torch.zeros(1), keep=2)
    copy = history.copy()
    copy.push("denoised", 1, torch.ones(1), keep=2)
    assert (history.length("denoised"), copy.length("denoised")) == (1, 2)


def test_copied_noise_gives_the_same_numbers_once_more() -> None:
    noise = Noise(3)
    noise.draw((5,), CPU)
    copy = noise.copy()
    ahead = noise.draw((2, 3), CPU)
    assert torch.equal(copy.draw((2, 3), CPU), ahead)
    assert torch.equal(Noise.from_state(noise.state()).draw((7,), CPU), noise.draw((7,), CPU))


def test_latents_can_be_used_where_gradients_are_tracked(model: TinyDenoiser) -> None:
    tracking = TinyDenoiser().requires_grad_()
    trajectory = start()
    advance([trajectory], tracking)
    assert not trajectory.latents.requires_grad
    tracking.proj_in(trajectory.latents.flatten(1).mT).sum().backward()
    assert tracking.proj_in.weight.grad is not None


def test_a_step_changes_these_fields_and_no_others(model: TinyDenoiser) -> None:
    trajectory = run(start(sampler="euler-stochastic"), model, num_steps=1)
    before = dict(vars(trajectory))
    advance([trajectory], model)
    after = vars(trajectory)
    assert after.keys() == {field.name for field in dataclasses.fields(Trajectory)}
    assert {name for name in after if after[name] is not before[name]} == {"latents", "history", "noise", "step"}
