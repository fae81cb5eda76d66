"""The fidelity ruler: how far from the reference a result is, between what rounding does and what another seed does.

A distance alone says nothing: a harmless change of kernel can move a 50-step picture visibly. So every family gets its
own ruler: at 0 the same computation rounded otherwise, at 1 another seed of the same prompt.

Shapes: T frames, H height, W width, C channels.
"""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from petzval.autotune.distances import Pixels, distance
from petzval.autotune.statistics import interval
from petzval.engine.model import Model
from petzval.engine.recipes import BOUNDS, LEAST_SAMPLES
from petzval.errors import BadRequestError
from petzval.tasks.generate import generate
from petzval.types import CheckpointId, Data, Request, Tier

OTHER_SEED = 1_000_003
"""Added to a seed for the picture at 1 of the ruler."""

OnSample = Callable[[int, int], None]
"""(done, in all)"""


@dataclass(frozen=True, kw_only=True)
class Ruler(Data):
    """The marks 0 and 1 of one checkpoint, device and shape."""

    checkpoint: CheckpointId
    device: str
    width: int
    height: int
    num_frames: int
    distance: str
    floor: float
    """Median distance between the reference and itself, rounded otherwise."""
    ceiling: float
    """Median distance between two seeds of one prompt."""
    ceiling_interval: tuple[float, float]
    samples: int
    date: str

    def loss(self, found: float) -> float:
        """Fidelity loss of a distance from the reference: 0 at or under the floor, 1 like another seed."""
        return max(0.0, (found - self.floor) / (self.ceiling - self.floor))


@dataclass(frozen=True)
class Fidelity:
    """What a way to compute loses, sample by sample."""

    losses: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.losses)

    @property
    def worst(self) -> float:
        return max(self.losses)

    @property
    def worst_sample(self) -> int:
        return self.losses.index(self.worst)

    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the median."""
        return interval(self.losses)

    def within(self, tier: Tier) -> bool:
        """Whether median and worst sample keep a tier's bounds."""
        return self.median <= BOUNDS[tier] and self.worst <= 2 * BOUNDS[tier]


@dataclass(frozen=True)
class Reference:
    """Requests, and what tier exact makes of each."""

    requests: tuple[Request, ...]
    pixels: tuple[Pixels, ...]

    def head(self, count: int) -> Reference:
        return Reference(self.requests[:count], self.pixels[:count])

    def __len__(self) -> int:
        return len(self.requests)


def make_all(model: Model, requests: Sequence[Request], on_sample: OnSample | None = None) -> list[Pixels]:
    """Each alone, one after another, so that no result depends on its company."""
    pixels = []
    for index, request in enumerate(requests):
        pixels.append(generate(model, request).pixels_THWC)
        if on_sample:
            on_sample(index + 1, len(requests))
    return pixels


def reference(model: Model, requests: Sequence[Request], on_sample: OnSample | None = None) -> Reference:
    """What tier exact makes of the requests, whatever tier they ask for."""
    exact = tuple(dataclasses.replace(request, tier="exact") for request in requests)
    return Reference(exact, tuple(make_all(model, exact, on_sample)))


def measure(
    model: Model,
    made: Reference,
    *,
    name: str = "ms-ssim",
    on_sample: OnSample | None = None,
) -> Ruler:
    """The ruler of a checkpoint as built here, from references of one shape.

    Rounding is changed by company: the same requests advanced as one group sum in another order. Raises BadRequestError
    for fewer than two references, for references of several shapes, and when the two marks coincide: then nothing can
    be told between them.
    """
    if len(made) < 2:
        raise BadRequestError(f"a ruler needs at least 2 samples, got {len(made)}")
    shapes = {pixels.shape for pixels in made.pixels}
    if len(shapes) != 1:
        raise BadRequestError(f"a ruler is of one shape, got {sorted(shapes)}")
    others = [dataclasses.replace(r, seed=(r.seed + OTHER_SEED) % 2**63) for r in made.requests]
    apart = make_all(model, others, on_sample)
    rounded: list[Pixels] = []
    for start in range(0, len(made), 4):
        # A last one alone would be computed exactly as the reference was.
        group = list(made.requests[start : start + 4])
        company = group if len(group) > 1 else [*group, others[start]]
        rounded += [result.pixels_THWC for result in generate(model, company)[: len(group)]]
    floors = [distance(a, b, name) for a, b in zip(made.pixels, rounded, strict=True)]
    ceilings = [distance(a, b, name) for a, b in zip(made.pixels, apart, strict=True)]
    floor, ceiling = statistics.median(floors), statistics.median(ceilings)
    if not ceiling > floor:
        raise BadRequestError(
            f"two seeds of {model.checkpoint.name} are as alike as two roundings ({ceiling:.4g} and {floor:.4g}): "
            "give prompts that leave something open, or do not fix the whole picture by an input"
        )
    frames, height, width, _ = made.pixels[0].shape
    return Ruler(
        checkpoint=model.checkpoint,
        device=model.kind,
        width=width,
        height=height,
        num_frames=frames,
        distance=name,
        floor=floor,
        ceiling=ceiling,
        ceiling_interval=interval(ceilings),
        samples=len(made),
        date=today(),
    )


def fidelity(ruler: Ruler, made: Reference, pixels: Sequence[Pixels]) -> Fidelity:
    """What `pixels`, made of the same requests another way, lose."""
    found = (distance(a, b, ruler.distance) for a, b in zip(made.pixels, pixels, strict=True))
    return Fidelity(tuple(ruler.loss(value) for value in found))


def enough(samples: int) -> None:
    """Raises BadRequestError for fewer samples than evidence needs."""
    if samples < LEAST_SAMPLES:
        raise BadRequestError(f"evidence for a tier needs at least {LEAST_SAMPLES} samples, got {samples}")


def softened(pixels_THWC: Pixels, other_THWC: Pixels, ruler: Ruler, loss: float) -> Pixels:
    """What a fidelity loss looks like: the reference, blended with another seed's result until it loses that much.

    The share is found by bisection; a loss above 1 gives the other result.
    """
    low, high = 0.0, 1.0
    for _ in range(20):
        share = (low + high) / 2
        mixed = ((1 - share) * pixels_THWC + share * other_THWC).astype(np.float32)
        if ruler.loss(distance(pixels_THWC, mixed, ruler.distance)) < loss:
            low = share
        else:
            high = share
    return ((1 - high) * pixels_THWC + high * other_THWC).astype(np.float32)


def today() -> str:
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
