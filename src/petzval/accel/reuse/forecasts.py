"""Forecasts: a prediction as a weighted sum of earlier ones. Published methods differ in the weights alone.

A row gives the weights for one step from the places of the computed steps in the schedule; `apply` adds them up. So
whatever is known of one (bounds on the weights, batching, a fitted twin) holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from petzval.errors import BadRequestError
from petzval.types import ReusePlan, Schedule

MAX_ORDER: Final = 4


@dataclass(frozen=True)
class Weights:
    """prediction = sum of outputs[i] * (prediction computed i places ago) + sum of latents[i] * (latents there)
    + current * (latents now). Newest first."""

    outputs: tuple[float, ...]
    latents: tuple[float, ...] = ()
    current: float = 0.0


Points = Sequence[int]
"""Steps at which predictions were computed, newest first."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One way to fill in a prediction."""

    weigh: Callable[[Points, int, Schedule, ReusePlan], Weights]
    """(computed steps, newest first, at least one; the step to forecast; schedule; plan) -> weights."""
    reads: Callable[[int], int]
    """How many computed predictions a forecast of this order looks at."""
    min_order: int = 0
    reads_latents: bool = False


def apply(weights: Weights, outputs: Sequence[Tensor], latents: Sequence[Tensor], current: Tensor | None) -> Tensor:
    """The forecast itself; tensors newest first, as many as there are weights. All of one shape."""
    total = outputs[0] * weights.outputs[0]
    for weight, output in zip(weights.outputs[1:], outputs[1:], strict=False):
        total = total.add(output, alpha=weight)
    for weight, past in zip(weights.latents, latents, strict=False):
        total = total.add(past, alpha=weight)
    if weights.current and current is not None:
        total = total.add(current, alpha=weights.current)
    return total


# -- the rows ---------------------------------------------------------------------------------------------------------


def _hold(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    return Weights((1.0,))


def _residual(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """The difference between prediction and latents is held (the fill of EasyCache, arXiv 2507.02860)."""
    return Weights((1.0,), (-1.0,), 1.0)


def _hold_clean(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """The clean estimate is held: the velocity then points from the latents now to the clean sample of before."""
    sigma, past = schedule.sigmas[step], schedule.sigmas[points[0]]
    # velocity = (latents - clean) / sigma, and clean = past latents - past sigma * past velocity
    return Weights((past / sigma,), (-1.0 / sigma,), 1.0 / sigma)


def _taylor(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """Taylor expansion at the last computed step, derivatives by differences (TaylorSeer, arXiv 2503.06923), in the
    noise level instead of the step's number, in which steps are not evenly spaced."""
    return Weights(_expand([schedule.sigmas[p] for p in points], schedule.sigmas[step], lambda i, x: x**i))


def _hermite(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """Differences on a scaled Hermite basis, contracted against a Taylor expansion's growth (HiCache, arXiv
    2508.16984)."""
    scale = 0.5

    def basis(i: int, x: float) -> float:
        before, value = 0.0, 1.0
        for degree in range(i):
            before, value = value, 2 * (scale * x) * value - 2 * degree * before
        return float(scale**i * value)

    return Weights(_expand([float(p) for p in points], float(step), basis))


def _adams_bashforth(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """The mean over the step of the polynomial through the computed predictions: what a multistep solver of Adams and
    Bashforth uses for its next interval."""
    nodes = [schedule.sigmas[p] for p in points]
    start, end = schedule.sigmas[step], schedule.sigmas[step + 1]
    # Gauss-Legendre with three points is exact up to degree 5.
    half, middle, root = (end - start) / 2, (end + start) / 2, 0.6**0.5
    rule = ((middle - half * root, 5 / 18), (middle, 8 / 18), (middle + half * root, 5 / 18))
    totals = [0.0] * len(nodes)
    for place, share in rule:
        for index, weight in enumerate(_lagrange(nodes, place)):
            totals[index] += share * weight
    return Weights(tuple(totals))


def _foca(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """A BDF2 predictor corrected by Heun's rule (FoCa, arXiv 2508.16211): the prediction's slope at the last computed
    step and the slope that the predictor foresees, averaged."""
    if len(points) < 2:
        return Weights((1.0,))
    gap = points[0] - points[1]
    # Beyond three steps the corrector's trapezoid is trusted no further.
    ahead = min(3, step - points[0])
    slope = 1.0 / gap
    # predictor = 4/3 newest - 1/3 second + 2/3 ahead * slope * (newest - second)
    predicted = (4 / 3 + 2 / 3 * ahead * slope, -1 / 3 - 2 / 3 * ahead * slope)
    foreseen = ((predicted[0] - 1) / ahead, predicted[1] / ahead)
    newest = 1 + ahead / 2 * (slope + foreseen[0])
    second = ahead / 2 * (-slope + foreseen[1])
    return Weights((newest, second))


def _least_squares(points: Points, step: int, schedule: Schedule, plan: ReusePlan) -> Weights:
    """Weights fitted to what a few trajectories computed (L2P's form: one row for every step), where the steps
    computed so far are those that the fit knew; Taylor's where the gate had more computed."""
    assert plan.weights is not None and plan.computed is not None, "checked when the plan was made"
    row = plan.weights[step]
    known = [p for p in reversed(plan.computed) if p < step][: (len(row) - 1) // 2]
    if not row or list(points[: len(known)]) != known:
        return _taylor(points[:2], step, schedule, plan)
    count = len(known)
    return Weights(tuple(row[:count]), tuple(row[count : 2 * count]), row[2 * count])


def _lagrange(nodes: Sequence[float], place: float) -> list[float]:
    """Weights of the values at `nodes` in the polynomial through them, at `place`."""
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if j != i:
                weight *= (place - other) / (node - other)
        weights.append(weight)
    return weights


def _expand(nodes: Sequence[float], place: float, basis: Callable[[int, float], float]) -> tuple[float, ...]:
    """Weights of sum over i of (divided difference i at the newest nodes) * basis(i, place - newest node)."""
    count = len(nodes)
    # rows[i][j]: what the value at node j contributes to the divided difference of the nodes i to i + order.
    rows = [[1.0 if i == j else 0.0 for j in range(count)] for i in range(count)]
    totals = [basis(0, place - nodes[0]) * weight for weight in rows[0]]
    for order in range(1, count):
        rows = [
            [(a - b) / (nodes[i] - nodes[i + order]) for a, b in zip(rows[i], rows[i + 1], strict=True)]
            for i in range(count - order)
        ]
        totals = [t + basis(order, place - nodes[0]) * w for t, w in zip(totals, rows[0], strict=True)]
    return tuple(totals)


FORECASTS: Final[Mapping[str, Forecast]] = {
    "hold": Forecast(weigh=_hold, reads=lambda order: 1),
    "hold-clean": Forecast(weigh=_hold_clean, reads=lambda order: 1, reads_latents=True),
    "residual": Forecast(weigh=_residual, reads=lambda order: 1, reads_latents=True),
    "taylor": Forecast(weigh=_taylor, reads=lambda order: order + 1, min_order=1),
    "hermite": Forecast(weigh=_hermite, reads=lambda order: order + 1, min_order=1),
    "adams-bashforth": Forecast(weigh=_adams_bashforth, reads=lambda order: order + 1, min_order=1),
    "foca": Forecast(weigh=_foca, reads=lambda order: 2, min_order=1),
    "least-squares": Forecast(weigh=_least_squares, reads=lambda order: order + 1, reads_latents=True),
}


def forecast_named(plan: ReusePlan) -> Forecast:
    """The plan's row. Raises BadRequestError naming what the plan asks for and what there is."""
    if plan.forecast not in FORECASTS:
        raise BadRequestError(f"forecast must be one of {', '.join(FORECASTS)}, got {plan.forecast!r}")
    row = FORECASTS[plan.forecast]
    most = {1: row.min_order, 2: 1}.get(row.reads(9), MAX_ORDER)  # rows that read a fixed number have one order
    if not row.min_order <= plan.order <= most:
        raise BadRequestError(
            f"order of forecast {plan.forecast!r} must be {row.min_order} to {most}, got {plan.order}"
            if most != row.min_order
            else f"order of forecast {plan.forecast!r} must be {most}, got {plan.order}"
        )
    return row
