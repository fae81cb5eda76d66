"""From the flags of `petzval generate` to requests, files and settings: all that can be refused before work starts."""

from __future__ import annotations

import dataclasses
import re
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from petzval.cli.show import Notes
from petzval.errors import BadMediaError, BadRequestError, CheckpointError
from petzval.media import untrusted
from petzval.media.files import IMAGE_SUFFIXES, VIDEO_SUFFIXES, check_suffix, check_writable
from petzval.media.images import read_image
from petzval.media.record import read_record
from petzval.tasks.record import Recorded
from petzval.tasks.record import read as read_recorded
from petzval.tasks.table import NEEDS, infer_task
from petzval.types import TASKS, TIERS, CheckpointId, InputImage, Request, Task, Tier

if TYPE_CHECKING:
    from petzval.cli.generate import How, Output, What, Where

MAX_NUM = 1000
_SLUG_LENGTH = 48
_KEPT = ("task", "prompt", "negative_prompt", "seed", "tier")
"""What is left of a record's request when another task is asked for: sizes and steps belong to the task."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Everything that a call of `generate` does."""

    requests: list[Request]
    paths: list[Path]
    model: str
    revision: str | None
    settings: dict[str, str]
    """device, dtype and attention."""
    made_by: CheckpointId | None
    """The checkpoint that a record names."""
    source: Path | None
    """The file that the record is of."""


def gather(what: What, how: How, where: Where, output: Output, notes: Notes) -> Wish:
    """Raises BadRequestError and BadMediaError naming the flag and what is allowed."""
    recorded = None if output.from_ is None else _read(output.from_)
    if what.prompt is None and recorded is None:
        raise BadRequestError('PROMPT is missing: say what to show, or "" for whatever comes, or give --from FILE')
    if not 1 <= what.num <= MAX_NUM:
        raise BadRequestError(f"--num must be from 1 to {MAX_NUM}, got {what.num}")
    task = _task(what, output.out, recorded)
    request = _request(task, what, how, recorded)
    requests = [dataclasses.replace(request, seed=request.seed + index) for index in range(what.num)]
    settings, note = _settings(where, recorded)
    if note:
        notes.say(f"note: {note}")
    if recorded is not None and recorded.group != len(requests):
        notes.say(f"note: made in a group of {recorded.group}; another number may round differently")
    return Wish(
        requests=requests,
        paths=_paths(requests, output.out, notes),
        model=_model(where, recorded),
        revision=where.revision,
        settings=settings,
        made_by=recorded.checkpoint if recorded else None,
        source=output.from_,
    )


def check_checkpoint(wish: Wish) -> None:
    """Raises CheckpointError when a record was made by other weights than those that would run."""
    from petzval.engine.build import identify

    if wish.made_by is None:
        return
    try:
        found = identify(wish.model, revision=wish.revision)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {wish.source} was made by it: --model says where it is now") from error
    if wish.made_by.fingerprint != found.fingerprint:
        raise CheckpointError(
            f"{wish.source} was made by {wish.made_by.name} (fingerprint {wish.made_by.fingerprint}), but {found.name} "
            f"is another checkpoint (fingerprint {found.fingerprint}); name the one that made it with --model"
        )


# -- what is asked ----------------------------------------------------------------------------------------------------


def _read(path: Path) -> Recorded:
    return read_recorded(read_record(path), name=str(path))


def _task(what: What, out: Path | None, recorded: Recorded | None) -> Task:
    """The task that was named, else the record's, else what --image and --out imply; --out must be able to hold it."""
    if what.task is not None and what.task not in TASKS:
        raise BadRequestError(f"--task must be one of {', '.join(TASKS)}, got {what.task!r}")
    suffix = out.suffix.lower() if out else ""
    if what.task is not None:
        task = what.task
    elif recorded is not None:
        task = recorded.request.task
    else:
        clip = suffix in VIDEO_SUFFIXES and suffix not in IMAGE_SUFFIXES
        task = infer_task(has_images=bool(what.image), makes="video" if clip else "image")
    if out is not None:
        try:
            check_suffix(out, kind=NEEDS[task].makes)
        except BadRequestError as error:
            raise BadRequestError(f"--out does not fit task {task}: {error}") from None
    return task


def _request(task: Task, what: What, how: How, recorded: Recorded | None) -> Request:
    """The flags that were given, over the record if there is one."""
    if how.tier is not None and how.tier not in get_args(Tier):
        raise BadRequestError(f"--tier must be one of {', '.join(TIERS)}, got {how.tier!r}")
    asked = {
        "prompt": what.prompt,
        "negative_prompt": what.negative,
        "strength": what.strength,
        "seed": what.seed,
        "width": how.width,
        "height": how.height,
        "num_frames": how.frames,
        "fps": how.fps,
        "num_inference_steps": how.steps,
        "guidance_scale": how.guidance,
        "guidance_scale_2": how.guidance_2,
        "embedded_guidance": how.embedded_guidance,
        "sampler": how.sampler,
        "tier": how.tier,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    images = tuple(_input_image(path) for path in what.image)
    if recorded is None:
        return Request(task=task, images=images, **{"seed": secrets.randbelow(2**32), **given})
    base = recorded.request
    if task != base.task:
        kept = {name: getattr(base, name) for name in _KEPT}
        return Request(**{**kept, **given, "task": task, "images": images})
    _check_same_images(images, what.image, base)
    if how.guidance is not None and how.guidance <= 1 and what.negative is None:
        given["negative_prompt"] = None  # it has no effect then, and to carry it along would be refused
    return dataclasses.replace(base, images=images, **given)


def _input_image(path: Path) -> InputImage:
    """Decoded here for its errors alone, which name the file and come before the model is loaded."""
    data = untrusted.load(path, name=str(path))
    read_image(data, name=str(path))
    return InputImage.of(data)


def _check_same_images(images: tuple[InputImage, ...], paths: list[Path], base: Request) -> None:
    if len(images) != len(base.images):
        digests = ", ".join(image.sha256 for image in base.images) or "none"
        raise BadRequestError(
            f"--from needs the {len(base.images)} input pictures of its record again, with --image, "
            f"got {len(images)}; sha256: {digests}"
        )
    for path, given, wanted in zip(paths, images, base.images, strict=True):
        if given.sha256 != wanted.sha256:
            raise BadMediaError(
                f"{path} is not the input picture of the record: sha256 {given.sha256}, {wanted.sha256}"
            )


def _model(where: Where, recorded: Recorded | None) -> str:
    """The checkpoint that is named, else the record's, else the bundled one."""
    if where.model is not None:
        return where.model
    return recorded.checkpoint.name if recorded else "pocket"


def _settings(where: Where, recorded: Recorded | None) -> tuple[dict[str, str], str | None]:
    """device, dtype and attention: as given, else as recorded if that device is here, else by themselves."""
    asked = {"device": where.device, "dtype": where.dtype, "attention": where.attention}
    given = {name: value for name, value in asked.items() if value is not None}
    if recorded is None:
        return given, None
    from petzval.engine.build import available_devices

    runs = recorded.runs
    if where.device is None and runs.device not in available_devices():
        return given, f"made on {runs.device}, which is not here: pixels may differ in rounding"
    if where.device is not None and where.device != runs.device:
        return given, None
    return {"device": runs.device, "dtype": runs.dtype, "attention": runs.attention, **given}, None


# -- where it goes ----------------------------------------------------------------------------------------------------


def _paths(requests: list[Request], out: Path | None, notes: Notes) -> list[Path]:
    """A file for each request: what --out names is overwritten, what was found by itself is not."""
    makes = NEEDS[requests[0].task].makes
    if out is not None:
        named = [out] if len(requests) == 1 else [out.with_stem(f"{out.stem}-{r.seed}") for r in requests]
    else:
        suffix = ".png" if makes == "image" else ".mp4"
        named = [_free(Path(f"{slug(r.prompt)}-{r.seed}{suffix}"), notes) for r in requests]
    for path in named:
        check_writable(path)
    return named


def slug(prompt: str) -> str:
    """A name for files: the prompt's first words in plain letters and digits."""
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", plain[: 4 * _SLUG_LENGTH])
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word
        if len(longer) > _SLUG_LENGTH:
            break
        name = longer
    return name or (words[0][:_SLUG_LENGTH] if words else "petzval")


def _free(path: Path, notes: Notes) -> Path:
    """The path, or the first numbered one after it that nothing has."""
    found, number = path, 2
    while found.exists() or found.is_symlink():
        found, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    if found != path:
        notes.say(f"note: {path} exists; writing {found}")
    return found
