"""A trajectory as one file: written whole or not at all, and refused when it is not exactly what was written.

The file is safetensors (latents, conditioning, history, noise state) whose metadata holds one JSON header: format,
version, plan, step, the steps of the history's entries, and a SHA-256 of the whole file with that digest's own 64
characters read as zeros. So every byte is covered, and any safetensors reader can look inside.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from petzval import __version__
from petzval.durable import replacing
from petzval.errors import TrajectoryFileError
from petzval.sampling.history import History
from petzval.sampling.noise import Noise
from petzval.sampling.samplers import SAMPLERS
from petzval.sampling.trajectory import Trajectory
from petzval.types import CheckpointId, Plan, from_json, to_json

FORMAT = 1
"""Raised whenever an older reader would misread the file."""

METADATA_KEY = "petzval.trajectory"
BLANK = "0" * 64
DIGEST_MARK = rb"{\"contents_digest\":\""
"""How the header begins inside the file; text of a request cannot contain it, its quotes are escaped once more."""

LARGEST_HEADER = 100_000_000
"""Bytes; what safetensors itself allows."""


def save(trajectory: Trajectory, path: str | Path) -> None:
    """Write `trajectory` to `path`. Whatever stood there stays whole until the new file is safely on the disk.

    Raises OSError when it cannot be written; then no partial file is left, and an older one is untouched.
    """
    path = Path(path)
    blob = to_bytes(trajectory)
    with replacing(path) as part:
        part.write_bytes(blob)


def load(path: str | Path, checkpoint: CheckpointId, device: torch.device | str) -> Trajectory:
    """The trajectory that `save` wrote to `path`, on `device`, ready to advance with `checkpoint`.

    Raises TrajectoryFileError saying which: unreadable, not a trajectory, truncated, altered, of a newer format, or of
    another checkpoint.
    """
    try:
        blob = Path(path).read_bytes()
    except OSError as error:
        raise TrajectoryFileError(f"{path} cannot be read: {error.strerror}") from error
    return from_bytes(blob, checkpoint, device, source=str(path))


def to_bytes(trajectory: Trajectory) -> bytes:
    """The contents of a trajectory file. The same trajectory gives the same bytes."""
    history = trajectory.history.series
    tensors = {"latents": trajectory.latents, "noise": trajectory.noise.state()}
    tensors |= {f"conditioning/{name}": tensor for name, tensor in trajectory.conditioning.items()}
    for name, entries in history.items():
        tensors |= {f"history/{name}/{place}": tensor for place, (_, tensor) in enumerate(entries)}
    header = {
        "contents_digest": BLANK,
        "format": FORMAT,
        "petzval": __version__,
        "plan": to_json(trajectory.plan),
        "step": trajectory.step,
        "history": {name: [step for step, _ in entries] for name, entries in sorted(history.items())},
        "numbers": trajectory.history.numbers,
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False)
    # A copy each: safetensors refuses tensors that share memory, which conditioning and history may.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    blob = tensors_to_bytes(copies, metadata={METADATA_KEY: text})
    start = _digest_start(blob)
    assert start is not None, "the header was written without its digest"
    digest = hashlib.sha256(blob).hexdigest()
    return b"".join((blob[:start], digest.encode(), blob[start + len(BLANK) :]))


def from_bytes(
    blob: bytes, checkpoint: CheckpointId, device: torch.device | str, *, source: str = "the saved trajectory"
) -> Trajectory:
    """The trajectory that `to_bytes` wrote, on `device`; `source` names it in messages. Errors as of `load`."""
    header = _header(blob, source)
    _check_format(header, source)
    _check_digest(blob, header, source)
    try:
        return _restore(header, tensors_from_bytes(blob), checkpoint, torch.device(device), source)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
        # Intact by its digest, so a writer other than ours made it.
        raise TrajectoryFileError(f"{source} does not hold a complete trajectory: {error!r}") from error


def _restore(
    header: dict[str, Any], tensors: dict[str, Tensor], checkpoint: CheckpointId, device: torch.device, source: str
) -> Trajectory:
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r} never existed")
    plan, step = from_json(Plan, header["plan"]), header["step"]
    saved = plan.checkpoint
    if (saved.family, saved.fingerprint) != (checkpoint.family, checkpoint.fingerprint):
        raise TrajectoryFileError(
            f"{source} was made by another checkpoint: {_described(saved)}; this one is {_described(checkpoint)}"
        )
    if plan.schedule.sampler not in SAMPLERS:
        raise TrajectoryFileError(
            f"{source} uses sampler {plan.schedule.sampler!r}, which this version lacks; it has {', '.join(SAMPLERS)}"
        )
    if not plan.schedule.first_step <= step <= plan.schedule.num_steps:
        raise ValueError(f"step {step} is outside the schedule")
    noise = Noise.from_state(tensors.pop("noise"))
    # A copy each, so that memory is aligned as in the run that was saved: matrix products may round by alignment.
    moved = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
    return Trajectory(
        plan=plan,
        latents=moved["latents"],
        conditioning={
            name.removeprefix("conditioning/"): tensor
            for name, tensor in moved.items()
            if name.startswith("conditioning/")
        },
        noise=noise,
        step=step,
        history=History(
            {
                name: [(at, moved[f"history/{name}/{place}"]) for place, at in enumerate(steps)]
                for name, steps in header["history"].items()
            },
            {str(name): float(number) for name, number in header["numbers"].items()},
        ),
    )


# -- checks, in the order in which they can be made -------------------------------------------------------------------


def _header(blob: bytes, source: str) -> dict[str, Any]:
    """The JSON header of a file that is as long as it says."""
    start = f'{{"__metadata__":{{"{METADATA_KEY}":'.encode()
    if blob[8 : 8 + len(start)] != start[: max(0, len(blob) - 8)]:
        raise TrajectoryFileError(f"{source} is not a saved trajectory")
    size = 8 + int.from_bytes(blob[:8], "little")
    if len(blob) < 8 + len(start) or size > len(blob):
        if size > LARGEST_HEADER and len(blob) >= 8:
            raise TrajectoryFileError(f"{source} was altered: it says that its header is {size} bytes long")
        raise TrajectoryFileError(f"{source} is truncated: it ends within its header, after {len(blob)} bytes")
    try:
        outer = json.loads(blob[8:size])
        header = json.loads(outer["__metadata__"][METADATA_KEY])
        ends = [entry["data_offsets"][1] for name, entry in outer.items() if name != "__metadata__"]
        expected = size + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TrajectoryFileError(f"{source} was altered: its header cannot be read") from error
    if len(blob) < expected:
        raise TrajectoryFileError(f"{source} is truncated: {len(blob)} of {expected} bytes")
    if not isinstance(header, dict):
        raise TrajectoryFileError(f"{source} was altered: its header is not a record")
    return header


def _check_format(header: dict[str, Any], source: str) -> None:
    """First among the checks of contents: a newer format may compute its digest in another way."""
    found = header.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise TrajectoryFileError(
            f"{source} has format {found}, written by Petzval {header.get('petzval')}; "
            f"this version reads formats up to {FORMAT}"
        )


def _check_digest(blob: bytes, header: dict[str, Any], source: str) -> None:
    start = _digest_start(blob)
    if start is not None:
        digest = hashlib.sha256(blob[:start])
        digest.update(BLANK.encode())
        digest.update(memoryview(blob)[start + len(BLANK) :])
        if digest.hexdigest() == header.get("contents_digest"):
            return
    raise TrajectoryFileError(f"{source} was altered: its contents do not match their digest")


def _digest_start(blob: bytes) -> int | None:
    place = blob.find(DIGEST_MARK, 0, 8 + int.from_bytes(blob[:8], "little"))
    return None if place < 0 else place + len(DIGEST_MARK)


def _described(checkpoint: CheckpointId) -> str:
    return f"{checkpoint.name} ({checkpoint.family}, {checkpoint.fingerprint[:12]})"
