"""The record that travels in a result's file: everything that decided it, so that it can be made again. No torch."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

import petzval
from petzval.errors import BadMediaError
from petzval.media.images import write_image
from petzval.media.record import Record
from petzval.media.videos import write_video
from petzval.tasks.result import Result, Runs
from petzval.tasks.table import NEEDS
from petzval.types import CheckpointId, Request, request_from_json, to_json

FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
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
        "tier": result.tier,
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
        request = request_from_json(found["request"])
        checkpoint = CheckpointId(**found["checkpoint"])
        runs = dict(found["runs"])
        group = runs.pop("group")
        recorded = Recorded(request=request, checkpoint=checkpoint, runs=Runs(**runs), group=group)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMediaError(f"the Petzval record of {name} is damaged: {error!r}") from error
    for part in (recorded, request, checkpoint, recorded.runs, *request.images):
        _check_types(part, name=name)
    return recorded


def request_from_record(found: Record, *, name: str = "file") -> Request:
    """The request that made a file, every default filled in. Its input pictures are known by digest alone.

    Raises as `read`.
    """
    return read(found, name=name).request


def misfits(part: Any) -> list[str]:
    """Names of a dataclass's fields whose values are not of their types."""
    hints = typing.get_type_hints(type(part))
    return [f.name for f in dataclasses.fields(part) if not _fits(getattr(part, f.name), hints[f.name])]


def _check_types(part: Any, *, name: str) -> None:
    for field in misfits(part):
        raise BadMediaError(f"the Petzval record of {name} is damaged: {field} is {getattr(part, field)!r:.80}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value that JSON gave is of a field's type: plain types, their unions, literals and tuples."""
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    if origin is typing.Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
