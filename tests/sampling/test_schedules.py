"""Schedules equal those of diffusers to the last bit, and what cannot be honoured is refused by name."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.pipelines.flux.pipeline_flux_img2img import FluxImg2ImgPipeline
from hypothesis import given
from hypothesis import strategies as st

from petzval.errors import BadRequestError, CheckpointError
from petzval.sampling.samplers import SAMPLERS
from petzval.sampling.schedules import BUILDERS, first_step, make_schedule, mu_for_tokens, schedule_from_config
from tests.sampling.twins import FLOW, config_of, twin_of

EULER, UNIPC, DPM = "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler", "DPMSolverMultistepScheduler"
LCM = "FlowMatchLCMScheduler"
STEPS = (1, 2, 3, 4, 20, 28, 50, 1000)
DYNAMIC = {"use_dynamic_shifting": True}

# Raised inside diffusers, by its own use of numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OWN_SPACING = [
    (EULER, {}, "euler"),
    (EULER, {"shift": 3.0}, "euler"),
    (EULER, {"shift": 0.7, "num_train_timesteps": 500}, "euler"),
    (EULER, {"shift": 3.0, "use_karras_sigmas": True}, "euler"),
    (EULER, {"shift": 3.0, "use_exponential_sigmas": True}, "euler"),
    (EULER, {"shift": 3.0, "use_beta_sigmas": True}, "euler"),
    (EULER, {"shift": 3.0, "stochastic_sampling": True}, "euler-stochastic"),
    (LCM, {"shift": 6.0}, "euler-stochastic"),
    (LCM, {"shift": 3.0}, "euler-stochastic"),
    (UNIPC, FLOW, "unipc"),
    (UNIPC, FLOW | {"flow_shift": 3.0}, "unipc"),
    (UNIPC, FLOW | {"flow_shift": 5.0, "solver_type": "bh1", "solver_order": 3}, "unipc-3-bh1"),
    (UNIPC, FLOW | {"flow_shift": 5.0, "solver_order": 1, "lower_order_final": False}, "unipc-1"),
    (UNIPC, FLOW | {"flow_shift": 0.5, "final_sigmas_type": "sigma_min"}, "unipc"),
    (UNIPC, FLOW | {"disable_corrector": [0, 1]}, "unipc-c2"),
    (DPM, FLOW, "dpm++2m"),
    (DPM, FLOW | {"flow_shift": 3.0, "solver_type": "heun", "lower_order_final": False}, "dpm++2m-heun"),
    (DPM, FLOW | {"flow_shift": 8.0, "solver_order": 3}, "dpm++3m"),
    (DPM, FLOW | {"flow_shift": 8.0, "solver_order": 1}, "euler"),
]
"""Pipelines that leave the spacing to the scheduler (Wan)."""

BY_TOKENS = [
    (EULER, {}, "euler"),
    (EULER, {"shift": 3.0}, "euler"),
    (EULER, DYNAMIC, "euler"),
    (EULER, DYNAMIC | {"base_shift": 0.95, "max_shift": 2.05, "max_image_seq_len": 8192}, "euler"),
    (EULER, DYNAMIC | {"time_shift_type": "linear"}, "euler"),
    (EULER, DYNAMIC | {"use_karras_sigmas": True}, "euler"),
    (UNIPC, FLOW | DYNAMIC, "unipc"),
    (DPM, FLOW | DYNAMIC, "dpm++2m"),
]
"""Pipelines that shift by the number of picture tokens (FLUX)."""

STRETCHED = [
    (EULER, DYNAMIC | {"shift_terminal": 0.1}),
    (EULER, {"shift": 2.0, "shift_terminal": 0.02}),
    (UNIPC, FLOW | {"shift_terminal": 0.1}),
]


def check_against(twin: Any, sigmas: tuple[float, ...], timesteps: tuple[float, ...]) -> None:
    assert sigmas == tuple(twin.sigmas.tolist())
    assert timesteps == tuple(float(timestep) for timestep in twin.timesteps.tolist())
    assert all(type(value) is float for value in (*sigmas, *timesteps))


@pytest.mark.parametrize("num_inference_steps", STEPS)
@pytest.mark.parametrize(("name", "options", "sampler"), OWN_SPACING)
def test_own_spacing_equals_diffusers(
    name: str, options: dict[str, Any], sampler: str, num_inference_steps: int
) -> None:
    config = config_of(name, **options)
    twin = twin_of(config)
    twin.set_timesteps(num_inference_steps)
    sigmas, timesteps, chosen = schedule_from_config(config, num_inference_steps)
    check_against(twin, sigmas, timesteps)
    assert chosen == sampler
    assert all(sigma > after or after == twin.sigmas[-2] for sigma, after in pairwise(sigmas))


@pytest.mark.parametrize("image_seq_len", [64, 256, 1024, 4096, 6889])
@pytest.mark.parametrize("num_inference_steps", STEPS)
@pytest.mark.parametrize(("name", "options", "sampler"), BY_TOKENS)
def test_token_spacing_equals_diffusers(
    name: str, options: dict[str, Any], sampler: str, num_inference_steps: int, image_seq_len: int
) -> None:
    config = config_of(name, **options)
    twin = twin_of(config)
    set_as_flux_does(twin, num_inference_steps, image_seq_len)
    sigmas, timesteps, chosen = schedule_from_config(config, num_inference_steps, image_seq_len)
    check_against(twin, sigmas, timesteps)
    assert chosen == sampler


def set_as_flux_does(twin: Any, num_inference_steps: int, image_seq_len: int) -> None:
    keys = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    defaults = dict(zip(keys, (256, 4096, 0.5, 1.15), strict=True))
    mu = calculate_shift(image_seq_len, *(twin.config.get(key, defaults[key]) for key in keys))
    if twin.config.get("use_flow_sigmas"):
        twin.set_timesteps(num_inference_steps, mu=mu)
    else:
        twin.set_timesteps(sigmas=np.linspace(1.0, 1 / num_inference_steps, num_inference_steps), mu=mu)


@pytest.mark.parametrize("num_inference_steps", [2, 3, 8, 40])
@pytest.mark.parametrize(("name", "options"), STRETCHED)
def test_stretch_to_a_terminal_sigma_equals_diffusers(
    name: str, options: dict[str, Any], num_inference_steps: int
) -> None:
    config = config_of(name, **options)
    twin = twin_of(config)
    image_seq_len = 1024 if name == EULER else None
    if image_seq_len:
        set_as_flux_does(twin, num_inference_steps, image_seq_len)
    else:
        twin.set_timesteps(num_inference_steps)
    sigmas, timesteps, _ = schedule_from_config(config, num_inference_steps, image_seq_len)
    check_against(twin, sigmas, timesteps)
    assert sigmas[-2] == pytest.approx(options["shift_terminal"], rel=1e-6)


def test_a_single_step_cannot_be_stretched() -> None:
    with pytest.raises(BadRequestError, match=r"num_inference_steps must be at least 2 .* nearest: 2"):
        schedule_from_config(config_of(EULER, shift=2.0, shift_terminal=0.02), 1, 1024)


@given(st.integers(1, 20_000))
def test_mu_equals_diffusers(image_seq_len: int) -> None:
    assert mu_for_tokens(image_seq_len) == calculate_shift(image_seq_len)


REFUSED = [
    ("_class_name", {"_class_name": "LCMScheduler"}, {}),
    ("_class_name", {"_class_name": None}, {}),
    ("invert_sigmas", {"_class_name": EULER}, {"invert_sigmas": True}),
    ("use_exponential_sigmas", {"_class_name": EULER}, {"use_karras_sigmas": True, "use_exponential_sigmas": True}),
    ("use_dynamic_shifting", {"_class_name": EULER}, DYNAMIC),
    ("scale_factors", {"_class_name": LCM}, {"scale_factors": [0.5]}),
    ("shift", {"_class_name": EULER}, {"shift": "three"}),
    ("shift", {"_class_name": EULER}, {"shift": None}),
    ("shift", {"_class_name": EULER}, {"shift": float("nan")}),
    ("curvature", {"_class_name": EULER}, {"curvature": 2.0}),
    ("use_flow_sigmas", {"_class_name": UNIPC}, {"prediction_type": "flow_prediction"}),
    ("prediction_type", {"_class_name": UNIPC}, {"use_flow_sigmas": True}),
    ("predict_x0", {"_class_name": UNIPC}, FLOW | {"predict_x0": False}),
    ("solver_order", {"_class_name": UNIPC}, FLOW | {"solver_order": 4}),
    ("solver_type", {"_class_name": UNIPC}, FLOW | {"solver_type": "bh3"}),
    ("solver_p", {"_class_name": UNIPC}, FLOW | {"solver_p": {"_class_name": DPM}}),
    ("thresholding", {"_class_name": UNIPC}, FLOW | {"thresholding": True}),
    ("use_karras_sigmas", {"_class_name": UNIPC}, FLOW | {"use_karras_sigmas": True}),
    ("lower_order_final", {"_class_name": UNIPC}, FLOW | {"lower_order_final": False}),
    ("disable_corrector", {"_class_name": UNIPC}, FLOW | {"disable_corrector": [2]}),
    ("disable_corrector", {"_class_name": UNIPC}, FLOW | {"disable_corrector": [0, 1, 2, 3]}),
    ("final_sigmas_type", {"_class_name": UNIPC}, FLOW | {"final_sigmas_type": "one"}),
    ("final_sigmas_type", {"_class_name": DPM}, FLOW | {"final_sigmas_type": "sigma_min"}),
    ("algorithm_type", {"_class_name": DPM}, FLOW | {"algorithm_type": "sde-dpmsolver++"}),
    ("use_lu_lambdas", {"_class_name": DPM}, FLOW | {"use_lu_lambdas": True}),
    ("lower_order_final", {"_class_name": DPM}, FLOW | {"solver_order": 3, "lower_order_final": False}),
    ("time_shift_type", {"_class_name": DPM}, FLOW | DYNAMIC | {"time_shift_type": "linear"}),
]


@pytest.mark.parametrize(("key", "name", "options"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(key: str, name: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"scheduler config: {key}="):
        schedule_from_config(name | options, 4)


def test_leftovers_of_another_scheduler_are_passed_over_as_diffusers_does() -> None:
    leftovers = {"use_flow_sigmas": True, "solver_order": 3, "algorithm_type": "dpmsolver", "_diffusers_version": "1"}
    switched_off = {"an_option_of_the_future": False, "another": None}
    config = config_of(EULER, shift=3.0)
    assert schedule_from_config(config | leftovers | switched_off, 4) == schedule_from_config(config, 4)


@pytest.mark.parametrize("num_inference_steps", [0, -3])
def test_a_loop_has_at_least_one_step(num_inference_steps: int) -> None:
    with pytest.raises(BadRequestError, match="num_inference_steps must be at least 1"):
        schedule_from_config(config_of(EULER), num_inference_steps)


def test_every_scheduler_we_read_is_tested() -> None:
    assert {name for name, _, _ in OWN_SPACING} == set(BUILDERS)


# -- strength and the choice of a sampler -----------------------------------------------------------------------------


@given(st.integers(1, 200), st.floats(0.01, 1.0))
def test_first_step_equals_diffusers(num_inference_steps: int, strength: float) -> None:
    pipeline = FluxImg2ImgPipeline.__new__(FluxImg2ImgPipeline)
    twin = twin_of(config_of(EULER))
    twin.set_timesteps(num_inference_steps)
    vars(pipeline)["scheduler"] = twin
    _, left = pipeline.get_timesteps(num_inference_steps, strength, "cpu")
    assert first_step(num_inference_steps, strength) == num_inference_steps - left


@pytest.mark.parametrize(("strength", "nearest"), [(0.0, "0.25"), (-1.0, "0.25"), (1.5, "1"), (float("nan"), "0.25")])
def test_strength_outside_its_range_is_refused(strength: float, nearest: str) -> None:
    with pytest.raises(BadRequestError, match=rf"strength must be above 0 and at most 1, got .*; nearest: {nearest}$"):
        first_step(4, strength)


def test_a_strength_too_small_for_one_step_is_refused() -> None:
    with pytest.raises(BadRequestError, match=r"strength 1e-20 leaves none of 4 steps to run; .*: 0\.25"):
        first_step(4, 1e-20)


def test_make_schedule_takes_another_sampler_on_the_published_sigmas() -> None:
    config = config_of(UNIPC, **FLOW, flow_shift=3.0)
    sigmas, timesteps, _ = schedule_from_config(config, 10)
    assert make_schedule(config, num_inference_steps=10) == ("unipc", sigmas, timesteps, 0)
    chosen = make_schedule(config, num_inference_steps=10, sampler="dpm++2m", strength=0.5)
    assert chosen == ("dpm++2m", sigmas, timesteps, 5)


def test_make_schedule_names_the_nearest_sampler() -> None:
    with pytest.raises(BadRequestError, match=r"got 'unipcc'; nearest: unipc$") as caught:
        make_schedule(config_of(EULER), num_inference_steps=2, sampler="unipcc")
    assert all(name in str(caught.value) for name in SAMPLERS)


@pytest.fixture(autouse=True)
def _quiet_diffusers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="diffusers")
