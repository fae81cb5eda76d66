"""Scenes as latents on disk: drawn and encoded once, read by every later run of the same config.

Shapes: T frames, H height, W width, C channels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from petzval.errors import BadRequestError, UnavailableError
from petzval.media.files import atomic_write
from petzval.models.wan.vae import encode_frame, latent_scale
from petzval.scenes.draw import Scene, draw, subject_mask
from petzval.scenes.sample import sample_scene
from petzval.train.autoencoder import to_model

CHUNK = 64


@dataclass(frozen=True)
class LatentSet:
    """Scaled latents (float16, N T C H W), the scene each shows, and how much of each 2x2 patch its subject covers."""

    scenes: list[Scene]
    latents: np.ndarray
    coverage: np.ndarray
    """float16, N T H/2 W/2"""

    def __len__(self) -> int:
        return len(self.scenes)


@dataclass(frozen=True)
class LatentSets:
    """All that a run learns from."""

    pictures: LatentSet | None
    clips: LatentSet | None
    centred_pictures: LatentSet | None
    centred_clips: LatentSet | None

    def choose(self, *, clip: bool, centred: bool) -> LatentSet:
        """Pictures or clips; the centred ones when they are wanted, or the others, if there are any."""
        jittered, exact = (self.clips, self.centred_clips) if clip else (self.pictures, self.centred_pictures)
        chosen = (exact or jittered) if centred else (jittered or exact)
        if chosen is None:
            raise BadRequestError(
                f"data has no {'clips' if clip else 'pictures'}, centred or not: at least 1 is needed"
            )
        return chosen


def draw_set(
    count: int, *, num_frames: int, canvas: int, seed: int, jitter: bool = True
) -> Iterator[tuple[Scene, np.ndarray, np.ndarray]]:
    """`count` random training scenes with their frames and masks; single frames are pictures, more are clips."""
    rng = np.random.default_rng((seed, num_frames))
    for _ in range(count):
        scene = sample_scene(rng, video=num_frames > 1, jitter=jitter)
        mask_THW = subject_mask(scene, num_frames=num_frames, canvas=canvas)
        yield scene, draw(scene, num_frames=num_frames, canvas=canvas), mask_THW


def cached_set(
    folder: Path,
    vae: Any,
    drawn: Iterable[tuple[Scene, np.ndarray, np.ndarray]],
    *,
    stem: str,
    shape: tuple[int, int, int],
    on_scene: Callable[[int], None],
) -> LatentSet:
    """What `drawn` gives, from `folder` if it was finished there under the name `stem`, else encoded and stored.

    `shape` is (scenes, frames of each, pixels of a side).
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ("latents.npy", "coverage.npy", "scenes.json")
    latents_path, coverage_path, scenes_path = (folder / f"{stem}-{name}" for name in names)
    if not scenes_path.exists():  # written last, so it says that the other two are whole
        scenes = _encode_all(
            latents_path,
            coverage_path,
            vae,
            drawn,
            shape=shape,
            on_scene=on_scene,
        )
        atomic_write(scenes_path, json.dumps([asdict(scene) for scene in scenes]).encode())
    scenes = [Scene(**record) for record in json.loads(scenes_path.read_text())]
    return LatentSet(scenes, np.load(latents_path, mmap_mode="r"), np.load(coverage_path, mmap_mode="r"))


@torch.inference_mode()
def _encode_all(
    latents_path: Path,
    coverage_path: Path,
    vae: Any,
    drawn: Iterable[tuple[Scene, np.ndarray, np.ndarray]],
    *,
    shape: tuple[int, int, int],
    on_scene: Callable[[int], None],
) -> list[Scene]:
    """Fill both files from `drawn`; `shape` is (scenes, frames of each, pixels of a side)."""
    (count, num_frames, canvas), scale = shape, latent_scale(vae.config)
    side = canvas // vae.config.scale_factor_spatial
    latents = _array_on_disk(latents_path, (count, num_frames, vae.config.z_dim, side, side))
    coverage = _array_on_disk(coverage_path, (count, num_frames, side // 2, side // 2))
    patch, scenes = canvas * 2 // side, []
    for index, (scene, frames, mask_THW) in enumerate(drawn):
        code = encode_frame(vae, to_model(frames))
        latents[index] = scale.normalise(code.transpose(0, 1)).transpose(0, 1).numpy()
        blocks = mask_THW.reshape(num_frames, side // 2, patch, side // 2, patch)
        coverage[index] = blocks.mean(axis=(2, 4))
        scenes.append(scene)
        on_scene(index + 1)
    latents.flush()
    coverage.flush()
    return scenes


def _array_on_disk(path: Path, shape: tuple[int, ...]) -> np.memmap:
    """A float16 array to be filled in `path`. Raises UnavailableError when the disk has no room for it."""
    try:
        array = np.lib.format.open_memmap(path, "w+", np.float16, shape)
        with path.open("r+b") as file:  # a write to a page that finds no room later would kill the process
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error
    return array
