"""Which family runs a checkpoint: diffusers' pipeline class names -> family modules, imported when first needed."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, cast

from petzval.errors import BadRequestError, CheckpointError, UnavailableError
from petzval.models.checkpoint import Checkpoint
from petzval.types import ModelSpec

if TYPE_CHECKING:
    import torch

    from petzval.models.family import Attention, Family, MakeSchedule

GROUP = "petzval.families"
"""Entry-point group by which an installed package adds families: `FooPipeline = "foo_package.family"`."""


class FamilyModule(Protocol):
    """What a family's module offers."""

    def spec(self, checkpoint: Checkpoint) -> ModelSpec:
        """Facts of a checkpoint, from its configuration alone: no weights are read."""
        ...

    def load(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        attention: Attention,
        make_schedule: MakeSchedule,
    ) -> Family:
        """The checkpoint, loaded."""
        ...


_FAMILIES: dict[str, str] = {
    "FluxPipeline": "petzval.models.flux",
    "FluxKontextPipeline": "petzval.models.flux",
    "FluxImg2ImgPipeline": "petzval.models.flux",
    "HiDreamImagePipeline": "petzval.models.hidream",
    "WanPipeline": "petzval.models.wan",
    "WanImageToVideoPipeline": "petzval.models.wan",
}


def register(class_name: str, module_path: str) -> None:
    """Let `module_path` (a FamilyModule, imported when first needed) run checkpoints of `class_name` in this process.

    Raises BadRequestError when another module runs them already.
    """
    known = supported().get(class_name, module_path)
    if known != module_path:
        raise BadRequestError(f"{class_name} is run by {known} already; it cannot be registered for {module_path}")
    _FAMILIES[class_name] = module_path


def supported() -> dict[str, str]:
    """Pipeline class name -> module path of its family, including those of installed packages.

    Raises UnavailableError when two packages claim one class.
    """
    table = dict(_FAMILIES)
    for point in importlib.metadata.entry_points(group=GROUP):
        known = table.setdefault(point.name, point.value)
        if known != point.value:
            raise UnavailableError(f"{point.name} is claimed by {known} and by {point.value}: uninstall one of them")
    return table


def family_module(checkpoint: Checkpoint) -> FamilyModule:
    """The module that runs a checkpoint.

    Raises CheckpointError for a pipeline class that no family runs, UnavailableError when the module cannot be
    imported.
    """
    table = supported()
    class_name = checkpoint.class_name
    if class_name not in table:
        raise CheckpointError(
            f"{checkpoint.name} is a {class_name}, which no family runs; supported: {', '.join(sorted(table))}"
        )
    try:
        return cast("FamilyModule", importlib.import_module(table[class_name]))
    except ImportError as error:
        raise UnavailableError(
            f"the family of {class_name}, {table[class_name]}, cannot be imported: {error}"
        ) from error


def spec(checkpoint: Checkpoint) -> ModelSpec:
    """Facts of a checkpoint, without reading weights. Raises as `family_module`, or CheckpointError."""
    module = family_module(checkpoint)
    with _understood(checkpoint):
        return module.spec(checkpoint)


def load(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: Attention,
    make_schedule: MakeSchedule,
) -> Family:
    """The checkpoint, loaded by its family. Raises as `family_module`, or CheckpointError."""
    module = family_module(checkpoint)
    with _understood(checkpoint):
        return module.load(checkpoint, device=device, dtype=dtype, attention=attention, make_schedule=make_schedule)


@contextmanager
def _understood(checkpoint: Checkpoint) -> Iterator[None]:
    """What a family trips over in configuration files that say anything at all, as an error of the checkpoint."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the configuration of {checkpoint.name} makes no sense to its family: {type(error).__name__}: {error}"
        ) from error
