"""Requests against facts: fill in the published defaults, and refuse what cannot be done or would have no effect."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

from petzval.errors import BadRequestError
from petzval.types import ModelSpec, Request, TaskDefaults

MAX_SEED = 2**63 - 1
MAX_STEPS = 1000
MAX_SIDE = 16384


def complete(request: Request, spec: ModelSpec) -> Request:
    """The request with every None filled from the checkpoint's published defaults for its task.

    What a checkpoint has no default for (a second guidance scale, embedded guidance, strength, fps) stays None, and is
    refused when given. `images` must hold as many as the task needs. Raises BadRequestError naming the argument, what
    was given and what is allowed, with the nearest allowed value where there is one.
    """
    defaults = task_defaults(request, spec)
    filled = dataclasses.replace(
        request,
        width=_size("width", _given(request.width, defaults.width), spec.size_multiple),
        height=_size("height", _given(request.height, defaults.height), spec.size_multiple),
        num_frames=_frames(_given(request.num_frames, defaults.num_frames), defaults, spec),
        fps=_optional("fps", request.fps, defaults.fps, request.task),
        num_inference_steps=_whole(
            "num_inference_steps", _given(request.num_inference_steps, defaults.num_inference_steps), 1, MAX_STEPS
        ),
        guidance_scale=_scale("guidance_scale", _given(request.guidance_scale, defaults.guidance_scale), 1.0),
        guidance_scale_2=_optional(
            "guidance_scale_2", request.guidance_scale_2, defaults.guidance_scale_2, request.task
        ),
        embedded_guidance=_optional(
            "embedded_guidance", request.embedded_guidance, defaults.embedded_guidance, request.task
        ),
        strength=_optional("strength", request.strength, defaults.strength, request.task),
        sampler=_sampler(_given(request.sampler, spec.samplers[0]), spec),
        seed=_whole("seed", request.seed, 0, MAX_SEED),
    )
    _check_optional(filled)
    _check_images(filled, defaults)
    return dataclasses.replace(filled, negative_prompt=_negative_prompt(filled, defaults))


def task_defaults(request: Request, spec: ModelSpec) -> TaskDefaults:
    """The defaults of the request's task. Raises BadRequestError when the checkpoint cannot do it."""
    if request.task not in spec.tasks:
        raise BadRequestError(f"task {request.task!r}: {spec.family} ({spec.variant}) can do {', '.join(spec.tasks)}")
    return spec.tasks[request.task]


def nearest_multiple(value: float, multiple: int) -> int:
    """The nearest positive multiple; of two equally near ones, the larger."""
    return max(multiple, math.floor(value / multiple + 0.5) * multiple)


def nearest_frames(value: int, stride: int) -> int:
    """The nearest clip length of the form 1 + k * stride."""
    return max(0, math.floor((value - 1) / stride + 0.5)) * stride + 1


def fit_size(width: int, height: int, *, area: int, multiple: int) -> tuple[int, int]:
    """The allowed (width, height) of about `area` pixels, shaped like a `width` x `height` picture."""
    scale = math.sqrt(area / (width * height))
    return nearest_multiple(width * scale, multiple), nearest_multiple(height * scale, multiple)


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(name: str, value: int, least: int, most: int) -> int:
    if not _is_whole(value) or not least <= value <= most:
        raise BadRequestError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return value


def _size(name: str, value: int, multiple: int) -> int:
    _whole(name, value, 1, MAX_SIDE)
    if value % multiple:
        raise BadRequestError(
            f"{name} must be a multiple of {multiple}, got {value}; the nearest is {nearest_multiple(value, multiple)}"
        )
    return value


def _frames(value: int, defaults: TaskDefaults, spec: ModelSpec) -> int:
    if not _is_whole(value) or value < 1:
        raise BadRequestError(f"num_frames must be a whole number from 1, got {value!r}")
    if defaults.num_frames == 1 and value != 1:
        raise BadRequestError(f"num_frames must be 1 for a picture, got {value}")
    if (value - 1) % spec.frame_stride:
        raise BadRequestError(
            f"num_frames must be 1 plus a multiple of {spec.frame_stride}, got {value}; "
            f"the nearest is {nearest_frames(value, spec.frame_stride)}"
        )
    return value


def _optional(name: str, value: Any, default: Any, task: str) -> Any:
    """A setting that only some checkpoints have: one without a default has no use for it."""
    if value is not None and default is None:
        raise BadRequestError(f"{name} has no effect on {task} with this checkpoint; leave it out, got {value!r}")
    return _given(value, default)


def _scale(name: str, value: float, least: float) -> float:
    if not (_is_number(value) and least <= value <= sys.float_info.max):  # an int may be larger than any float
        raise BadRequestError(f"{name} must be a number of at least {least:g}, got {value!r}")
    return float(value)


def _check_optional(request: Request) -> None:
    if request.fps is not None:
        _whole("fps", request.fps, 1, 240)
    if request.guidance_scale_2 is not None:
        _scale("guidance_scale_2", request.guidance_scale_2, 1.0)
    if request.embedded_guidance is not None:
        _scale("embedded_guidance", request.embedded_guidance, 0.0)
    if request.strength is not None and not 0 < _scale("strength", request.strength, 0.0) <= 1:
        raise BadRequestError(f"strength must be above 0 and at most 1, got {request.strength!r}")


def _sampler(name: str, spec: ModelSpec) -> str:
    if name not in spec.samplers:
        raise BadRequestError(f"sampler must be one of {', '.join(spec.samplers)}, got {name!r}")
    return name


def _check_images(request: Request, defaults: TaskDefaults) -> None:
    given, most = len(request.images), defaults.max_images
    least = min(1, most)
    if not least <= given <= most:
        allowed = f"{least}" if least == most else f"{least} to {most}"
        raise BadRequestError(f"images: {request.task} takes {allowed}, got {given}")


def _negative_prompt(request: Request, defaults: TaskDefaults) -> str | None:
    """The negative prompt that will be used: None when no step computes the unconditional branch."""
    scales = (request.guidance_scale, request.guidance_scale_2)
    if any(scale is not None and scale > 1 for scale in scales):
        return _given(request.negative_prompt, defaults.negative_prompt)
    if request.negative_prompt is not None:
        raise BadRequestError("negative_prompt has no effect while guidance_scale is 1; raise guidance_scale above 1")
    return None
