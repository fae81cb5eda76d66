"""What generative models and files do to pictures: the ways in which the judge's input may be wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from petzval.scenes.draw import draw
from petzval.scenes.sample import sample_scene

Picture = NDArray[np.uint8]
PATCH = 16


def jpeg(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    file = io.BytesIO()
    Image.fromarray(frame_HWC).save(file, "JPEG", quality=20)
    return np.asarray(Image.open(file))


def noise(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    return to_bytes(frame_HWC + rng.normal(0, 12, frame_HWC.shape))


def shift(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    return np.roll(frame_HWC, (4, -4), (0, 1))


def hue(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    """Hues turned by ten degrees, all a little brighter."""
    hsv_HWC = np.array(Image.fromarray(frame_HWC).convert("HSV"))
    hsv_HWC[..., 0] += 7  # of 256; wraps around
    return to_bytes(np.asarray(Image.fromarray(hsv_HWC, "HSV").convert("RGB")) * 1.04 + 4)


def blur(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    return to_bytes(gaussian_filter(frame_HWC.astype(float), (3, 3, 0)))


def pca(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    """What is left of 768 numbers a patch in 24: half of what the pocket autoencoder's linear start keeps."""
    mean_D, basis_KD = _components()
    patches_LD = _patches(frame_HWC[None])
    return to_bytes(_whole((patches_LD - mean_D) @ basis_KD.T @ basis_KD + mean_D, frame_HWC.shape[0]))


def all_of_it(frame_HWC: Picture, rng: np.random.Generator) -> Picture:
    return noise(blur(pca(frame_HWC, rng), rng), rng)


CORRUPTIONS: dict[str, Callable[[Picture, np.random.Generator], Picture]] = {
    "jpeg": jpeg,
    "noise": noise,
    "shift": shift,
    "hue": hue,
    "blur": blur,
    "pca": pca,
    "all_of_it": all_of_it,
}


def to_bytes(values: NDArray[np.floating]) -> Picture:
    return np.clip(np.round(values), 0, 255).astype(np.uint8)


@lru_cache(maxsize=1)
def _components() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    patches_LD = _patches(np.concatenate([draw(sample_scene(rng, video=False)) for _ in range(150)]))
    mean_D = patches_LD.mean(0)
    covariance_DD = np.cov(patches_LD, rowvar=False)
    return mean_D, np.linalg.eigh(covariance_DD)[1][:, -24:].T.astype(np.float32)


def _patches(frames_THWC: Picture) -> NDArray[np.float32]:
    count = frames_THWC.shape[1] // PATCH
    split = frames_THWC.reshape(-1, count, PATCH, count, PATCH, 3).astype(np.float32)
    return split.swapaxes(2, 3).reshape(-1, PATCH * PATCH * 3)


def _whole(patches_LD: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    count = side // PATCH
    return patches_LD.reshape(count, count, PATCH, PATCH, 3).swapaxes(1, 2).reshape(side, side, 3)
