"""Forecasts have known answers: what each row must reproduce exactly, and how published formulas come out."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from petzval.accel.reuse.forecasts import FORECASTS, MAX_ORDER, Weights, apply, forecast_named
from petzval.errors import BadRequestError
from petzval.types import ReusePlan, Schedule
from tests.sampling.tiny_denoiser import make_plan

SCHEDULE = make_plan(num_inference_steps=20).schedule
POLYNOMIAL_ROWS = ("taylor", "adams-bashforth")


def weights(forecast: str, points: list[int], step: int, order: int, schedule: Schedule = SCHEDULE) -> Weights:
    plan = ReusePlan(forecast=forecast, order=order, first_full=order + 1)
    return forecast_named(plan).weigh(points[: forecast_named(plan).reads(order)], step, schedule, plan)


POINTS = st.lists(st.integers(0, 12), min_size=5, max_size=5, unique=True).map(lambda p: sorted(p, reverse=True))


@settings(max_examples=60)
@given(POINTS, st.integers(13, 18), st.sampled_from(sorted(set(FORECASTS) - {"least-squares"})))
def test_what_does_not_change_is_forecast_exactly(points: list[int], step: int, forecast: str) -> None:
    """Every row reproduces a constant output, given what the latents then do (they move along a straight line)."""
    order = max(1, FORECASTS[forecast].min_order) if forecast not in ("hold", "hold-clean", "residual") else 0
    found = weights(forecast, points, step, order)
    assert math.isclose(sum(found.outputs) if forecast != "hold-clean" else 1.0, 1.0, rel_tol=1e-9)
    sigmas = SCHEDULE.sigmas
    clean, velocity = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0])
    line = {p: clean + sigmas[p] * velocity for p in [*points, step]}
    read = points[: len(found.outputs)]
    guess = apply(found, [velocity for _ in read], [line[p] for p in read], line[step])
    expected = velocity if forecast != "residual" else velocity + line[step] - line[points[0]]
    torch.testing.assert_close(guess, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=60)
@given(POINTS, st.integers(13, 18), st.integers(1, MAX_ORDER), st.randoms(use_true_random=False))
def test_taylor_is_exact_on_polynomials_of_the_noise_level(points: list[int], step: int, order: int, rng) -> None:  # type: ignore[no-untyped-def]
    """In two points, and for the newest point's slope: order 1 continues a straight line."""
    slope, offset = rng.uniform(-2, 2), rng.uniform(-2, 2)
    sigmas = SCHEDULE.sigmas
    found = weights("taylor", points, step, order)
    values = [offset + slope * sigmas[p] for p in points[: order + 1]]
    guess = sum(w * v for w, v in zip(found.outputs, values, strict=True))
    assert math.isclose(guess, offset + slope * sigmas[step], rel_tol=1e-6, abs_tol=1e-6)


@settings(max_examples=60)
@given(POINTS, st.integers(13, 18), st.integers(1, 3))
def test_adams_bashforth_is_the_mean_of_the_interpolating_polynomial(points: list[int], step: int, order: int) -> None:
    """Against numpy's own fit and integral."""
    sigmas = SCHEDULE.sigmas
    nodes = [sigmas[p] for p in points[: order + 1]]
    values = [math.sin(3 * node) for node in nodes]
    fit = np.polynomial.Polynomial.fit(nodes, values, order).convert().integ()
    mean = (fit(sigmas[step + 1]) - fit(sigmas[step])) / (sigmas[step + 1] - sigmas[step])
    found = weights("adams-bashforth", points, step, order)
    assert math.isclose(
        sum(w * v for w, v in zip(found.outputs, values, strict=True)), mean, rel_tol=1e-5, abs_tol=1e-6
    )


def test_evenly_spaced_adams_bashforth_has_its_published_coefficients() -> None:
    sigmas = tuple(1 - step / 10 for step in range(11))
    even = dataclasses.replace(SCHEDULE, sigmas=sigmas, timesteps=sigmas[:-1])
    assert weights("adams-bashforth", [4, 3], 4, 1, even).outputs == pytest.approx((3 / 2, -1 / 2))
    assert weights("adams-bashforth", [4, 3, 2], 4, 2, even).outputs == pytest.approx((23 / 12, -16 / 12, 5 / 12))


def test_hermite_is_contracted_taylor_at_first_order() -> None:
    """sigma * H_1(sigma k) = 2 sigma^2 k = k / 2 at the published scale of 0.5."""
    found = weights("hermite", [6, 4], 8, 1)
    assert found.outputs == pytest.approx((1 + 0.5 * 2 / 2, -0.5 * 2 / 2))
    # H_2(x) = 4 x^2 - 2, so at second order sigma^2 H_2(sigma k) = (k^2 - 2) / 4.
    second = weights("hermite", [6, 5, 4], 8, 2)
    values = [36.0, 25.0, 16.0]  # f(s) = s^2: divided differences 36, 11, 1
    assert sum(w * v for w, v in zip(second.outputs, values, strict=True)) == pytest.approx(36 + 11 * 1 + (4 - 2) / 4)


def test_foca_averages_two_slopes() -> None:
    """f(s) = s, computed at 6 and 4, to 8: predictor 6 + 2/3 * 2 + 1/3 * 2 = 8, both slopes 1."""
    found = weights("foca", [6, 4], 8, 1)
    assert found.outputs[0] * 6 + found.outputs[1] * 4 == pytest.approx(8)


def test_hold_clean_keeps_the_clean_estimate() -> None:
    sigmas = SCHEDULE.sigmas
    found = weights("hold-clean", [5], 9, 0)
    latents, velocity, now = torch.tensor([3.0]), torch.tensor([1.5]), torch.tensor([2.0])
    clean = latents - sigmas[5] * velocity
    guess = apply(found, [velocity], [latents], now)
    torch.testing.assert_close(now - sigmas[9] * guess, clean)


def test_fitted_weights_serve_the_steps_they_were_fitted_for() -> None:
    """And Taylor's stand in where the gate had another step computed."""
    count = SCHEDULE.num_steps
    row = (0.5, 0.25, 0.0, 0.125, -1.0)
    plan = ReusePlan(
        forecast="least-squares",
        order=1,
        computed=(0, 1, 4),
        weights=tuple(row if s == 3 else () for s in range(count)),
    )
    weigh = FORECASTS["least-squares"].weigh
    assert weigh([1, 0], 3, SCHEDULE, plan) == Weights((0.5, 0.25), (0.0, 0.125), -1.0)
    assert weigh([2, 1], 3, SCHEDULE, plan) == weights("taylor", [2, 1], 3, 1)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (ReusePlan(forecast="guess"), "forecast must be one of hold, hold-clean"),
        (ReusePlan(forecast="taylor", order=0), "order of forecast 'taylor' must be 1 to 4, got 0"),
        (ReusePlan(forecast="taylor", order=5), "must be 1 to 4, got 5"),
        (ReusePlan(forecast="hold", order=1), "order of forecast 'hold' must be 0, got 1"),
        (ReusePlan(forecast="foca", order=2), "order of forecast 'foca' must be 1, got 2"),
    ],
)
def test_what_no_row_does_is_named(plan: ReusePlan, told: str) -> None:
    with pytest.raises(BadRequestError) as error:
        forecast_named(plan)
    assert told in str(error.value)


@given(st.integers(1, 4))
def test_every_row_says_what_it_reads(order: int) -> None:
    for name, row in FORECASTS.items():
        reads = row.reads(order)
        assert 1 <= reads <= MAX_ORDER + 1, name
    assert all(a > b for a, b in pairwise(SCHEDULE.sigmas))
