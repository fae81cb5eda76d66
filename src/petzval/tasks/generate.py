"""Requests to pixels, for every task alike: encode, denoise as one group, decode.

Shapes: T frames, H height, W width, C channels.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, overload

import numpy as np
import torch

from petzval.accel.reuse.skip import Skipping
from petzval.errors import BadRequestError, OutOfMemoryError
from petzval.media.images import Bytes8, read_image
from petzval.models.family import Conditioning, Family
from petzval.models.pixels import check_finite
from petzval.models.validate import nearest_multiple, task_defaults
from petzval.sampling import trajectory as trajectories
from petzval.sampling.noise import Noise
from petzval.sampling.trajectory import Trajectory
from petzval.tasks.result import Event, OnEvent, Result, Runs, Stage
from petzval.types import TASKS, TIERS, Plan, Request, misfits


class Model(Family, Protocol):
    """A family that was built to run here, and says how."""

    @property
    def runs(self) -> Runs: ...


SKIPPING = Skipping()
"""Decides by each trajectory's own plan what of a step is computed."""

OnStep = Callable[[int, int, float], None]
"""(steps done, steps in all, seconds of this one)"""


# -- the stages -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def begin(model: Family, request: Request) -> Trajectory:
    """A request, encoded, before its first step.

    Input pictures are read; where the request names no size, it follows from them. Raises BadRequestError for what the
    checkpoint cannot do, BadMediaError for a damaged picture.
    """
    plan, images = _planned(model, request)
    noise = Noise(plan.request.seed)
    conditioning = model.encode(plan, images, noise.generator)
    return _start(model, plan, conditioning, noise)


@torch.no_grad()
def begin_group(model: Family, requests: Sequence[Request], on_step: OnStep | None = None) -> list[Trajectory]:
    """As `begin`, for each; requests that differ in their seed alone share one encoding and its invariants.

    Every request is checked before the first is encoded.
    """
    planned = [_planned(model, request) for request in requests]
    shared: dict[Request, tuple[Conditioning, Any]] = {}
    group = []
    for plan, images in planned:
        started = time.perf_counter()
        # With pictures it is not shared: some families draw a sample of the encoder's posterior, by the seed.
        key = dataclasses.replace(plan.request, seed=0)
        noise = Noise(plan.request.seed)
        if images or key not in shared:
            conditioning = model.encode(plan, images, noise.generator)
            shared[key] = conditioning, model.invariants(plan, conditioning)
        conditioning, invariants = shared[key]
        trajectory = _start(model, plan, conditioning, noise)
        trajectory.invariants = invariants
        group.append(trajectory)
        if on_step:
            on_step(len(group), len(planned), time.perf_counter() - started)
    return group


def run(model: Family, group: Sequence[Trajectory], on_step: OnStep | None = None) -> None:
    """Advance a group until every trajectory is done, one step of all at a time; those that end earlier wait.

    An exception, Ctrl-C included, leaves each trajectory at a step boundary, from where it can go on. Raises
    NotFiniteError as soon as there is nothing to go on with.
    """
    total = max((t.plan.schedule.num_steps - t.step for t in group), default=0)
    for done in range(1, total + 1):
        started = time.perf_counter()
        moving = [t for t in group if not t.done]
        trajectories.advance(moving, model, SKIPPING)
        for trajectory in moving:
            check_finite(trajectory.latents, f"the latents after step {trajectory.step}")
        _wait_for(model.device)
        if on_step:
            on_step(done, total, time.perf_counter() - started)


def decode(model: Family, trajectory: Trajectory) -> np.ndarray:
    """Pixels of a trajectory, float32 THWC in [0, 1]: the result when it is done, a preview before.

    Raises NotFiniteError when there is no picture in it.
    """
    latents = trajectory.clean_estimate()
    return model.decode(trajectory.plan, trajectory.conditioning, latents).numpy()


def finish(
    model: Model, trajectory: Trajectory, *, seconds: dict[Stage, float] | None = None, group: int = 1
) -> Result:
    """The result of a trajectory that is done."""
    assert trajectory.done, f"at step {trajectory.step} of {trajectory.plan.schedule.num_steps}"
    started = time.perf_counter()
    pixels_THWC = decode(model, trajectory)
    spent: dict[Stage, float] = {**(seconds or {}), "decode": time.perf_counter() - started}
    return Result(pixels_THWC=pixels_THWC, plan=trajectory.plan, runs=model.runs, seconds=spent, group=group)


# -- all of them ------------------------------------------------------------------------------------------------------


@overload
def generate(model: Model, request: Request, on_event: OnEvent | None = None) -> Result: ...
@overload
def generate(model: Model, request: Sequence[Request], on_event: OnEvent | None = None) -> list[Result]: ...
def generate(
    model: Model, request: Request | Sequence[Request], on_event: OnEvent | None = None
) -> Result | list[Result]:
    """A picture or clip for a request; for several, one each, advanced as one group.

    `on_event` is told of every stage and step. Raises BadRequestError and BadMediaError as `begin`, OutOfMemoryError
    when the group does not fit on the device, NotFiniteError when no picture comes out.
    """
    if not isinstance(request, (Request, Sequence)):
        raise BadRequestError(f"requests must be a petzval.Request or a sequence of them, got {request!r:.80}")
    requests = [request] if isinstance(request, Request) else list(request)
    if not requests:
        raise BadRequestError("requests must hold at least one, got none")
    results = _generate(model, requests, on_event or _ignore)
    return results[0] if isinstance(request, Request) else results


def _generate(model: Model, requests: Sequence[Request], on_event: OnEvent) -> list[Result]:
    size = len(requests)
    seconds: dict[Stage, float] = {}
    with _memory_errors(model.device, size):
        with _stage("encode", on_event, seconds) as on_step:
            group = begin_group(model, requests, on_step)
            _wait_for(model.device)
        with _stage("denoise", on_event, seconds) as on_step:
            run(model, group, on_step)
        for trajectory in group:
            trajectory.invariants = None  # the largest part of it, and decoding needs memory
        results: list[Result] = []
        with _stage("decode", on_event, seconds) as on_step:
            while group:
                results.append(finish(model, group.pop(0), seconds=seconds, group=size))
                on_step(len(results), size, results[-1].seconds["decode"])
    return [dataclasses.replace(result, seconds=dict(seconds)) for result in results]


def _ignore(event: Event) -> None:
    """Nobody listens."""


@contextmanager
def _stage(stage: Stage, on_event: OnEvent, seconds: dict[Stage, float]) -> Iterator[OnStep]:
    """Tells of a stage's start, steps and end, and notes how long it took."""
    started = time.perf_counter()
    on_event(Event(kind="started", stage=stage))

    def on_step(done: int, total: int, spent: float) -> None:
        on_event(Event(kind="step", stage=stage, step=done, num_steps=total, seconds=spent))

    yield on_step
    seconds[stage] = time.perf_counter() - started
    on_event(Event(kind="ended", stage=stage, seconds=seconds[stage]))


@contextmanager
def _memory_errors(device: torch.device, size: int) -> Iterator[None]:
    """Turns torch's several ways to say that memory ran out into ours."""
    advice = "ask for fewer at a time, or for a smaller size" if size > 1 else "ask for a smaller size or fewer frames"
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"{size} at a time do not fit in the memory of {device}: {advice}") from error
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):  # the only sign that torch gives on a CPU
            raise
        raise OutOfMemoryError(f"{size} at a time do not fit in the memory of this machine: {advice}") from error


def _wait_for(device: torch.device) -> None:
    """Until the device has done what it was told, so that seconds are those of the work and Ctrl-C acts at a step."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


# -- how a request becomes a plan -------------------------------------------------------------------------------------


_TYPED = {
    "task": f"one of {', '.join(TASKS)}",
    "prompt": "text",
    "negative_prompt": "text",
    "images": "a tuple of petzval.InputImage",
    "tier": f"one of {', '.join(TIERS)}",
}


def _planned(model: Family, request: Request) -> tuple[Plan, list[Bytes8]]:
    """The plan of a request, and its input pictures, read."""
    _check_types(request)
    task_defaults(request, model.spec)
    for name in ("prompt", "negative_prompt"):
        _check_text(name, getattr(request, name))
    images = [_read(image.data, index) for index, image in enumerate(request.images)]
    if images:
        request = _sized_by(model, request, images[0])
    return model.plan(request), images


def _check_types(request: Request) -> None:
    """Of what no other check looks at; numbers have theirs, which name the nearest allowed one too."""
    if not isinstance(request, Request):
        raise BadRequestError(f"a request must be a petzval.Request, got {request!r:.80}")
    for name in misfits(request):
        if name in _TYPED:
            raise BadRequestError(f"{name} must be {_TYPED[name]}, got {getattr(request, name)!r:.80}")


def _check_text(name: str, text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise BadRequestError(f"{name} is not valid text: it has bytes that are not UTF-8") from None


def _read(data: bytes | None, index: int) -> Bytes8:
    if data is None:
        raise BadRequestError(f"images[{index}] is known by its digest alone; give the picture itself again")
    return read_image(data, name=f"images[{index}]")


def _sized_by(model: Family, request: Request, image_HWC: Bytes8) -> Request:
    """A size that was not asked for follows the picture: the family's choice, or the shape with the side asked for."""
    height, width, _ = image_HWC.shape
    multiple = model.spec.size_multiple
    if request.width is None and request.height is None:
        width, height = model.natural_size(request.task, width, height)
        return dataclasses.replace(request, width=width, height=height)
    if request.height is None and request.width is not None:
        return dataclasses.replace(request, height=nearest_multiple(request.width * height / width, multiple))
    if request.width is None and request.height is not None:
        return dataclasses.replace(request, width=nearest_multiple(request.height * width / height, multiple))
    return request


def _start(model: Family, plan: Plan, conditioning: Conditioning, noise: Noise) -> Trajectory:
    """Pure noise, or (image-to-image by re-noising) the picture with noise of the first step's level."""
    renoised = plan.request.strength is not None
    return trajectories.begin(
        plan,
        conditioning=conditioning,
        noise=noise,
        shape=model.latents_shape(plan),
        device=model.device,
        image_latents=model.image_latents(plan, conditioning) if renoised else None,
    )
