"""Samplers: pure functions from (latents, clean estimate, step) to the next latents. What they remember is theirs to
name, and lives in the trajectory's history.

All are written in the clean estimate (`denoised`) and the log-SNR of flow matching, lambda = log((1 - sigma) / sigma),
where latents = (1 - sigma) * clean + sigma * noise. Latents are float32 of any shape; coefficients are Python floats,
so that rounding them never costs more than rounding the latents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from petzval.sampling.history import History

SMALL_LOOP = 15
"""Loops shorter than this fall to second order one step before their end (Lu et al. 2022, arXiv 2211.01095)."""

SMALLEST_SIGNAL = 1e-6
"""Where sigma is 1 there is no signal; its log-SNR is taken there as that of this share of signal."""


@dataclass(frozen=True)
class Move:
    """One step's outcome: the latents at the next sigma, and what the sampler wants to find in the history later."""

    latents: Tensor
    remember: dict[str, Tensor] = field(default_factory=dict)


class Sampler(Protocol):
    """A noise solver. Holds no state: everything it needs of the past is in `history`."""

    @property
    def reads(self) -> dict[str, int]:
        """Series it reads from the history, and how many entries of each. "denoised" is kept for it by the trajectory;
        the others are those it names in `Move.remember`."""
        ...

    def step(
        self,
        latents: Tensor,
        denoised: Tensor,
        step: int,
        sigmas: Sequence[float],
        history: History,
        draw: Callable[[], Tensor],
    ) -> Move:
        """From `latents` at sigmas[step], with the clean estimate made there, to sigmas[step + 1]. `history` holds
        earlier steps only. `draw` gives fresh noise of the latents' shape; a deterministic sampler never calls it."""
        ...


@dataclass(frozen=True)
class Euler:
    """First-order steps along the straight line from the clean estimate through the sample (flow matching: Lipman et
    al. 2022, arXiv 2210.02747; Liu et al. 2022, arXiv 2209.03003)."""

    @property
    def reads(self) -> dict[str, int]:
        return {}

    def step(
        self,
        latents: Tensor,
        denoised: Tensor,
        step: int,
        sigmas: Sequence[float],
        history: History,
        draw: Callable[[], Tensor],
    ) -> Move:
        return Move(_first_order(latents, denoised, sigmas[step], sigmas[step + 1]))


@dataclass(frozen=True)
class EulerStochastic:
    """Jumps to the clean estimate and re-noises it with fresh noise, as consistency models are sampled (Song et al.
    2023, arXiv 2303.01469, algorithm 1); diffusers' `stochastic_sampling`."""

    @property
    def reads(self) -> dict[str, int]:
        return {}

    def step(
        self,
        latents: Tensor,
        denoised: Tensor,
        step: int,
        sigmas: Sequence[float],
        history: History,
        draw: Callable[[], Tensor],
    ) -> Move:
        sigma = sigmas[step + 1]
        return Move(denoised if sigma == 0 else (1 - sigma) * denoised + sigma * draw())


@dataclass(frozen=True)
class UniPC:
    """UniPC (Zhao et al. 2023, arXiv 2302.04867): a multistep predictor, and a corrector that moves the sample again
    once the clean estimate at its new place is known, at no further model call.

    Works from any first step: the order grows with the number of steps taken, and falls to 1 towards the end.
    """

    order: int = 2
    kind: Literal["bh1", "bh2"] = "bh2"
    """The paper's B(h): h, or exp(h) - 1."""
    correct_from: int = 0
    """Outcomes of the steps before this one are not corrected."""

    @property
    def reads(self) -> dict[str, int]:
        return {"denoised": self.order, "latents": 1}

    def step(
        self,
        latents: Tensor,
        denoised: Tensor,
        step: int,
        sigmas: Sequence[float],
        history: History,
        draw: Callable[[], Tensor],
    ) -> Move:
        taken, left = history.length("denoised"), len(sigmas) - 1 - step
        if taken and step > self.correct_from:
            latents = self._correct(denoised, step, sigmas, history, order=min(self.order, left + 1, taken))
        past = [history.last("denoised", back) for back in range(1, min(self.order, left, taken + 1))]
        return Move(self._predict(latents, denoised, step, sigmas, past), {"latents": latents})

    def _predict(
        self, latents: Tensor, denoised: Tensor, step: int, sigmas: Sequence[float], past: Sequence[Tensor]
    ) -> Tensor:
        """From sigmas[step] to the next by an order above the number of past clean estimates (newest first)."""
        sigma, sigma_next = sigmas[step], sigmas[step + 1]
        moved = _first_order(latents, denoised, sigma, sigma_next)
        if not past or sigma_next in (0, sigma):
            return moved
        h = _log_snr(sigma_next) - _log_snr(sigma)
        ratios = [(_log_snr(sigmas[step - back]) - _log_snr(sigma)) / h for back in range(1, len(past) + 1)]
        # The second order needs no equations: the paper's choice for one unknown is a half.
        weights = [0.5] if len(past) == 1 else self._weights(h, ratios)
        return moved + self._bend(sigma, sigma_next) * _weighted(past, denoised, ratios, weights)

    def _correct(self, denoised: Tensor, step: int, sigmas: Sequence[float], history: History, *, order: int) -> Tensor:
        """The sample at sigmas[step] again, now with the clean estimate made there, from the step before."""
        sigma, sigma_next = sigmas[step - 1], sigmas[step]
        base = history.last("denoised")
        h = _log_snr(sigma_next) - _log_snr(sigma)
        points = [history.last("denoised", back) for back in range(2, order + 1)]
        ratios = [(_log_snr(sigmas[step - back]) - _log_snr(sigma)) / h for back in range(2, order + 1)]
        weights = [0.5] if order == 1 else self._weights(h, [*ratios, 1.0])
        moved = _first_order(history.last("latents"), base, sigma, sigma_next)
        bend = _weighted([*points, denoised], base, [*ratios, 1.0], weights)
        return moved + self._bend(sigma, sigma_next) * bend

    def _bend(self, sigma: float, sigma_next: float) -> float:
        """alpha * B(h) at the target: the scale of all terms above the first order."""
        if self.kind == "bh2":
            return 1 - sigma_next / sigma
        return (1 - sigma_next) * (_log_snr(sigma_next) - _log_snr(sigma))

    def _weights(self, h: float, ratios: Sequence[float]) -> list[float]:
        """The weights of the paper's equations for theorem 3.1, which make the step exact for polynomials of as high a
        degree as there are points: sum(weight * ratio ** (k - 1)) = k! * z * phi_{k+1}(z) / B for k = 1, 2, ..., with
        z = -h, phi_1 = (exp(z) - 1) / z and phi_{k+1} = (phi_k - 1 / k!) / z."""
        scale = -h if self.kind == "bh1" else math.expm1(-h)
        phi, moments = math.expm1(-h), []
        for k in range(1, len(ratios) + 1):
            phi = phi / -h - 1 / math.factorial(k)
            moments.append(phi * math.factorial(k) / scale)
        equations = np.vander(np.asarray(ratios), len(ratios), increasing=True).T
        return [float(weight) for weight in np.linalg.solve(equations, np.asarray(moments))]


@dataclass(frozen=True)
class DPMSolver:
    """DPM-Solver++ multistep (Lu et al. 2022, arXiv 2211.01095) for flow matching, of second or third order.

    Its first order is exactly Euler's step, which it takes first and last. `heun` is the second-order formula that
    weighs the slope by the exact integral; `midpoint` takes half of the first-order weight.
    """

    order: int = 2
    kind: Literal["midpoint", "heun"] = "midpoint"

    @property
    def reads(self) -> dict[str, int]:
        return {"denoised": self.order - 1}

    def step(
        self,
        latents: Tensor,
        denoised: Tensor,
        step: int,
        sigmas: Sequence[float],
        history: History,
        draw: Callable[[], Tensor],
    ) -> Move:
        num_steps = len(sigmas) - 1
        left = num_steps - step
        sigma, sigma_next = sigmas[step], sigmas[step + 1]
        moved = _first_order(latents, denoised, sigma, sigma_next)
        order = min(self.order, history.length("denoised") + 1, left if num_steps < SMALL_LOOP else self.order)
        if order == 1 or left == 1 or sigma_next == sigma:
            return Move(moved)
        times = [_log_snr(sigmas[step + 1 - back]) for back in range(order + 1)]
        h, alpha = times[0] - times[1], 1 - sigma_next
        slope = (denoised - history.last("denoised")) * (h / (times[1] - times[2]))
        slope_weight = alpha * (math.expm1(-h) / h + 1)
        if order == 2:
            return Move(moved + slope * (0.5 * (1 - sigma_next / sigma) if self.kind == "midpoint" else slope_weight))
        r0, r1 = (times[1] - times[2]) / h, (times[2] - times[3]) / h
        curve = slope - (history.last("denoised") - history.last("denoised", 2)) / r1
        slope = slope + curve * (r0 / (r0 + r1))
        curve_weight = alpha * ((math.expm1(-h) + h) / h**2 - 0.5) / (r0 + r1)
        return Move(moved + slope_weight * slope - curve_weight * curve)


def _log_snr(sigma: float) -> float:
    return math.log(max(1 - sigma, SMALLEST_SIGNAL)) - math.log(sigma)


def _first_order(latents: Tensor, denoised: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """Exact where the clean estimate is constant; at sigma_next 0 it is the clean estimate to the last bit."""
    ratio = sigma_next / sigma
    return ratio * latents + (1 - ratio) * denoised


def _weighted(points: Sequence[Tensor], base: Tensor, ratios: Sequence[float], weights: Sequence[float]) -> Tensor:
    """Sum of divided differences. Subtraction comes first: the estimates are close, so it is free of rounding."""
    total = (points[0] - base) * (weights[0] / ratios[0])
    for point, ratio, weight in zip(points[1:], ratios[1:], weights[1:], strict=True):
        total = total + (point - base) * (weight / ratio)
    return total


def unipc_name(order: int, *, kind: Literal["bh1", "bh2"], correct_from: int = 0) -> str:
    """The name in SAMPLERS of a UniPC: "unipc" is its second order with bh2, corrected from the start."""
    parts = ("" if order == 2 else f"-{order}", "" if kind == "bh2" else "-bh1")
    return "".join(("unipc", *parts, f"-c{correct_from}" if correct_from else ""))


def dpm_name(order: int, *, kind: Literal["midpoint", "heun"]) -> str:
    """The name in SAMPLERS of a DPM-Solver++; its first order is "euler"."""
    return "euler" if order == 1 else f"dpm++{order}m" + ("-heun" if kind == "heun" else "")


KINDS: tuple[Literal["bh2"], Literal["bh1"]] = ("bh2", "bh1")

SAMPLERS: dict[str, Sampler] = {
    "euler": Euler(),
    "euler-stochastic": EulerStochastic(),
    **{
        unipc_name(order, kind=kind, correct_from=start): UniPC(order, kind, start)
        for order in (2, 3, 1)
        for kind in KINDS
        for start in range(4)
    },
    "dpm++2m": DPMSolver(2, "midpoint"),
    "dpm++2m-heun": DPMSolver(2, "heun"),
    "dpm++3m": DPMSolver(3, "midpoint"),
    "dpm++3m-heun": DPMSolver(3, "heun"),
}
