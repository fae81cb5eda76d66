"""The parts of a checkpoint that diffusers and transformers compute: text and image encoders, tokenizers, VAEs."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from petzval.errors import CheckpointError
from petzval.models import shards
from petzval.models.checkpoint import Checkpoint

# The only libraries whose classes a model_index.json may name, and for each the base that a loadable model has.
_MODEL_BASES = {"transformers": "PreTrainedModel", "diffusers": "ModelMixin"}

# What from_pretrained raises when files do not fit the class; anything else is a fault of ours and must be seen.
_LOAD_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    ImportError,
    StrictDataclassError,
)


def load_text_encoder(
    checkpoint: Checkpoint, component: str = "text_encoder", *, dtype: torch.dtype, device: torch.device | str
) -> Any:
    """A text encoder of transformers (T5, UMT5, CLIP, ...), frozen, in eval mode. Raises CheckpointError."""
    return _load_model(checkpoint, component, library="transformers", dtype=dtype, device=device)


def load_image_encoder(
    checkpoint: Checkpoint, component: str = "image_encoder", *, dtype: torch.dtype, device: torch.device | str
) -> Any:
    """An image encoder of transformers (CLIP vision), frozen, in eval mode. Raises CheckpointError."""
    return _load_model(checkpoint, component, library="transformers", dtype=dtype, device=device)


def load_vae(checkpoint: Checkpoint, component: str = "vae", *, dtype: torch.dtype, device: torch.device | str) -> Any:
    """An autoencoder of diffusers, frozen, in eval mode. Raises CheckpointError."""
    return _load_model(checkpoint, component, library="diffusers", dtype=dtype, device=device)


def load_tokenizer(checkpoint: Checkpoint, component: str = "tokenizer") -> Any:
    """A tokenizer of transformers. Raises CheckpointError naming the component when a file is missing or damaged."""
    cls = _class(checkpoint, component, library="transformers", base="PreTrainedTokenizerBase")
    folder = checkpoint.folder / component
    # Without its vocabulary the library makes a tokenizer that knows no word, and says nothing.
    slow = set(cls.vocab_files_names.values()) - {"tokenizer.json"}
    held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if "tokenizer.json" not in held and not (slow and slow <= held):
        raise CheckpointError(
            f"{component} of {checkpoint.name} has no vocabulary: {folder} holds neither tokenizer.json "
            f"nor {' and '.join(sorted(slow)) or 'another'}"
        )
    for file in sorted(folder.glob("*.json")):
        shards.read_json(file)
    with _wrapped(checkpoint, component):
        return cls.from_pretrained(str(folder), local_files_only=True)


def _load_model(
    checkpoint: Checkpoint, component: str, *, library: str, dtype: torch.dtype, device: torch.device | str
) -> nn.Module:
    cls = _class(checkpoint, component, library=library, base=_MODEL_BASES[library])
    checkpoint.config(component)
    folder = checkpoint.folder / component
    # The libraries fill what is missing with random numbers, and name no file when one is damaged: looked at first.
    entries = shards.read_headers(folder)
    if not entries:
        raise CheckpointError(f"{component} of {checkpoint.name} has no weights: {folder} holds no safetensors file")
    # Torch notes which functions a device context redirects when one is first used. transformers swaps torch.linspace
    # while it loads: were that the first use, linspace would ignore device contexts for the rest of the process.
    with torch.device("meta"):
        torch.empty(0)
    with _wrapped(checkpoint, component):
        model, report = cls.from_pretrained(
            str(folder),
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            variant=_variant(folder),
            **{"dtype" if library == "transformers" else "torch_dtype": dtype},
        )
    # The library itself knows which unexpected names are harmless, as of buffers that were once saved, and leaves them
    # out; and it turns numbers of any type into `dtype`, quantised ones too.
    floats = {name for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    problems = {
        "missing": report["missing_keys"],
        "unexpected": report["unexpected_keys"],
        "mis-shaped": report["mismatched_keys"],
        "mis-typed": [name for name, entry in entries.items() if name in floats and not entry.is_float],
    }
    if any(problems.values()):
        told = [
            f"{len(names)} {kind}: {', '.join(sorted(map(str, names))[:10])}"
            for kind, names in problems.items()
            if names
        ]
        raise CheckpointError(
            f"the weights of {component} of {checkpoint.name} do not fit {cls.__name__}: {'; '.join(told)}"
        )
    model.requires_grad_(requires_grad=False)
    _own_memory(model)
    return model.to(device).eval()


def _own_memory(model: nn.Module) -> None:
    """Copy each tensor out of the mapped file that the libraries leave it in.

    A map is aligned by chance, and with it the order in which some kernels sum; and it changes with its file.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _class(checkpoint: Checkpoint, component: str, *, library: str, base: str) -> Any:
    """The class that model_index.json names for a component, where it is one of `library` and derives from `base`."""
    checkpoint.component_folder(component)
    named_library, name = checkpoint.components()[component]
    if named_library != library:
        raise CheckpointError(
            f"{component} of {checkpoint.name} is {named_library}.{name}; only classes of {library} are loaded here"
        )
    with _silence():
        module = importlib.import_module(library)
        found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, getattr(module, base))):
        raise CheckpointError(
            f"{component} of {checkpoint.name} is {library}.{name}, which {library} {module.__version__} does not have "
            f"as a {base}"
        )
    return found


def _variant(folder: Path) -> str | None:
    """The variant of weight files that are not named plainly: "fp16" of model.fp16.safetensors."""
    name = shards.weight_files(folder)[0].name
    parts = name.split(".")
    return parts[1].split("-", 1)[0] if len(parts) == 3 else None


@contextlib.contextmanager
def _wrapped(checkpoint: Checkpoint, component: str) -> Iterator[None]:
    """Library errors as CheckpointErrors that name the component; no progress bars, no warnings."""
    try:
        with _silence():
            yield
    except _LOAD_ERRORS as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(f"cannot load {component} of {checkpoint.name}: {reason}") from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    libraries = (diffusers_logging, transformers_logging)
    before = [(library, library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    try:
        for library in libraries:
            library.set_verbosity(library.CRITICAL)
            library.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for library, verbosity, bars in before:
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()
