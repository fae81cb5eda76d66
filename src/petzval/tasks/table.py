"""What each task needs and makes: the one table that says how tasks differ. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from petzval.media.files import Kind
from petzval.types import TASKS, Task


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What is handed in and what comes out."""

    makes: Kind
    """A picture ("image") or a clip ("video")."""
    takes_images: bool
    """Whether it starts from input pictures."""


NEEDS: dict[Task, Needs] = {
    "text-to-image": Needs(makes="image", takes_images=False),
    "image-to-image": Needs(makes="image", takes_images=True),
    "text-to-video": Needs(makes="video", takes_images=False),
    "image-to-video": Needs(makes="video", takes_images=True),
    "reference-to-video": Needs(makes="video", takes_images=True),
}
assert tuple(NEEDS) == TASKS


def infer_task(*, has_images: bool, makes: Kind) -> Task:
    """The plain task for what is handed in and what is wanted: words alone, or a picture to start from."""
    return next(task for task, needs in NEEDS.items() if (needs.makes, needs.takes_images) == (makes, has_images))
