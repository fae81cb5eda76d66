"""What a step plan asks for, checked and worked into a plan before the first step."""

from __future__ import annotations

import dataclasses

from petzval.accel.reuse.forecasts import forecast_named
from petzval.accel.reuse.signals import signal_named
from petzval.errors import BadRequestError
from petzval.types import GuidancePlan, Plan, ReusePlan, Schedule, StepPlan


def with_steps(plan: Plan, steps: StepPlan) -> Plan:
    """The plan, to be computed as `steps` says; its schedule already has as many steps as that asks for.

    Raises BadRequestError naming the setting for a row that is not there, a number out of range, a fit for another
    schedule, and for a setting that would have no effect.
    """
    schedule = plan.schedule
    if steps.guidance is not None:
        schedule = _within_interval(schedule, steps.guidance)
    if steps.reuse is not None:
        _check_reuse(steps.reuse, schedule)
    return dataclasses.replace(plan, schedule=schedule, steps=steps)


def _within_interval(schedule: Schedule, guidance: GuidancePlan) -> Schedule:
    """Guidance is 1, so the conditional branch runs alone, outside the interval (Kynkaanniemi et al. 2024, arXiv
    2404.07724)."""
    start, stop = guidance.interval
    if not 0 <= start < stop <= 1:
        raise BadRequestError(f"guidance.interval must be 0 <= start < stop <= 1, got {start} to {stop}")
    if not 0 <= guidance.forecast_from <= 1:
        raise BadRequestError(f"guidance.forecast_from must be 0 to 1, got {guidance.forecast_from}")
    if guidance.forecast_every < 1:
        raise BadRequestError(f"guidance.forecast_every must be at least 1, got {guidance.forecast_every}")
    if (guidance.forecast_from < 1) != (guidance.forecast_every > 1):
        raise BadRequestError(
            "guidance.forecast_from and guidance.forecast_every have no effect without each other, "
            f"got {guidance.forecast_from} and {guidance.forecast_every}"
        )
    if guidance == GuidancePlan():
        raise BadRequestError("guidance: a plan that changes nothing; leave it out")
    count = schedule.num_steps
    kept = tuple(scale if start * count <= step < stop * count else 1.0 for step, scale in enumerate(schedule.guidance))
    return dataclasses.replace(schedule, guidance=kept)


def _check_reuse(reuse: ReusePlan, schedule: Schedule) -> None:
    row = forecast_named(reuse)
    signal_named(reuse)
    for name, least in (("first_full", 1), ("last_full", 0), ("max_consecutive", 1)):
        if getattr(reuse, name) < least:
            raise BadRequestError(f"reuse.{name} must be at least {least}, got {getattr(reuse, name)}")
    if reuse.signal is None and reuse.budget:
        raise BadRequestError(f"reuse.budget has no effect without reuse.signal, got {reuse.budget}")
    if reuse.signal is not None and not reuse.budget > 0:
        raise BadRequestError(f"reuse.budget must be above 0 with a signal, got {reuse.budget}")
    if reuse.polynomial != (1.0, 0.0) and reuse.signal != "modulated-input":
        raise BadRequestError("reuse.polynomial has no effect without signal 'modulated-input'")
    if reuse.computed is not None and list(reuse.computed) != sorted(set(reuse.computed)):
        raise BadRequestError(f"reuse.computed must be rising steps, got {reuse.computed}")
    if reuse.first_full < row.reads(reuse.order):
        raise BadRequestError(
            f"reuse.first_full must be at least {row.reads(reuse.order)}, what forecast {reuse.forecast!r} of order "
            f"{reuse.order} reads, got {reuse.first_full}"
        )
    fitted = reuse.forecast == "least-squares"
    if fitted != (reuse.weights is not None):
        raise BadRequestError("reuse.weights are needed by, and have an effect with, forecast 'least-squares' alone")
    if reuse.weights is not None:
        if reuse.computed is None:
            raise BadRequestError("reuse.weights are fitted for steps named in reuse.computed, which is missing")
        if len(reuse.weights) != schedule.num_steps:
            raise BadRequestError(
                f"reuse.weights are fitted for {len(reuse.weights)} steps, the schedule has {schedule.num_steps}"
            )
