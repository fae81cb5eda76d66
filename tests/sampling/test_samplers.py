"""Samplers against their diffusers twins on a curved path, and against the known answer on a straight one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from petzval.sampling.history import History
from petzval.sampling.samplers import SAMPLERS
from petzval.sampling.schedules import first_step, schedule_from_config
from tests.sampling.twins import FLOW, config_of, finish, relative, twin_finish, twin_of

EULER, UNIPC, DPM = "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler", "DPMSolverMultistepScheduler"
STEPS = (1, 2, 3, 4, 14, 15, 20, 50)
CASES = [(1.0, 1.0), (3.0, 1.0), (8.0, 1.0), (3.0, 0.6), (1.0, 0.25)]
"""(shift, strength)."""
TOLERANCE = 1e-5

# Raised inside diffusers, by its own use of numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

TWINS: dict[str, tuple[str, dict[str, Any]]] = {
    "euler": (EULER, {}),
    "euler-stochastic": (EULER, {"stochastic_sampling": True}),
    **{
        f"unipc{order_part}{kind_part}{late_part}": (
            UNIPC,
            FLOW | {"solver_order": order, "solver_type": kind, "disable_corrector": list(range(late))},
        )
        for order, order_part in ((1, "-1"), (2, ""), (3, "-3"))
        for kind, kind_part in (("bh2", ""), ("bh1", "-bh1"))
        for late, late_part in ((0, ""), (1, "-c1"), (2, "-c2"), (3, "-c3"))
    },
    **{
        f"dpm++{order}m{part}": (DPM, FLOW | {"solver_order": order, "solver_type": kind})
        for order in (2, 3)
        for kind, part in (("midpoint", ""), ("heun", "-heun"))
    },
}


def start() -> Tensor:
    return torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(1))


def compare(config: dict[str, Any], sampler: str, num_inference_steps: int, strength: float) -> float:
    sigmas, _, chosen = schedule_from_config(config, num_inference_steps)
    assert chosen == sampler
    twin = twin_of(config)
    twin.set_timesteps(num_inference_steps)
    skipped = first_step(num_inference_steps, strength)
    generator = torch.Generator().manual_seed(5) if sampler == "euler-stochastic" else None
    theirs = twin_finish(twin, start(), first_step=skipped, generator=generator)
    return relative(finish(sampler, sigmas, start(), first_step=skipped), theirs)


def test_every_sampler_has_a_twin() -> None:
    assert set(TWINS) == set(SAMPLERS)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampler_parity_with_diffusers(sampler: str, parity_row: Any) -> None:
    name, options = TWINS[sampler]
    worst = 0.0
    for num_inference_steps in STEPS:
        for shift, strength in CASES:
            config = config_of(name, **options, **{"shift" if name == EULER else "flow_shift": shift})
            found = compare(config, sampler, num_inference_steps, strength)
            assert found <= TOLERANCE, (num_inference_steps, shift, strength, found)
            worst = max(worst, found)
    if "-c" not in sampler:  # the late correctors differ only in their first steps
        parity_row("sampler", sampler, f"{len(STEPS) * len(CASES)} schedules, relative", f"{worst:.1e}")


@pytest.mark.parametrize("num_inference_steps", [1, 16, 28])
def test_lcm_for_flow_matching_is_stochastic_euler(num_inference_steps: int) -> None:
    """HiDream-I1-Dev and Fast are published with it."""
    config = config_of("FlowMatchLCMScheduler", shift=6.0)
    assert compare(config, "euler-stochastic", num_inference_steps, 1.0) <= TOLERANCE


@pytest.mark.parametrize("num_inference_steps", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("kind", ["bh1", "bh2"])
def test_unipc_that_stays_at_its_last_sigma_agrees_too(kind: str, order: int, num_inference_steps: int) -> None:
    options = {"solver_order": order, "solver_type": kind, "final_sigmas_type": "sigma_min", "flow_shift": 3.0}
    config = config_of(UNIPC, **FLOW, **options)
    _, _, sampler = schedule_from_config(config, num_inference_steps)
    assert compare(config, sampler, num_inference_steps, 1.0) <= TOLERANCE


def test_the_path_is_curved_enough_to_tell_samplers_apart() -> None:
    sigmas, _, _ = schedule_from_config(config_of(UNIPC, **FLOW, flow_shift=3.0), 8)
    results = {name: finish(name, sigmas, start()) for name in SAMPLERS if not name.startswith("unipc-1-bh1")}
    closest = min((relative(results[a], results[b]), a, b) for a, b in combinations(results, 2))
    assert closest[0] > 10 * TOLERANCE, closest


# -- known answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if not name.startswith(("euler", "unipc-1"))])
def test_higher_orders_come_closer_to_a_known_end_than_euler(sampler: str) -> None:
    deviation = 0.5  # clean samples are normal with this deviation: then the path has a closed form

    def velocity(latents: Tensor, sigma: float) -> Tensor:
        variance = ((1 - sigma) * deviation) ** 2 + sigma**2
        return latents * (sigma - (1 - sigma) * deviation**2) / variance

    sigmas, _, _ = schedule_from_config(config_of(UNIPC, **FLOW, flow_shift=3.0), 40)
    error, error_of_euler = (
        relative(finish(name, sigmas, start(), velocity=velocity), deviation * start()) for name in (sampler, "euler")
    )
    assert error < 0.3 * error_of_euler, (error, error_of_euler)


@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize("num_inference_steps", [1, 2, 3, 4, 20, 50])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_straight_path_ends_at_the_clean_sample(sampler: str, num_inference_steps: int, strength: float) -> None:
    clean, noise = torch.randn(2, 4, 3, 6, generator=torch.Generator().manual_seed(2))
    for name, options in ((EULER, {"shift": 3.0}), (UNIPC, FLOW | {"flow_shift": 3.0})):
        sigmas, _, _ = schedule_from_config(config_of(name, **options), num_inference_steps)
        begin = first_step(num_inference_steps, strength)
        latents = sigmas[begin] * noise + (1 - sigmas[begin]) * clean

        def towards_clean(latents: Tensor, sigma: float) -> Tensor:
            return (latents - clean) / sigma

        end = finish(sampler, sigmas, latents, first_step=begin, velocity=towards_clean)
        torch.testing.assert_close(end, clean, rtol=0, atol=2e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_last_step_gives_the_clean_estimate_to_the_last_bit(sampler: str) -> None:
    latents, clean = torch.randn(2, 4, 3, 6, generator=torch.Generator().manual_seed(3))
    history = History()
    for step, past in enumerate(torch.randn(3, 4, 3, 6)):
        history.push("denoised", step, past, keep=3)
        history.push("latents", step, past, keep=1)
    move = SAMPLERS[sampler].step(latents, clean, 3, (0.9, 0.7, 0.4, 0.2, 0.0), history, lambda: latents)
    assert torch.equal(move.latents, clean)
