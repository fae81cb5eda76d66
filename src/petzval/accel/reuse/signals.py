"""Signals: what a gate reads to tell how much the next prediction will have changed, before it is computed.

A signal's value is a relative change, so that one budget means the same for a small step of a large latent and the
reverse. Signals that need a look into the model name a probe, which the family computes.

Shapes: any; tensors of one trajectory, without a batch axis. C channels first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from petzval.errors import BadRequestError
from petzval.types import ReusePlan

SPECTRUM_POWER = 3.0
"""Energy of clean latents falls with frequency to this power (SeaCache, arXiv 2602.18993)."""


@dataclass(frozen=True)
class Look:
    """What a signal may read."""

    now: Tensor
    """Latents, or the probe's answer, at this step."""
    before: Tensor
    """The same at the step before; for a signal that does not accumulate, at the last computed one."""
    sigma: float
    sigma_before: float
    rate: float
    """How much the prediction changed for a change of the latents of 1, between the last two computed steps."""
    output: Tensor
    """The last computed prediction."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One way to foresee change."""

    value: Callable[[Look, ReusePlan], float]
    probe: str | None = None
    """What is asked of the model (see `Family.probe`); None: the latents are read."""
    accumulates: bool = True
    """Values of forecast steps add up; else the value itself tells the change since the last computed step."""


def relative_l1(now: Tensor, before: Tensor) -> float:
    """Mean absolute change, over the mean absolute value before."""
    return float((now - before).abs().mean() / before.abs().mean().clamp_min(1e-12))


def _latent_rate(look: Look, plan: ReusePlan) -> float:
    """The latents' change times the model's rate of change, over the prediction (EasyCache, arXiv 2507.02860)."""
    return look.rate * float((look.now - look.before).abs().mean() / look.output.abs().mean().clamp_min(1e-12))


def _filtered_latents(look: Look, plan: ReusePlan) -> float:
    """Change of the latents where they hold signal: noise is filtered out by its share at each frequency (SeaCache's
    idea, arXiv 2602.18993: frequencies emerge from noise one after another)."""
    return relative_l1(signal_part(look.now, look.sigma), signal_part(look.before, look.sigma_before))


def signal_part(latents: Tensor, sigma: float) -> Tensor:
    """Latents after the Wiener filter of a clean spectrum that falls with frequency ** SPECTRUM_POWER, at noise level
    `sigma`; over the last two axes."""
    height, width = latents.shape[-2:]
    rows = torch.fft.fftfreq(height, device=latents.device)[:, None] * height
    columns = torch.fft.rfftfreq(width, device=latents.device)[None] * width
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(1.0)
    clean = (1 - sigma) ** 2 * frequency**-SPECTRUM_POWER * min(height, width)
    gain = clean / (clean + sigma**2 + 1e-12)
    return torch.fft.irfft2(torch.fft.rfft2(latents.float()) * gain, s=(height, width))


def _modulated_input(look: Look, plan: ReusePlan) -> float:
    """Change of the first block's modulated input, through the plan's polynomial (TeaCache, arXiv 2411.19108)."""
    change, total = relative_l1(look.now, look.before), 0.0
    for coefficient in plan.polynomial:
        total = total * change + coefficient
    return abs(total)


def _first_block(look: Look, plan: ReusePlan) -> float:
    """Change of what the first block adds to its input (first-block cache, of ParaAttention)."""
    return relative_l1(look.now, look.before)


SIGNALS: Final[Mapping[str, Signal]] = {
    "latent-rate": Signal(value=_latent_rate),
    "filtered-latents": Signal(value=_filtered_latents),
    "modulated-input": Signal(value=_modulated_input, probe="modulated-input"),
    "first-block": Signal(value=_first_block, probe="first-block", accumulates=False),
}


def signal_named(plan: ReusePlan) -> Signal | None:
    """The plan's row. Raises BadRequestError naming what the plan asks for and what there is."""
    if plan.signal is None:
        return None
    if plan.signal not in SIGNALS:
        raise BadRequestError(f"signal must be one of {', '.join(SIGNALS)}, got {plan.signal!r}")
    return SIGNALS[plan.signal]
