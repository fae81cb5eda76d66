"""Weights between safetensors files and modules: loads straight to the wanted dtype and device, and writes back."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.metadata
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from petzval.durable import replacing, sync
from petzval.errors import CheckpointError
from petzval.models import shards
from petzval.models.checkpoint import Checkpoint

Rename = Callable[[str], str | None]
"""Name in the file -> name in the module; None leaves the tensor out on purpose."""
Progress = Callable[[int, int], None]
"""(bytes read so far, bytes in all), called after each tensor."""

_LISTED = 10


@dataclass
class _Slot:
    """One tensor of a module, and every place that holds it: more than one when it is tied."""

    tensor: Tensor
    persistent: bool
    names: list[str] = field(default_factory=list)
    places: list[tuple[nn.Module, str]] = field(default_factory=list)

    def put(self, tensor: Tensor) -> None:
        """Set the tensor in every place, as the parameter or buffer that it is."""
        is_parameter = isinstance(self.tensor, nn.Parameter)
        value = nn.Parameter(tensor, requires_grad=self.tensor.requires_grad) if is_parameter else tensor
        for owner, leaf in self.places:
            (owner._parameters if is_parameter else owner._buffers)[leaf] = value  # type: ignore[assignment]
        self.tensor = value


def load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    component: str,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    rename: Rename | None = None,
    keep_float32: Callable[[str], bool] | Sequence[str] = (),
    progress: Progress | None = None,
) -> None:
    """Fill `module`, usually built on the meta device, with the weights of a checkpoint's component.

    Floating tensors become `dtype`, or float32 where `keep_float32` holds (a test of the module's own name, or
    patterns such as "*.norm1.*"); integer tensors keep theirs. The host holds the module and one tensor of the file at
    any time. Buffers that are not saved are the module's own: make them before this call; they are moved to `device`.

    Raises CheckpointError, before any weight is read, when a tensor is missing, unexpected or of another shape (one
    error lists them all), or when a file is missing, damaged or a pickle.
    """
    folder = checkpoint.component_folder(component)
    entries = shards.read_headers(folder)
    if not entries:
        raise CheckpointError(f"{component} of {checkpoint.name} has no weights: {folder} holds no safetensors file")
    slots = _slots(module)
    targets = _match(entries, slots, rename, owner=f"{component} of {checkpoint.name}")
    keeps = keep_float32 if callable(keep_float32) else _matcher(tuple(keep_float32))
    device, done, total = torch.device(device), 0, sum(entries[name].size for name in targets)
    for name, tensor in _read(entries, targets):
        slot = targets[name]
        wanted = tensor.dtype if not tensor.is_floating_point() else dtype
        if tensor.is_floating_point() and any(map(keeps, slot.names)):
            wanted = torch.float32
        # Always into memory that torch allocates: what the file reader returns is aligned by chance, and with it the
        # order in which some kernels sum.
        slot.put(torch.empty(tensor.shape, dtype=wanted, device=device).copy_(tensor))
        del tensor  # before the next one is read
        done += entries[name].size
        if progress is not None:
            progress(done, total)
    _finish(slots, device, owner=f"{component} of {checkpoint.name}")


def _slots(module: nn.Module) -> list[_Slot]:
    """Every tensor of a module once, with all its names."""
    found: dict[int, _Slot] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        held = [(leaf, tensor, True) for leaf, tensor in owner._parameters.items()]
        held += [(leaf, t, leaf not in owner._non_persistent_buffers_set) for leaf, t in owner._buffers.items()]
        for leaf, tensor, persistent in held:
            if tensor is not None:
                slot = found.setdefault(id(tensor), _Slot(tensor=tensor, persistent=persistent))
                slot.names.append(f"{prefix}.{leaf}" if prefix else leaf)
                slot.places.append((owner, leaf))
    return list(found.values())


def _match(
    entries: Mapping[str, shards.Entry], slots: list[_Slot], rename: Rename | None, *, owner: str
) -> dict[str, _Slot]:
    """Name in the file -> where it goes. Raises CheckpointError that lists everything that does not fit."""
    by_name = {name: slot for slot in slots if slot.persistent for name in slot.names}
    targets: dict[str, _Slot] = {}
    filled: dict[str, str] = {}
    unexpected, misshaped, mistyped = [], [], []
    for name, entry in entries.items():
        target = rename(name) if rename else name
        if target is None:
            continue
        if target in filled:
            raise CheckpointError(f"{owner}: {name} and {filled[target]} are both renamed to {target}")
        filled[target] = name
        slot = by_name.get(target)
        if slot is None:
            unexpected.append(name)
        elif entry.shape != tuple(slot.tensor.shape):
            misshaped.append(f"{name} is {list(entry.shape)} instead of {list(slot.tensor.shape)}")
        elif entry.is_float != slot.tensor.is_floating_point():
            mistyped.append(f"{name} is {entry.dtype}")  # quantised: nonsense without the code that undoes it
        else:
            targets[name] = slot
    missing = [slot.names[0] for slot in slots if slot.persistent and not filled.keys() & set(slot.names)]
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:_LISTED])}{', ...' if len(names) > _LISTED else ''}"
        for kind, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("mis-shaped", misshaped),
            ("mis-typed", mistyped),
        )
        if names
    ]
    if problems:
        raise CheckpointError(f"the weights of {owner} do not fit the model: {'; '.join(problems)}")
    return targets


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _read(entries: Mapping[str, shards.Entry], names: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors one at a time, in file order. Raises CheckpointError naming the file that cannot be read."""
    for file in dict.fromkeys(entries[name].file for name in names):
        try:
            # Not memory-mapped: mapped pages count as this process's memory until the file is closed, and a file that
            # shrinks under a map ends the process instead of raising.
            with safe_open(file, framework="pt", backend="pread") as reader:
                for name in names:
                    if entries[name].file == file:
                        yield name, reader.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read the weights in {file}: {error}") from error


def _finish(slots: list[_Slot], device: torch.device, *, owner: str) -> None:
    """Move the buffers that are not saved; nothing may be left without storage."""
    hollow = [slot.names[0] for slot in slots if slot.tensor.is_meta]
    if hollow:
        raise CheckpointError(
            f"{owner}: {len(hollow)} tensors that no checkpoint saves were never made: {', '.join(hollow[:_LISTED])}"
        )
    for slot in slots:
        if not slot.persistent:
            slot.put(slot.tensor.to(device))


# -- writing -----------------------------------------------------------------------------------------------------------


def save_weights(
    weights: nn.Module | Mapping[str, Tensor],
    folder: Path | str,
    *,
    config: Mapping[str, Any],
    stem: str = shards.STEMS[0],
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write one component in the diffusers layout: config.json and safetensors, in shards with an index when larger
    than `max_shard_bytes`. `folder` is the component's own; `stem` is "model" for a component of transformers.

    A tied tensor is written once, under its first name. What was in `folder` is replaced in one move when all is
    written, so that a crash leaves the old component or the new one. Raises CheckpointError when `folder` holds files
    that are not a component's, or when nothing is to be saved.
    """
    folder = Path(folder)
    tensors = _distinct(weights.state_dict() if isinstance(weights, nn.Module) else weights)
    if not tensors:
        raise CheckpointError(f"there are no weights to save to {folder}")
    foreign = [path.name for path in folder.iterdir() if not _is_ours(path)] if folder.is_dir() else []
    if foreign:
        raise CheckpointError(f"{folder} holds {foreign[0]}, which is not part of a component: name another folder")
    with _replacing(folder) as fresh:
        _write_shards(tensors, fresh, stem=stem, max_shard_bytes=max_shard_bytes)
        _write_json(fresh / "config.json", config)


def save_model_index(
    folder: Path | str,
    *,
    class_name: str,
    components: Mapping[str, tuple[str | None, str | None]],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write model_index.json: the pipeline's class, (library, class) of each component ((None, None) for an absent
    optional one), and the pipeline's other settings. Replaced in one move."""
    record = {
        "_class_name": class_name,
        "_diffusers_version": importlib.metadata.version("diffusers"),
        **(settings or {}),
        **{name: list(entry) for name, entry in components.items()},
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model_index.json") as part:
        _write_json(part, record)


def _distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once: the format refuses two names for one piece of memory."""
    seen: set[tuple[object, ...]] = set()
    kept = {}
    for name, tensor in tensors.items():
        key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or key not in seen:
            seen.add(key)
            kept[name] = tensor.detach()
    return kept


def _is_ours(path: Path) -> bool:
    return path.is_file() and (
        path.name == "config.json" or path.suffix == ".safetensors" or ".safetensors.index." in path.name
    )


def _write_shards(tensors: Mapping[str, Tensor], folder: Path, *, stem: str, max_shard_bytes: int) -> None:
    groups = _groups(tensors, max_shard_bytes)
    names = [f"{stem}.safetensors"]
    if len(groups) > 1:
        names = [f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    for name, group in zip(names, groups, strict=True):
        # A copy of one shard at most: views of larger tensors and accelerator tensors are made plain here.
        plain = {key: tensors[key].to("cpu").contiguous().clone() for key in group}
        save_file(plain, folder / name, metadata={"format": "pt"})
        sync(folder / name)
    if len(groups) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        weight_map = {key: name for name, group in zip(names, groups, strict=True) for key in group}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / f"{stem}.safetensors.index.json", index)


def _groups(tensors: Mapping[str, Tensor], max_bytes: int) -> list[list[str]]:
    """Names in order, cut so that each group has at most `max_bytes`, or one tensor that is larger."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.nbytes
    return groups


@contextlib.contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A fresh folder beside `folder` that takes its place when the block ends well, and is deleted when it does not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    tag = uuid.uuid4().hex[:8]
    fresh, old = folder.parent / f".{folder.name}.{tag}.new", folder.parent / f".{folder.name}.{tag}.old"
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _write_json(file: Path, record: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(record), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    sync(file)
