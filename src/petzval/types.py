"""Plain data that crosses a boundary: requests, plans, specs, results. No torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, get_args

import pydantic

Task = Literal["text-to-image", "image-to-image", "text-to-video", "image-to-video", "reference-to-video"]
TASKS: tuple[Task, ...] = get_args(Task)
Tier = Literal["exact", "high", "balanced", "draft"]
TIERS: tuple[Tier, ...] = get_args(Tier)
Prediction = Literal["velocity", "noise", "clean"]
DataT = TypeVar("DataT", bound="Data")


class Data:
    """Base of what is read back from JSON, by pydantic: strictly, and an unknown key is an error."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True, "revalidate_instances": "always"}


@dataclass(frozen=True, kw_only=True)
class InputImage(Data):
    """An encoded picture (PNG, JPEG, WebP, ...) that a request is conditioned on.

    Its digest is part of every record of the request; its bytes are not.
    """

    sha256: str
    data: bytes | None = field(default=None, repr=False, compare=False, metadata={"recorded": False})

    @classmethod
    def of(cls, data: bytes) -> InputImage:
        return cls(sha256=hashlib.sha256(data).hexdigest(), data=data)


@dataclass(frozen=True, kw_only=True)
class Request(Data):
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
class Schedule(Data):
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

    def branches(self, step: int) -> tuple[str, ...]:
        """The guidance branches that a step needs: the conditional one alone where guidance is 1."""
        return ("cond",) if self.guidance[step] == 1.0 else ("cond", "uncond")


@dataclass(frozen=True, kw_only=True)
class CheckpointId(Data):
    """Which weights: the family that runs them, the name they were asked by, and a digest of their contents' index."""

    family: str
    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class ReusePlan(Data):
    """Which steps take their predictions from earlier ones (accel.reuse). What is spent lives in the trajectory."""

    forecast: str
    """How a prediction is made of earlier ones: a row of accel.reuse.forecasts."""
    order: int = 1
    """Of the forecast: how many earlier computed predictions beyond the last it looks at."""
    signal: str | None = None
    """What the gate adds up over forecast steps: a row of accel.reuse.signals; None: `computed` alone decides."""
    budget: float = 0.0
    """The sum of signals at which a step is computed again."""
    computed: tuple[int, ...] | None = None
    """Steps that an offline search chose to compute; the gate may add to them. None: the gate alone decides."""
    first_full: int = 2
    """So many first steps are always computed, and as many after a change of expert as the forecast looks back."""
    last_full: int = 1
    max_consecutive: int = 3
    """At most so many steps in a row are forecast."""
    polynomial: tuple[float, ...] = (1.0, 0.0)
    """Of signal "modulated-input": from its change to the prediction's, highest power first."""
    weights: tuple[tuple[float, ...], ...] | None = None
    """Of fitted forecasts: a row for each step of the schedule that the plan was fitted for; empty where computed."""


@dataclass(frozen=True, kw_only=True)
class GuidancePlan(Data):
    """Which guidance branches a step computes (accel.reuse.guidance). Steps are shares of the schedule, 0 to 1."""

    interval: tuple[float, float] = (0.0, 1.0)
    """Outside, the conditional branch runs alone (Kynkaanniemi et al. 2024)."""
    forecast_from: float = 1.0
    """From here on the difference between branches is forecast but for every `forecast_every`-th step."""
    forecast_every: int = 1
    stop_at_cosine: float | None = None
    """Once the branches' predictions are this much alike, the conditional one runs alone (adaptive guidance)."""


@dataclass(frozen=True, kw_only=True)
class PrecisionRule(Data):
    """Some linears computed in another precision at some steps."""

    row: str
    """Of ops.linear: "int8-dynamic", "fp8-rowwise", ..."""
    layers: tuple[str, ...]
    """Dotted paths of linears below the DiT; `*` stands for any one part."""
    steps: tuple[float, float] = (0.0, 1.0)
    """Shares of the schedule."""


@dataclass(frozen=True, kw_only=True)
class SparsityPlan(Data):
    """Block-sparse self-attention (ops.sparse_attention)."""

    error: float
    """Largest share of a query block's attention mass that is approximated."""
    block: int = 64
    dense_first_steps: float = 0.2
    dense_layers: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class BuildPlan(Data):
    """How a checkpoint is put together: all that is decided when it is built, not per trajectory."""

    attention: str = "auto"
    compile: bool = False
    branches: Literal["auto", "joined", "apart"] = "auto"
    """Guidance branches in one batch, or one after another."""
    precision: tuple[PrecisionRule, ...] = ()
    sparsity: SparsityPlan | None = None


@dataclass(frozen=True, kw_only=True)
class StepPlan(Data):
    """What is skipped: all that is decided per trajectory."""

    reuse: ReusePlan | None = None
    guidance: GuidancePlan | None = None
    num_inference_steps: int | None = None
    """Fewer solver steps than published: the baseline that reuse must beat."""


@dataclass(frozen=True, kw_only=True)
class Evidence(Data):
    """What a recipe's tier rests on. A speed is never stored without its fidelity."""

    speedup: float
    """Seconds of tier exact over seconds of this recipe, whole pipeline, medians of alternated runs."""
    loss_median: float
    """Fidelity loss on the family's ruler (autotune.ruler)."""
    loss_worst: float
    quality: dict[str, float] = field(default_factory=dict)
    """Task quality less that of tier exact, by attribute."""
    samples: int
    date: str
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TierRun(Data):
    """The tier that was asked for, the one that runs, and on which evidence, or why they differ."""

    asked: Tier = "exact"
    ran: Tier = "exact"
    why: str | None = None
    recipe: str | None = None
    """Digest of the recipe."""
    evidence: Evidence | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe(Data):
    """For one checkpoint, kind of device and shape class: how a tier is computed, and the evidence that it holds."""

    tier: Tier
    checkpoint: CheckpointId
    device: str
    """Kind of device it was measured on: "cpu-avx2", "cuda-9.0", ..."""
    width: int
    height: int
    num_frames: int
    num_inference_steps: int
    """Of the request, and its sampler: what the evidence was measured with."""
    sampler: str
    build: BuildPlan = field(default_factory=BuildPlan)
    steps: StepPlan = field(default_factory=StepPlan)
    evidence: Evidence | None = None


@dataclass(frozen=True, kw_only=True)
class Plan(Data):
    """What will be computed and how: a request with every default filled in, and its schedule. Frozen."""

    request: Request
    checkpoint: CheckpointId
    schedule: Schedule
    steps: StepPlan = field(default_factory=StepPlan)
    """What of the schedule is skipped: of the recipe for the request's tier."""
    tier: TierRun = field(default_factory=lambda: TierRun())


@dataclass(frozen=True, kw_only=True)
class DiTSpec(Data):
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
class TaskDefaults(Data):
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
class ModelSpec(Data):
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


def from_json(kind: type[DataT], record: Any) -> DataT:
    """What `to_json` wrote. Raises ValueError, which names each key that is unknown, missing or of a wrong type."""
    try:
        made: DataT = _adapter(kind).validate_json(json.dumps(record))
    except pydantic.ValidationError as error:
        raise ValueError("; ".join(map(_told, error.errors()))) from None
    return made


def misfits(value: Data) -> list[str]:
    """Names of the fields whose values are not of their types."""
    try:
        _adapter(type(value)).validate_python(value)
    except pydantic.ValidationError as error:
        return list(dict.fromkeys(str(found["loc"][0]) for found in error.errors()))
    return []


def _told(error: Any) -> str:
    return f"{'.'.join(map(str, error['loc']))} is {error['input']!r:.80}: {error['msg']}"


_ADAPTERS: dict[Any, pydantic.TypeAdapter[Any]] = {}


def _adapter(kind: type[Data]) -> pydantic.TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = pydantic.TypeAdapter(kind)
    return _ADAPTERS[kind]


def digest(record: dict[str, Any]) -> str:
    """A short stable digest of a JSON-able record."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
