"""Distances against answers known beforehand, and every way in which a careless one lies."""

from __future__ import annotations

import numpy as np
import pytest

from petzval.autotune.distances import DISTANCES, distance, flicker, ms_ssim
from petzval.errors import BadRequestError, PetzvalError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, np.float32)


def scene(frames: int = 1, side: int = 64) -> np.ndarray:
    """A smooth picture; in clips it slides."""
    x = np.linspace(0, 6, side, dtype=np.float32)
    rows = [np.sin(x + 0.3 * t)[None, :, None] * np.cos(x)[:, None, None] for t in range(frames)]
    return (np.stack(rows) * 0.4 + 0.5).repeat(3, -1).astype(np.float32)


@pytest.mark.parametrize("name", ["ms-ssim", "flip"])
@pytest.mark.parametrize("frames", [1, 3])
def test_equal_results_are_at_zero_and_worse_ones_farther(name: str, frames: int) -> None:
    a = scene(frames)
    assert distance(a, a.copy(), name) == pytest.approx(0, abs=1e-6)
    steps = [distance(a, np.clip(a + s * (noise(*a.shape) - 0.5), 0, 1), name) for s in (0.02, 0.1, 0.4)]
    assert 0 < steps[0] < steps[1] < steps[2]


def test_of_flat_pictures_ms_ssim_is_its_luminance_term() -> None:
    a, b = np.full((1, 128, 128, 3), 0.5, np.float32), np.full((1, 128, 128, 3), 0.6, np.float32)
    # Contrast terms are 1 at every scale; luminance counts at the coarsest, with its share of the weight of four.
    luminance = (2 * 0.5 * 0.6 + 0.01**2) / (0.5**2 + 0.6**2 + 0.01**2)
    share = 0.2363 / (0.0448 + 0.2856 + 0.3001 + 0.2363)
    assert ms_ssim(a, b) == pytest.approx(1 - luminance**share, abs=1e-6)


@pytest.mark.parametrize("side", [11, 12, 21, 22, 43, 44, 87, 88, 98, 99, 128, 175, 176, 200])
def test_every_size_from_the_window_up_is_compared(side: int) -> None:
    assert ms_ssim(noise(1, side, side, 3), noise(1, side, side, 3, seed=1)) > 0.3


def test_uint8_is_refused_since_its_differences_wrap_around() -> None:
    dark, light = np.full((1, 64, 64, 3), 10, np.uint8), np.full((1, 64, 64, 3), 12, np.uint8)
    assert int((dark - light).max()) == 254, "what a careless harness computes"
    with pytest.raises(BadRequestError, match="uint8 wraps around"):
        distance(dark, light)
    a = np.full((1, 64, 64, 3), 10 / 255, np.float32)
    assert distance(a, a + np.float32(2 / 255)) < 0.05
    assert distance(a, a + np.float32(1e-4)) < distance(a, a + np.float32(2 / 255)), "less than a level is seen"


def test_flicker_counts_though_every_frame_is_close() -> None:
    a = scene(8)
    sign = np.array([1, -1] * 4, np.float32)[:, None, None, None]
    steady, flickering = a + np.float32(0.02), a + 0.02 * sign
    assert distance(a, steady) < distance(a, flickering) / 2
    assert flicker(a, steady) == pytest.approx(0, abs=1e-5)


def test_flicker_of_a_clip_against_its_still_is_known() -> None:
    moving = scene(4)
    still = moving[:1].repeat(4, axis=0)
    moved = np.abs(np.diff(moving.astype(np.float64), axis=0)).mean()
    assert flicker(moving, still) == pytest.approx(moved / (moved + 1 / 255))
    assert flicker(still, still) == 0


@pytest.mark.parametrize(
    ("a", "b", "name", "said"),
    [
        (noise(1, 64, 64, 3), noise(1, 64, 32, 3), "ms-ssim", "one shape"),
        (noise(64, 64, 3), noise(64, 64, 3), "ms-ssim", "T H W C"),
        (noise(1, 10, 64, 3), noise(1, 10, 64, 3), "ms-ssim", "at least 11 pixels"),
        (noise(1, 64, 64, 3), noise(1, 64, 64, 3), "psnr", "must be one of ms-ssim, flip, lpips"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: np.ndarray, b: np.ndarray, name: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        distance(a, b, name)


def test_a_distance_that_is_not_usable_here_says_why() -> None:
    a = noise(1, 64, 64, 3)
    for name in DISTANCES:
        try:
            distance(a, a, name)
        except PetzvalError as error:
            assert name in str(error)
