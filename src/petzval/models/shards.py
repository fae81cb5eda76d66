"""The safetensors files of one component: which they are, and what their headers say. No torch, no weights read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from petzval.errors import CheckpointError

STEMS = ("diffusion_pytorch_model", "model")
"""File stems of weights in the diffusers layout: the first is diffusers', the second transformers'."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")
"""Endings of weight files that are never opened: most of them run code when they are loaded."""

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_SAMPLE_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor of a safetensors file, as its header describes it."""

    file: Path
    dtype: str
    """The format's name of it: F32, BF16, I64, ..."""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    size: int
    """Bytes of data."""

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("F", "BF"))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Raises CheckpointError naming the file when it is missing or not one."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, it holds a {type(value).__name__}")
    return cast("dict[str, Any]", value)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that make up the weights in a component's folder, in order of name.

    The plain files come first; a variant (`model.fp16.safetensors`) is taken only where it is all there is. An empty
    tuple means that the component has no weights (a tokenizer, a scheduler).

    Raises CheckpointError when a shard or the index is missing, when the weights are pickles only, or when there are
    several variants and no plain file.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for stem in STEMS:
        if f"{stem}.safetensors.index.json" in names:
            return _indexed(folder / f"{stem}.safetensors.index.json")
        if f"{stem}.safetensors" in names:
            return (folder / f"{stem}.safetensors",)
    variants = _variants(names)
    if len(variants) > 1:
        raise CheckpointError(f"{folder} has weights in the variants {', '.join(variants)} only: keep the one to load")
    for name in variants.values():
        return _indexed(folder / name) if name.endswith(".json") else (folder / name,)
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        raise CheckpointError(f"{folder} has {shards[0]} but neither {STEMS[0]}.safetensors nor an index of its shards")
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise CheckpointError(
            f"{folder} has its weights as {pickles[0]} only: pickles can run code and are never loaded; "
            "convert them to safetensors"
        )
    return ()


def _variants(names: Iterable[str]) -> dict[str, str]:
    """Variant -> its index, or its only file."""
    found: dict[str, str] = {}
    for name in names:
        for stem in STEMS:
            if name.startswith(f"{stem}.safetensors.index.") and name.endswith(".json"):
                found[name.removeprefix(f"{stem}.safetensors.index.").removesuffix(".json")] = name
            elif name.startswith(f"{stem}.") and name.endswith(".safetensors"):
                variant = name.removeprefix(f"{stem}.").removesuffix(".safetensors")
                if "-of-" not in variant:  # a shard is reached through its index
                    found.setdefault(variant, name)
    return found


def _indexed(index: Path) -> tuple[Path, ...]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    shards = sorted(set(map(str, weight_map.values())))
    for shard in shards:
        # An index from a stranger must not reach outside its own folder.
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index} names the shard {shard!r}, which is not a safetensors file beside it")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"{index} needs the shard {shard}, which is missing")
    held = {shard: read_header(index.parent / shard).keys() for shard in shards}
    for name, shard in weight_map.items():
        if name not in held[shard]:
            raise CheckpointError(f"{index} says that {name} is in {shard}, but it is not")
    return tuple(index.parent / shard for shard in shards)


def read_header(file: Path) -> dict[str, Entry]:
    """Every tensor of a safetensors file by name, in order of position.

    Raises CheckpointError naming the file when it is truncated or not a safetensors file.
    """
    try:
        with file.open("rb") as stream:
            total = file.stat().st_size
            length = int.from_bytes(stream.read(8), "little")
            if total < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
                raise CheckpointError(f"{file} is not a safetensors file")
            if 8 + length > total:
                raise CheckpointError(
                    f"{file} is truncated: its header alone needs {8 + length:,} bytes, it has {total:,}"
                )
            header = json.loads(stream.read(length))
            entries = {
                name: _entry(file, fields, base=8 + length) for name, fields in header.items() if name != "__metadata__"
            }
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"the safetensors header of {file} is damaged: {error}") from error
    end = max((entry.start + entry.size for entry in entries.values()), default=8 + length)
    if end != total:
        state = "truncated" if end > total else "damaged"
        raise CheckpointError(f"{file} is {state}: it has {total:,} bytes, its header describes {end:,}")
    return dict(sorted(entries.items(), key=lambda item: (item[1].start, item[0])))


def _entry(file: Path, fields: Mapping[str, Any], *, base: int) -> Entry:
    start, end = (int(offset) for offset in fields["data_offsets"])
    if not 0 <= start <= end:
        raise ValueError(f"data_offsets {start}, {end}")
    return Entry(
        file=file,
        dtype=str(fields["dtype"]),
        shape=tuple(int(length) for length in fields["shape"]),
        start=base + start,
        size=end - start,
    )


def read_headers(folder: Path) -> dict[str, Entry]:
    """Every tensor of a component by name, from the headers of all its shards, shard after shard.

    Raises CheckpointError as `weight_files` and `read_header` do, or when two shards hold the same tensor.
    """
    found: dict[str, Entry] = {}
    for file in weight_files(folder):
        for name, entry in read_header(file).items():
            if name in found:
                raise CheckpointError(f"{name} is in {found[name].file} and again in {file.name}")
            found[name] = entry
    return found


def hash_weights(folder: Path, hasher: hashlib._Hash) -> None:
    """Feed a digest with names, shapes and dtypes of a component's tensors and a few bytes out of the middle of each.

    Headers alone cannot tell a fine-tune from its base model; the samples can, and cost one page read a tensor.
    """
    streams = {file: file.open("rb") for file in weight_files(folder)}
    try:
        for name, entry in sorted(read_headers(folder).items()):
            hasher.update(f"{name} {entry.dtype} {entry.shape}\n".encode())
            streams[entry.file].seek(entry.start + max(0, entry.size - _SAMPLE_BYTES) // 2)
            hasher.update(streams[entry.file].read(min(_SAMPLE_BYTES, entry.size)))
    finally:
        for stream in streams.values():
            stream.close()
