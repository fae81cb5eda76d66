"""Plain data that crosses a boundary: requests, plans, specs, results. No torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Task = Literal["text-to-image", "image-to-image", "text-to-video", "image-to-video", "reference-to-video"]
TASKS: tuple[Task, ...] = get_args(Task)
Tier = Literal["exact", "high", "balanced", "draft"]
TIERS: tuple[Tier, ...] = get_args(Tier)
Prediction = Literal["velocity", "noise", "clean"]


@dataclass(frozen=True, kw_only=True)
class InputImage:
    """An encoded picture (PNG, JPEG, WebP, ...) that a request is conditioned on.

    Its digest is part of every record of the request; its bytes are not.
    """

    sha256: str
    data: bytes | None = field(default=None, repr=False, compare=False, metadata={"recorded": False})

    @classmethod
    def of(cls, data: bytes) -> InputImage:
        return cls(sha256=hashlib.sha256(data).hexdigest(), data=data)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked; never changes. None means: as the checkpoint's published default."""

    task: Task
    prompt: str
    negative_prompt: str | None = None
    seed: int = 0
    width: int | None = None
    height: int | None = None
    num_frames: int | None = None
    fps: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    """Classifier-free guidance; 1 runs the conditional branch alone. Of the high-noise expert where there are two."""
    guidance_scale_2: float | None = None
    """Guidance of the low-noise expert, for checkpoints that have two."""
    embedded_guidance: float | None = None
    """The number fed into a guidance-distilled model (FLUX.1-dev)."""
    strength: float | None = None
    """How much of the input image is re-noised, 0 < strength <= 1 (image-to-image by re-noising only)."""
    images: tuple[InputImage, ...] = ()
    sampler: str | None = None
    tier: Tier = "exact"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Every number of the denoising loop, decided before it starts. Tuples are per step where not said otherwise."""

    sampler: str
    sigmas: tuple[float, ...]
    """num_inference_steps + 1 noise levels, falling; the last is 0 (but for UniPC that ends at a sigma_min)."""
    timesteps: tuple[float, ...]
    """What the model embeds at each step."""
    guidance: tuple[float, ...]
    """Classifier-free guidance scale of each step; 1.0 means that only the conditional branch runs."""
    experts: tuple[str, ...]
    """Which component (`transformer`, `transformer_2`) computes each step."""
    first_step: int = 0
    """Where the trajectory starts: above 0 when an input image is re-noised part of the way."""

    @property
    def num_steps(self) -> int:
        return len(self.timesteps)


@dataclass(frozen=True, kw_only=True)
class CheckpointId:
    """Which weights: the family that runs them, the name they were asked by, and a digest of their contents' index."""

    family: str
    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be computed and how: a request with every default filled in, and its schedule. Frozen."""

    request: Request
    checkpoint: CheckpointId
    schedule: Schedule


@dataclass(frozen=True, kw_only=True)
class DiTSpec:
    """Facts that a diffusion transformer states about itself; accelerators read these and nothing else.

    Names are dotted module paths below the DiT; `*` stands for any one part.
    """

    blocks: tuple[str, ...]
    """Repeated stacks: units of compilation, reuse and offload."""
    column_split: tuple[str, ...]
    """Linears that may be split on output features."""
    row_split: tuple[str, ...]
    """Linears that may be split on input features."""
    keep_full_precision: tuple[str, ...]
    """Modules that stay in the load precision when others are quantised."""
    sequence_inputs: tuple[str, ...]
    """Forward arguments cut along L by sequence parallelism."""


@dataclass(frozen=True, kw_only=True)
class TaskDefaults:
    """Published defaults of one task of one checkpoint."""

    width: int
    height: int
    num_inference_steps: int
    guidance_scale: float
    num_frames: int = 1
    fps: int | None = None
    guidance_scale_2: float | None = None
    embedded_guidance: float | None = None
    strength: float | None = None
    negative_prompt: str = ""
    max_images: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Facts of one checkpoint: what it can do, in which sizes, with which defaults, under which licence."""

    family: str
    variant: str
    licence: str
    tasks: dict[Task, TaskDefaults]
    dit: DiTSpec
    prediction: Prediction
    samplers: tuple[str, ...]
    """Samplers that may be asked for; the first is the published one."""
    size_multiple: int
    """Width and height are multiples of this many pixels."""
    frame_stride: int
    """Video lengths are 1 + k * frame_stride frames."""
    max_prompt_tokens: int
    parameters: dict[str, int] = field(default_factory=dict)
    """Numbers of parameters by component."""


# -- records: the JSON form of the data above -------------------------------------------------------------------------


def to_json(value: Any) -> dict[str, Any]:
    """The JSON-able form of a dataclass of this module. Bytes of input images are left out, their digests stay."""

    def plain(item: Any) -> Any:
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            kept = [f.name for f in dataclasses.fields(item) if f.metadata.get("recorded", True)]
            return {name: plain(getattr(item, name)) for name in kept}
        if isinstance(item, dict):
            return {key: plain(entry) for key, entry in item.items()}
        if isinstance(item, (tuple, list)):
            return [plain(entry) for entry in item]
        return item

    record = plain(value)
    assert isinstance(record, dict)
    return record


def request_from_json(record: dict[str, Any]) -> Request:
    """The request that `to_json` wrote. Raises KeyError or TypeError when the record is not one."""
    images = tuple(InputImage(sha256=str(image["sha256"])) for image in record.get("images", ()))
    return Request(**{**record, "images": images})


def plan_from_json(record: dict[str, Any]) -> Plan:
    """The plan that `to_json` wrote. Raises KeyError or TypeError when the record is not one."""
    schedule: dict[str, Any] = {
        key: tuple(item) if isinstance(item, list) else item for key, item in record["schedule"].items()
    }
    return Plan(
        request=request_from_json(record["request"]),
        checkpoint=CheckpointId(**record["checkpoint"]),
        schedule=Schedule(**schedule),
    )


def digest(record: dict[str, Any]) -> str:
    """A short stable digest of a JSON-able record."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
