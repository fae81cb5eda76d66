"""Guidance branches: which forwards a step needs, and how their predictions become one."""

from collections.abc import Mapping

from torch import Tensor

from petzval.types import Schedule


def branches(schedule: Schedule, step: int) -> tuple[str, ...]:
    """The branches that step needs: the conditional one alone where guidance is 1."""
    return ("cond",) if schedule.guidance[step] == 1.0 else ("cond", "uncond")


def combine(predictions: Mapping[str, Tensor], guidance_scale: float) -> Tensor:
    """Classifier-free guidance (Ho & Salimans 2022, arXiv 2207.12598): away from the unconditional prediction.

    A row per branch, all of one shape; a lone conditional prediction is returned as it is.
    """
    cond = predictions["cond"]
    if "uncond" not in predictions:
        return cond
    uncond = predictions["uncond"]
    return uncond + guidance_scale * (cond - uncond)
