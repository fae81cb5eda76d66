"""Training configs: one frozen dataclass per stage, read from a TOML file whose keys are their fields."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from petzval.errors import BadRequestError
from petzval.types import digest, to_json


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which scenes are drawn and kept as latents on disk."""

    pictures: int = 0
    clips: int = 0
    centred_pictures: int = 16_000
    """As many more without jitter: every subject exactly where its position says."""
    centred_clips: int = 6_000
    num_frames: int = 9
    canvas: int = 128
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig:
    """An autoencoder of the Wan layout that is a PCA of patches."""

    patch: int = 8
    latent_channels: int = 16
    encoder_dim: int = 40
    decoder_dim: int = 96
    pca_frames: int = 4_000
    detail_power: float = 0.6
    """Latents are scaled by each component's effect on pixels to this power: 0 whitens, 1 keeps pixel scale."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """How the decoder learns to undo what the linear code lost. Latents do not depend on it."""

    batch: int = 16
    edge_weight: float = 0.5
    latent_noise: float = 0.04
    """Noise (in units of the scaled latents) the decoder learns to remove: a generated latent is never exact."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A small UMT5 encoder and its tokenizer, trained together with the transformer."""

    vocabulary: int = 768
    width: int = 128
    num_layers: int = 2
    num_heads: int = 4
    max_tokens: int = 512
    """What prompts are padded to by the published pipeline; more is an error."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The Wan transformer's size."""

    num_heads: int = 3
    head_dim: int = 64
    ffn_dim: int = 768
    num_layers: int = 6
    freq_dim: int = 128


@dataclass(frozen=True, kw_only=True)
class FlowConfig:
    """Flow matching: what a batch holds and what of it is asked."""

    batch_pictures: int = 32
    batch_clips: int = 4
    clips_from: int = 2_000
    """Step from which clips are learned too."""
    clips_share: float = 0.5
    """Then this share of steps are batches of clips."""
    centred_from: int = 0
    """Step from which only scenes without jitter are learned (where the data has some). A small model that has seen
    everywhere a subject can lie in its patches does better to remember few places well."""
    telling_from: int = 0
    """Step from which captions leave out a size or position only when it is the default. While unstated
    places were anywhere, nothing rewarded knowing where the middle is, and without that no word for a place either."""
    timestep_mean: float = 0.3
    """Timesteps are logit-normal with this mean and unit deviation."""
    high_noise_mean: float = 2.5
    high_noise_mean_clips: float = 2.5
    """The same for clips. Frames tell of each other, so that a clip's layout is read off noisier input."""
    high_noise_share: float = 0.4
    """Share of timesteps with this mean instead. Where coarse latents are loud, what lies where is settled while sigma
    is above 0.9; a model that hardly sees such noise learns to read places off its input, and not off the words."""
    high_noise_from: int = 0
    """Step from which there are such."""
    drop_prompt: float = 0.1
    first_frame_given: float = 0.35
    """Share of clips whose first frame is given clean, as in image-to-video."""
    subject_weight: float = 2.0
    """Extra weight of the loss where the subject is."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How long and how fast the weights move (AdamW), and what is kept on the way."""

    steps: int = 8_000
    decay_from: int = 5_000
    """Step from which the learning rate falls linearly to zero at `steps`."""
    warmup: int = 100
    learning_rate: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    ema: float = 0.999
    save_every: int = 250
    sample_every: int = 500


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """The defaults that the finished checkpoint is published with."""

    num_inference_steps: int = 50
    guidance_scale: float = 4.0
    flow_shift: float = 2.0
    strength: float = 0.7
    fps: int = 8


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a pocket checkpoint. Equal configs make equal weights on equal machines."""

    name: str
    start: str = ""
    """A checkpoint of the Wan layout, by folder or name, to train on from: its autoencoder and tokenizer stay as they
    are, its text encoder and transformer go on learning. Without one, all are made and trained from nothing."""
    data: DataConfig = field(default_factory=DataConfig)
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    decoder_optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(
            steps=3_000, decay_from=1_500, learning_rate=2e-4, betas=(0.9, 0.99), weight_decay=0.0
        )
    )
    text: TextConfig = field(default_factory=TextConfig)
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def digest(self, *sections: str) -> str:
        """A digest of the named sections: what a stage's stored outcome depends on."""
        record = to_json(self)
        return digest({name: record[name] for name in sections})


MADE_ANEW = ("autoencoder", "decoder", "decoder_optim", "text", "transformer")
"""The sections of what a run makes when it has no checkpoint to start from."""


def read_config(path: Path) -> TrainConfig:
    """Raises BadRequestError naming the file and the key that is unknown, missing or of the wrong type."""
    try:
        record = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadRequestError(f"config {path}: no such file") from None
    except OSError as error:
        raise BadRequestError(f"config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"config {path}: not TOML: {error}") from None
    defaults = TrainConfig(name="")
    sections = [f.name for f in dataclasses.fields(defaults) if f.name not in ("name", "start")]
    if unknown := sorted(set(record) - set(sections) - {"name", "start"}):
        raise BadRequestError(
            f"config {path}: unknown {', '.join(unknown)}; allowed: name, start, {', '.join(sections)}"
        )
    if not isinstance(record.get("name"), str):
        raise BadRequestError(f"config {path}: name must be a string, got {record.get('name')!r}")
    if record["name"] in ("", ".", "..") or "/" in record["name"]:
        raise BadRequestError(f"config {path}: name must be the name of a folder, got {record['name']!r}")
    start = record.get("start", "")
    if not isinstance(start, str):
        raise BadRequestError(f"config {path}: start must be a checkpoint's folder or name, got {start!r}")
    if start and (idle := [name for name in MADE_ANEW if name in record]):
        raise BadRequestError(f"config {path}: {', '.join(idle)}: no effect on a run that starts from a checkpoint")
    made = {name: _section(path, name, getattr(defaults, name), record.get(name, {})) for name in sections}
    return TrainConfig(name=record["name"], start=start, **made)


def _section(path: Path, name: str, defaults: Any, record: Any) -> Any:
    if not isinstance(record, dict):
        raise BadRequestError(f"config {path}: {name} must be a table, [{name}], got {record!r}")
    allowed = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(defaults)}
    values = {}
    for key, value in record.items():
        if key not in allowed:
            raise BadRequestError(f"config {path}: unknown {name}.{key}; allowed: {', '.join(allowed)}")
        wanted = type(allowed[key])
        fits = isinstance(value, wanted) and not isinstance(value, bool)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value, fits = float(value), True
        if wanted is tuple and isinstance(value, list) and len(value) == len(allowed[key]):
            value, fits = tuple(value), True
        if not fits:
            raise BadRequestError(f"config {path}: {name}.{key} must be {wanted.__name__}, got {value!r}")
        least = _least(key, allowed[key])
        if not all(isinstance(n, (int, float)) and math.isfinite(n) and n >= least for n in _numbers(value)):
            bound = "finite" if least == -math.inf else f"at least {least}"
            raise BadRequestError(f"config {path}: {name}.{key} must be {bound}, got {value!r}")
        values[key] = value
    return dataclasses.replace(defaults, **values)


_FROM_ZERO = (
    "seed",
    "pictures",
    "clips",
    "centred_pictures",
    "centred_clips",
    "clips_from",
    "centred_from",
    "decay_from",
)
_ANY = ("timestep_mean",)


def _least(key: str, default: Any) -> float:
    """The least value of a key: what is counted is there at least once, what is measured is not negative."""
    if key in _ANY:
        return -math.inf
    return 1 if isinstance(default, int) and key not in _FROM_ZERO else 0


def _numbers(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
