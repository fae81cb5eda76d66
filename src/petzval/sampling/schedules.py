"""Sigma schedules of flow-matching samplers, as diffusers publishes them in `scheduler_config.json`.

A schedule is decided before the loop starts and never again: tuples of Python floats, each of which is a float32
number, equal to what the checkpoint's own scheduler would compute. Shapes: one axis of noise levels, falling.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from petzval.errors import BadRequestError, CheckpointError
from petzval.sampling.samplers import SAMPLERS, dpm_name, unipc_name

Sigmas = npt.NDArray[np.floating[Any]]
Built = tuple[tuple[float, ...], tuple[float, ...], str]
"""(sigmas, timesteps, sampler): n + 1 noise levels, n numbers for the model to embed, a key of SAMPLERS."""

KARRAS_RHO = 7.0
"""The curvature of the Karras schedule (Karras et al. 2022, arXiv 2206.00364, section 5)."""

BETA_SHAPE = 0.6
"""Both parameters of the beta schedule's distribution (Lee et al. 2024)."""

SIGMA_MARGIN = 1e-6
"""How far under 1 a log-SNR solver starts: at exactly 1 there is no signal, and its logarithm is infinite."""

_MOST_COUNTED = 1_000_000
"""Of training timesteps, which make a table of as many rows."""

# fmt: off
KNOWN_KEYS = frozenset({
    "num_train_timesteps", "shift", "use_dynamic_shifting", "base_shift", "max_shift", "base_image_seq_len",
    "max_image_seq_len", "invert_sigmas", "shift_terminal", "use_karras_sigmas", "use_exponential_sigmas",
    "use_beta_sigmas", "time_shift_type", "stochastic_sampling", "beta_start", "beta_end", "beta_schedule",
    "trained_betas", "solver_order", "prediction_type", "thresholding", "dynamic_thresholding_ratio",
    "sample_max_value", "predict_x0", "solver_type", "lower_order_final", "disable_corrector", "solver_p",
    "use_flow_sigmas", "flow_shift", "timestep_spacing", "steps_offset", "final_sigmas_type", "rescale_betas_zero_snr",
    "sigma_min", "sigma_max", "algorithm_type", "euler_at_final", "use_lu_lambdas", "lambda_min_clipped",
    "variance_type", "scale_factors", "upscale_mode",
})
# fmt: on
"""Options of the four schedulers. A checkpoint's file may carry leftovers of another scheduler; diffusers passes over
them and so do we. An option outside this list that is switched on is refused."""


# -- the pieces: arrays in, arrays out, of the same precision ---------------------------------------------------------


def shift_static(sigmas: Sigmas, shift: float) -> Sigmas:
    """Multiply sigma / (1 - sigma) by `shift` (Esser et al. 2024, arXiv 2403.03206)."""
    return shift * sigmas / (1 + (shift - 1) * sigmas)


def shift_dynamic(sigmas: Sigmas, mu: float, *, kind: str = "exponential") -> Sigmas:
    """Shift by exp(mu) ("exponential", as FLUX.1 does) or by mu itself ("linear")."""
    factor = math.exp(mu) if kind == "exponential" else mu
    return factor / (factor + (1 / sigmas - 1))


def stretch_to_terminal(sigmas: Sigmas, terminal: float) -> Sigmas:
    """Stretch the distances to 1 so that the last sigma becomes `terminal` (LTX-Video, arXiv 2501.00103).

    Raises BadRequestError for a single step, which has no distance to stretch.
    """
    distance = 1 - sigmas
    if distance[-1] <= 0:
        raise BadRequestError(
            "num_inference_steps must be at least 2 for a checkpoint with shift_terminal, got 1; nearest: 2"
        )
    return 1 - distance / (distance[-1] / (1 - terminal))


def karras_sigmas(sigmas: Sigmas) -> Sigmas:
    """As many sigmas between the same ends, evenly spaced in sigma^(1/7) (Karras et al. 2022, arXiv 2206.00364)."""
    first, last = float(sigmas[0]) ** (1 / KARRAS_RHO), float(sigmas[-1]) ** (1 / KARRAS_RHO)
    return (first + np.linspace(0, 1, len(sigmas)) * (last - first)) ** KARRAS_RHO


def exponential_sigmas(sigmas: Sigmas) -> Sigmas:
    """As many sigmas between the same ends, evenly spaced in log(sigma)."""
    return np.exp(np.linspace(math.log(float(sigmas[0])), math.log(float(sigmas[-1])), len(sigmas)))


def beta_sigmas(sigmas: Sigmas) -> Sigmas:
    """As many sigmas between the same ends, spaced by quantiles of a Beta(0.6, 0.6) distribution (Lee
    et al. 2024, arXiv 2407.12173)."""
    first, last = float(sigmas[0]), float(sigmas[-1])
    import scipy.special  # half a second of start-up that no other schedule needs

    quantiles = scipy.special.betaincinv(BETA_SHAPE, BETA_SHAPE, 1 - np.linspace(0, 1, len(sigmas)))
    return last + quantiles * (first - last)


SPACINGS: dict[str, Callable[[Sigmas], Sigmas]] = {
    "use_karras_sigmas": karras_sigmas,
    "use_exponential_sigmas": exponential_sigmas,
    "use_beta_sigmas": beta_sigmas,
}


def mu_for_tokens(
    image_seq_len: int,
    *,
    base_shift: float = 0.5,
    max_shift: float = 1.15,
    base_image_seq_len: int = 256,
    max_image_seq_len: int = 4096,
) -> float:
    """FLUX's mu: on the line through (base_image_seq_len, base_shift) and (max_image_seq_len, max_shift).

    `image_seq_len` is the number of picture tokens L that the transformer sees.
    """
    slope = (max_shift - base_shift) / (max_image_seq_len - base_image_seq_len)
    return image_seq_len * slope + (base_shift - slope * base_image_seq_len)


def first_step(num_inference_steps: int, strength: float) -> int:
    """Where image-to-image starts so that `strength` of the loop is run, as diffusers' FLUX pipeline counts it.

    Raises BadRequestError when strength is not in (0, 1], or so small that no step is left.
    """
    if not 0 < strength <= 1:
        smallest = 1 / num_inference_steps
        nearest = 1.0 if strength > 1 else smallest
        raise BadRequestError(f"strength must be above 0 and at most 1, got {strength}; nearest: {nearest:g}")
    start = int(max(num_inference_steps - min(num_inference_steps * strength, num_inference_steps), 0))
    if start >= num_inference_steps:
        raise BadRequestError(
            f"strength {strength} leaves none of {num_inference_steps} steps to run; "
            f"nearest that leaves one: {1 / num_inference_steps:g}"
        )
    return start


# -- reading a diffusers scheduler config -----------------------------------------------------------------------------


def schedule_from_config(
    config: Mapping[str, Any], num_inference_steps: int, image_seq_len: int | None = None
) -> Built:
    """The schedule that a diffusers `scheduler_config.json` stands for: (sigmas, timesteps, sampler name).

    `image_seq_len`, the number of picture tokens, is given by families whose pipelines shift by it and hand the
    scheduler sigmas of their own (FLUX: from 1 to 1 / n); None is the scheduler's own spacing (Wan).

    Raises CheckpointError naming the key and the value that cannot be honoured, BadRequestError for a step count that
    cannot be run.
    """
    if num_inference_steps < 1:
        raise BadRequestError(f"num_inference_steps must be at least 1, got {num_inference_steps}; nearest: 1")
    for key, value in config.items():
        if value and key not in KNOWN_KEYS and not key.startswith("_"):
            raise CheckpointError(f"scheduler config: {key}={value!r} is an option this version does not know")
    name = config.get("_class_name")
    if name not in BUILDERS:
        raise _refused("_class_name", name, f"one of {', '.join(BUILDERS)}")
    return BUILDERS[name](config, num_inference_steps, image_seq_len)


def make_schedule(
    config: Mapping[str, Any],
    *,
    num_inference_steps: int,
    image_seq_len: int | None = None,
    sampler: str | None = None,
    strength: float | None = None,
) -> tuple[str, tuple[float, ...], tuple[float, ...], int]:
    """What a family's plan needs of sampling: (sampler, sigmas, timesteps, first step).

    `engine.build` hands this to the families, which know nothing of sampling. `sampler` None is the published one, and
    without `strength` the loop starts at its first step. Raises as `schedule_from_config` and `first_step`, and
    BadRequestError for a sampler that does not exist.
    """
    sigmas, timesteps, published = schedule_from_config(config, num_inference_steps, image_seq_len)
    if sampler is not None and sampler not in SAMPLERS:
        nearest = difflib.get_close_matches(sampler, SAMPLERS, n=1, cutoff=0.0)[0]
        raise BadRequestError(f"sampler must be one of {', '.join(SAMPLERS)}, got {sampler!r}; nearest: {nearest}")
    start = 0 if strength is None else first_step(num_inference_steps, strength)
    return sampler or published, sigmas, timesteps, start


def _euler(config: Mapping[str, Any], num_inference_steps: int, image_seq_len: int | None) -> Built:
    """FlowMatchEulerDiscreteScheduler."""
    _must_be_off(config, "invert_sigmas")
    train = _count(config, "num_train_timesteps", 1000)
    dynamic = bool(config.get("use_dynamic_shifting"))
    shift = _number(config, "shift", 1.0)
    sigmas: Sigmas
    if image_seq_len is not None:
        sigmas = np.linspace(1.0, 1 / num_inference_steps, num_inference_steps).astype(np.float32)
    else:
        # The published scheduler spaces its steps between the ends of an already shifted schedule and shifts them
        # again. Checkpoints are tuned to that, so it is kept.
        ends: Sigmas = np.array([train, 1], dtype=np.float32) / train
        ends = ends if dynamic else shift_static(ends, shift)
        sigmas = np.linspace(float(ends[0]) * train, float(ends[1]) * train, num_inference_steps) / train
    sigmas = _shifted(sigmas, config, image_seq_len, shift)
    respaced = [key for key in SPACINGS if config.get(key)]
    if len(respaced) > 1:
        raise _refused(respaced[1], True, f"off where {respaced[0]} is on")
    for key in respaced:
        sigmas = SPACINGS[key](sigmas)
    sigmas = sigmas.astype(np.float32)
    name = "euler-stochastic" if config.get("stochastic_sampling") else "euler"
    return _floats([*sigmas, 0.0]), _floats(sigmas * train), name


def _lcm(config: Mapping[str, Any], num_inference_steps: int, image_seq_len: int | None) -> Built:
    """FlowMatchLCMScheduler: the Euler scheduler's spacing, and its stochastic steps."""
    _must_be_off(config, "scale_factors")
    return _euler({**config, "stochastic_sampling": True}, num_inference_steps, image_seq_len)


def _unipc(config: Mapping[str, Any], num_inference_steps: int, image_seq_len: int | None) -> Built:
    """UniPCMultistepScheduler with flow sigmas."""
    _must_be_flow(config)
    _must_be_off(config, "solver_p")
    order = _solver_order(config)
    _choice(config, "predict_x0", True, (True,))
    if order > 1:  # a step to sigma 0 has infinite length in log-SNR, where only the first order is defined
        _choice(config, "lower_order_final", True, (True,))
    last = _choice(config, "final_sigmas_type", "zero", ("zero", "sigma_min"))
    kind = _choice(config, "solver_type", "bh2", ("bh1", "bh2", "midpoint", "heun", "logrho"))
    train = _count(config, "num_train_timesteps", 1000)
    sigmas: Sigmas = np.linspace(1, 1 / train, num_inference_steps + 1)[:-1]
    sigmas = _shifted(sigmas, config, image_seq_len, _number(config, "flow_shift", 1.0))
    if abs(sigmas[0] - 1) < SIGMA_MARGIN:
        sigmas[0] -= SIGMA_MARGIN
    name = unipc_name(order, kind="bh1" if kind == "bh1" else "bh2", correct_from=_correct_from(config))
    end = sigmas[-1] if last == "sigma_min" else 0.0
    return _floats([*sigmas, end]), _floats(np.trunc(sigmas * train)), name


def _dpm(config: Mapping[str, Any], num_inference_steps: int, image_seq_len: int | None) -> Built:
    """DPMSolverMultistepScheduler (dpmsolver++) with flow sigmas."""
    _must_be_flow(config)
    _must_be_off(config, "use_lu_lambdas")
    _choice(config, "algorithm_type", "dpmsolver++", ("dpmsolver++",))
    # Its "sigma_min" is the last sigma of a schedule of betas, and a flow model has no betas.
    _choice(config, "final_sigmas_type", "zero", ("zero",))
    order = _solver_order(config)
    if order == 3:
        _choice(config, "lower_order_final", True, (True,))
    kind = _choice(config, "solver_type", "midpoint", ("midpoint", "heun", "bh1", "bh2", "logrho"))
    train = _count(config, "num_train_timesteps", 1000)
    shift = _number(config, "flow_shift", 1.0)
    if config.get("use_dynamic_shifting"):
        _choice(config, "time_shift_type", "exponential", ("exponential",))
        shift = math.exp(_mu(config, image_seq_len))
    rising: Sigmas = 1.0 - np.linspace(1, 1 / train, num_inference_steps + 1)
    sigmas = shift_static(rising, shift)[:0:-1]
    name = dpm_name(order, kind="heun" if kind == "heun" else "midpoint")
    return _floats([*sigmas, 0.0]), _floats(np.trunc(sigmas * train)), name


BUILDERS: dict[str, Callable[[Mapping[str, Any], int, int | None], Built]] = {
    "FlowMatchEulerDiscreteScheduler": _euler,
    "FlowMatchLCMScheduler": _lcm,
    "UniPCMultistepScheduler": _unipc,
    "DPMSolverMultistepScheduler": _dpm,
}


def _shifted(sigmas: Sigmas, config: Mapping[str, Any], image_seq_len: int | None, shift: float) -> Sigmas:
    """Static or dynamic shift, then the stretch to a terminal sigma where there is one."""
    if config.get("use_dynamic_shifting"):
        kind = _choice(config, "time_shift_type", "exponential", ("exponential", "linear"))
        sigmas = shift_dynamic(sigmas, _mu(config, image_seq_len), kind=kind)
    else:
        sigmas = shift_static(sigmas, shift)
    if config.get("shift_terminal"):
        sigmas = stretch_to_terminal(sigmas, _number(config, "shift_terminal", 0.0))
    return sigmas


def _mu(config: Mapping[str, Any], image_seq_len: int | None) -> float:
    if image_seq_len is None:
        raise _refused("use_dynamic_shifting", True, "off for a family whose shift does not depend on the picture size")
    return mu_for_tokens(
        image_seq_len,
        base_shift=_number(config, "base_shift", 0.5),
        max_shift=_number(config, "max_shift", 1.15),
        base_image_seq_len=int(_number(config, "base_image_seq_len", 256)),
        max_image_seq_len=int(_number(config, "max_image_seq_len", 4096)),
    )


def _correct_from(config: Mapping[str, Any]) -> int:
    """`disable_corrector` lists steps whose outcome is not corrected; the first few, or none, in every known use."""
    steps = config.get("disable_corrector") or []
    count = len(steps)
    if sorted(steps) != list(range(count)) or unipc_name(2, kind="bh2", correct_from=count) not in SAMPLERS:
        raise _refused("disable_corrector", steps, "[], [0], [0, 1] or [0, 1, 2]")
    return count


def _must_be_flow(config: Mapping[str, Any]) -> None:
    _choice(config, "use_flow_sigmas", False, (True,))
    _choice(config, "prediction_type", "epsilon", ("flow_prediction",))
    _must_be_off(config, "thresholding", *SPACINGS)


def _solver_order(config: Mapping[str, Any]) -> int:
    return int(_choice(config, "solver_order", 2, (1, 2, 3)))


def _must_be_off(config: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if config.get(key):
            raise _refused(key, config[key], "off")


def _choice(config: Mapping[str, Any], key: str, default: Any, allowed: Sequence[Any]) -> Any:
    value = config.get(key, default)
    if value not in allowed:
        raise _refused(key, value, " or ".join(repr(item) for item in allowed))
    return value


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _refused(key, value, "a finite number")
    return value


def _count(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_COUNTED:
        raise _refused(key, value, f"a whole number from 1 to {_MOST_COUNTED}")
    return value


def _refused(key: str, value: Any, allowed: str) -> CheckpointError:
    return CheckpointError(f"scheduler config: {key}={value!r} cannot be honoured; it must be {allowed}")


def _floats(values: Sequence[Any] | Sigmas) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)
