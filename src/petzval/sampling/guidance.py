"""Guidance: how the predictions of a step's branches become one."""

from collections.abc import Mapping

from torch import Tensor


def combine(predictions: Mapping[str, Tensor], guidance_scale: float) -> Tensor:
    """Classifier-free guidance (Ho & Salimans 2022, arXiv 2207.12598): away from the unconditional prediction.

    A row per branch, all of one shape; a lone conditional prediction is returned as it is.
    """
    cond = predictions["cond"]
    if "uncond" not in predictions:
        return cond
    uncond = predictions["uncond"]
    return uncond + guidance_scale * (cond - uncond)
