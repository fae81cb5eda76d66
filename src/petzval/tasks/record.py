"""The record that travels in a result's file: everything that decided it, so that it can be made again. No torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import petzval
from petzval.errors import BadMediaError
from petzval.media.images import write_image
from petzval.media.record import Record
from petzval.media.videos import write_video
from petzval.tasks.result import Result, Runs
from petzval.tasks.table import NEEDS
from petzval.types import CheckpointId, Data, Request, from_json, to_json

FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded(Data):
    """What `--from` needs of a record."""

    request: Request
    checkpoint: CheckpointId
    runs: Runs
    group: int


def record(result: Result) -> Record:
    """The JSON that goes into files. No time of day and no seconds: the same request makes the same bytes."""
    return {
        "format": FORMAT,
        "version": petzval.__version__,
        "checkpoint": to_json(result.plan.checkpoint),
        "request": to_json(result.plan.request),
        "schedule": to_json(result.plan.schedule),
        "steps": to_json(result.plan.steps),
        "tier": to_json(result.plan.tier),
        "runs": {**dataclasses.asdict(result.runs), "group": result.group},
    }


def save(result: Result, path: Path | str) -> None:
    """Write a picture or clip with its record, whole or not at all, in the format that the suffix names.

    Raises BadRequestError for a suffix that cannot hold it, a missing folder and the like, UnavailableError when the
    disk refuses.
    """
    request = result.plan.request
    if NEEDS[request.task].makes == "image":
        write_image(result.pixels_THWC[0], Path(path), record=record(result))
    else:
        assert request.fps, "every video task has a default rate"
        write_video(result.pixels_THWC, Path(path), fps=request.fps, record=record(result))


def read(found: Record, *, name: str) -> Recorded:
    """What a record says. `name` is what messages call its file.

    Raises BadMediaError when it is of a newer format or is not one: records come from strangers too.
    """
    if found.get("format") != FORMAT:
        raise BadMediaError(
            f"the Petzval record of {name} has format {found.get('format')!r}; this version reads {FORMAT}"
        )
    try:
        runs = dict(found["runs"])
        group = runs.pop("group")
        kept = {"request": found["request"], "checkpoint": found["checkpoint"], "runs": runs, "group": group}
        return from_json(Recorded, kept)
    except (KeyError, TypeError, ValueError) as error:
        raise BadMediaError(f"the Petzval record of {name} is damaged: {error}") from error


def request_from_record(found: Record, *, name: str = "file") -> Request:
    """The request that made a file, every default filled in. Its input pictures are known by digest alone.

    Raises as `read`.
    """
    return read(found, name=name).request
