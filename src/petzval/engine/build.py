"""What runs, and in which order it is put together: a checkpoint's family on a device, with rows of ops chosen."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from petzval.engine.model import Model
from petzval.engine.recipes import shelf
from petzval.errors import UnavailableError
from petzval.models import registry
from petzval.models.checkpoint import Checkpoint, resolve
from petzval.models.validate import complete
from petzval.ops.attention import build_attention
from petzval.ops.table import Verdicts
from petzval.sampling.schedules import make_schedule
from petzval.tasks.result import Runs
from petzval.types import BuildPlan, CheckpointId, Request

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

VERDICTS = Verdicts()
"""What the first uses of op rows showed in this process: facts of this machine, asked once."""


def load(
    name: str = "pocket",
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
) -> Model:
    """A checkpoint, ready to run: a bundled name, a folder in the diffusers layout, or a hub id.

    `device`: "auto" is cuda, else mps, else cpu. `dtype`: "auto" is bfloat16 on cuda, else float32. `attention`: a row
    of ops.attention, "auto" the first that is exact here. Raises CheckpointError for a checkpoint that is not there or
    not whole, UnavailableError for a device, dtype or row that cannot be used here, BadRequestError for an unknown row.
    """
    place = pick_device(device)
    number = pick_dtype(dtype, place)
    checkpoint = resolve(name, revision=revision)
    chosen = build_attention(attention, device=place, dtype=number, head_dim=head_dim(checkpoint), verdicts=VERDICTS)
    family = registry.load(checkpoint, device=place, dtype=number, attention=chosen, make_schedule=make_schedule)
    runs = Runs(
        device=str(place),
        dtype=str(number).removeprefix("torch."),
        attention=chosen.plain.name,
        torch=torch.__version__,
    )
    build = BuildPlan(attention=attention)
    return Model(family=family, runs=runs, build=build, kind=device_kind(place), shelf=shelf())


def identify(name: str, *, revision: str | None = None) -> CheckpointId:
    """Which weights `load` would load. Raises as `load`."""
    checkpoint = resolve(name, revision=revision)
    return checkpoint.id(registry.spec(checkpoint).family)


def check(requests: Sequence[Request], *, name: str, revision: str | None = None) -> list[Request]:
    """Refuse what the checkpoint cannot do before any weights are loaded. Returns the requests with its defaults.

    Raises as `load` and as `Family.plan`, which checks the rest.
    """
    spec = registry.spec(resolve(name, revision=revision))
    return [complete(request, spec) for request in requests]


def head_dim(checkpoint: Checkpoint) -> int:
    """Width of an attention head: diffusers' transformers state it, or have its default."""
    return int(checkpoint.config("transformer").get("attention_head_dim", 128))


def available_devices() -> tuple[str, ...]:
    """Names of the devices that are here, best first."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return (*cuda, *mps, "cpu")


def pick_device(name: str) -> torch.device:
    """The device of this name; "auto" is the best one here. Raises UnavailableError naming those that are here."""
    here = available_devices()
    if name == "auto":
        return torch.device(here[0])
    if (f"{name}:0" if name == "cuda" else name) not in here:
        built = "" if not name.startswith("cuda") or torch.version.cuda else "; this torch was built without CUDA"
        raise UnavailableError(f"device {name!r} is not here; have auto, {', '.join(here)}{built}")
    return torch.device("cuda:0" if name == "cuda" else name)


def device_kind(device: torch.device) -> str:
    """The kind of device that a recipe's evidence is for: "cpu-avx2", "cuda-9.0", "mps"."""
    if device.type == "cuda":
        return "cuda-{}.{}".format(*torch.cuda.get_device_capability(device))
    if device.type == "cpu":
        return f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    return device.type


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations. On CPUs without bfloat16 units it is several times slower than float32.

    Raises UnavailableError naming the allowed ones.
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise UnavailableError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def use_threads(count: int) -> None:
    """Let torch compute on so many CPU threads. Raises UnavailableError below 1."""
    if count < 1:
        raise UnavailableError(f"threads must be at least 1, got {count}")
    torch.set_num_threads(count)
