"""What checkpoints are on this machine, and their facts, for `petzval models`. Reads no weights, downloads nothing."""

from __future__ import annotations

from typing import Any

from petzval.errors import PetzvalError
from petzval.models import registry
from petzval.models.checkpoint import Checkpoint, bundled_names, cached_names, resolve
from petzval.types import to_json


def entries() -> list[dict[str, Any]]:
    """Every bundled and cached checkpoint; one that cannot be used has `error` instead of facts."""
    return [_entry(name) for name in (*bundled_names(), *cached_names())]


def entry(name: str) -> dict[str, Any]:
    """One checkpoint: a bundled name, a folder, or a hub id that is cached.

    Raises CheckpointError when it is not on this machine or not whole, UnavailableError when its family cannot run.
    """
    return _facts(resolve(name, download=False))


def _entry(name: str) -> dict[str, Any]:
    try:
        return entry(name)
    except PetzvalError as error:
        return {"name": name, "source": _source(name), "error": {"code": error.code, "message": str(error)}}


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    spec = registry.spec(checkpoint)
    return {
        "name": checkpoint.name,
        "source": _source(checkpoint.name),
        "family": spec.family,
        "variant": spec.variant,
        "licence": spec.licence,
        "tasks": {task: to_json(defaults) for task, defaults in spec.tasks.items()},
        "samplers": list(spec.samplers),
        "size_multiple": spec.size_multiple,
        "frame_stride": spec.frame_stride,
        "parameters": spec.parameters,
        "bytes": checkpoint.bytes,
        "fingerprint": checkpoint.fingerprint(),
    }


def _source(name: str) -> str:
    if name in bundled_names():
        return "bundled"
    return "cached" if name.partition("@")[0] in cached_names() else "folder"
