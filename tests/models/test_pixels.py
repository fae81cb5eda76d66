"""Pictures to tensors and back, against diffusers' image processor."""

import math

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from petzval.errors import NotFiniteError
from petzval.models.pixels import LatentScale, from_pixels, posterior, to_pixels

SIDES = st.integers(1, 40)


@given(height=SIDES, width=SIDES, new_height=SIDES, new_width=SIDES)
def test_pixels_are_those_of_diffusers(height, width, new_height, new_width):
    image = np.random.default_rng(height * 41 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    processor = VaeImageProcessor(vae_scale_factor=1)
    expected = processor.preprocess(Image.fromarray(image), height=new_height, width=new_width)[0]
    assert torch.equal(to_pixels(image, width=new_width, height=new_height), expected)


def test_a_picture_comes_back():
    image = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    back = from_pixels(to_pixels(image, width=8, height=6))
    assert back.shape == (1, 6, 8, 3)
    assert np.array_equal((back[0] * 255).round().numpy().astype(np.uint8), image)


def test_a_clip_has_its_frames_first_and_is_clamped():
    clip_CTHW = torch.linspace(-2, 2, 3 * 2 * 4 * 5).view(3, 2, 4, 5)
    pixels = from_pixels(clip_CTHW)
    assert pixels.shape == (2, 4, 5, 3)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert pixels[1, 2, 3, 1] == clip_CTHW[1, 1, 2, 3] * 0.5 + 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_is_no_picture(bad, dtype):
    pixels = torch.zeros(3, 4, 5, dtype=dtype)
    pixels[1, 2, 3] = bad
    with pytest.raises(NotFiniteError, match=r"1 of 60 values of the decoded pixels are not finite"):
        from_pixels(pixels)


def test_latent_scale_undoes_itself():
    latents = torch.randn(2, 3, 4, 4)
    for scale in (
        LatentScale(mean=0.1159, scale=0.3611),
        LatentScale(mean=torch.randn(3, 1, 1), scale=1 / torch.rand(3, 1, 1).add(0.1)),
    ):
        assert torch.allclose(scale.denormalise(scale.normalise(latents)), latents, atol=1e-6)
    assert LatentScale(mean=1.0, scale=2.0).normalise(torch.tensor(4.0)) == 6.0


class _Vae:
    def encode(self, pixels, *, return_dict):
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

        return (DiagonalGaussianDistribution(torch.cat([pixels, torch.zeros_like(pixels)], dim=1)),)


def test_posterior_is_its_mode_without_a_generator_and_a_draw_with_one():
    pixels = torch.zeros(1, 2, 3, 3)
    assert torch.equal(posterior(_Vae(), pixels, None), pixels)
    expected = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(4))
    assert torch.equal(posterior(_Vae(), pixels, torch.Generator().manual_seed(4)), expected)
