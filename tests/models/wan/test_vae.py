"""Single frames, clips and the latents' scale, against AutoencoderKLWan in all three layouts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from petzval.models.wan.vae import WanVae, decode_frame, encode_frame, latent_scale
from tests.models.wan import tiny

# Of each: layout, what is changed in it, and the latents' height and width.
CASES = {
    "Wan 2.1": ("2.1", {}, (3, 4)),
    "Wan 2.1, two blocks a level": ("2.1", {"num_res_blocks": 2}, (2, 3)),
    "Wan 2.1, wider decoder": ("2.1", {"decoder_base_dim": 6}, (1, 1)),
    "Wan 2.2": ("2.2", {}, (2, 3)),
    "Wan 2.2, one level": ("2.2", {"dim_mult": [1], "temperal_downsample": []}, (5, 3)),
    "Wan 2.2, all levels halve time": ("2.2", {"temperal_downsample": [True, True, True]}, (1, 3)),
    "pocket": ("pocket", {}, (5, 7)),
}


def stride(vae) -> int:
    """Of the layers themselves: a case may have fewer levels than its layout says."""
    return (vae.config.patch_size or 1) * 2 ** (len(vae.config.dim_mult) - 1)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape
    return ((got - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_single_frame_parity(name, parity_row):
    layout, changes, (height, width) = CASES[name]
    vae = tiny.vae(layout, **changes)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(2, 3, height * stride(vae), width * stride(vae), generator=generator) * 2 - 1
    latents = torch.randn(2, vae.config.z_dim, height, width, generator=generator)
    expected_latents = vae.encode(pixels.unsqueeze(2)).latent_dist.mode().squeeze(2)
    expected_pixels = vae.decode(latents.unsqueeze(2)).sample.squeeze(2)
    assert expected_pixels.abs().max() < 1, "clamping would hide differences"
    assert expected_latents.shape == latents.shape
    encoded = relative_error(encode_frame(vae, pixels), expected_latents)
    decoded = relative_error(decode_frame(vae, latents), expected_pixels)
    parity_row("wan", name, "frame encoded, max relative error", f"{encoded:.1e}")
    parity_row("wan", name, "frame decoded, max relative error", f"{decoded:.1e}")
    assert encoded <= 1e-5
    assert decoded <= 1e-5


@torch.no_grad()
def test_attention_between_blocks():
    """A setting no published checkpoint has. diffusers cannot run it frame after frame, but with all frames at once."""
    vae = tiny.vae("2.1", attn_scales=[0.5, 0.25])
    pixels = torch.rand(2, 3, 24, 16) * 2 - 1
    expected = vae.quant_conv(vae.encoder(pixels.unsqueeze(2))).squeeze(2).chunk(2, dim=1)[0]
    assert relative_error(encode_frame(vae, pixels), expected) <= 1e-5


def test_decoding_a_frame_does_not_clamp():
    """A trainer needs gradients where the published decoder clips."""
    vae = tiny.vae("pocket")
    vae.decoder.conv_out.bias.data.fill_(3.0)
    latents = torch.zeros(1, 4, 2, 2, requires_grad=True)
    pixels = decode_frame(vae, latents)
    assert pixels.min() > 1
    pixels.sum().backward()
    assert latents.grad.abs().sum() > 0
    assert torch.equal(vae.decode(latents.unsqueeze(2)).sample, torch.ones(1, 3, 1, 16, 16))


# -- around the module ------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 99), frames=st.integers(1, 3), batch=st.integers(0, 2))
@settings(max_examples=20)
def test_the_latents_scale_is_undone(seed, frames, batch):
    config = tiny.vae("pocket").config
    scale = latent_scale(config)
    shape = (*((batch,) if batch else ()), 4, frames, 2, 3)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(scale.denormalise(scale.normalise(latents)), latents, atol=1e-6)
    channels = latents.movedim(-4, 0)
    for channel, (mean, deviation) in enumerate(zip(config.latents_mean, config.latents_std, strict=True)):
        expected = (channels[channel] - mean) / deviation
        assert torch.allclose(scale.normalise(latents).movedim(-4, 0)[channel], expected, atol=1e-6)


@pytest.mark.parametrize(("layout", "frames"), [("2.1", 9), ("2.1", 1), ("2.2", 5), ("pocket", 5)])
@torch.no_grad()
def test_clips_are_encoded_and_decoded_as_published(layout, frames):
    module = tiny.vae(layout)
    ours = WanVae(module, torch.device("cpu"))
    size = 2 * stride(module)
    generator = torch.Generator().manual_seed(2)
    pixels = torch.rand(3, frames, size, size + stride(module), generator=generator) * 2 - 1
    mean, deviation = (
        torch.tensor(v).view(-1, 1, 1, 1) for v in (module.config.latents_mean, module.config.latents_std)
    )
    expected = (module.encode(pixels[None]).latent_dist.mode()[0] - mean) / deviation
    assert relative_error(ours.encode_clip(pixels), expected) <= 1e-5
    back = module.decode((expected * deviation + mean)[None]).sample[0]
    shown = ours.decode(expected)
    assert relative_error(shown, (back / 2 + 0.5).clamp(0, 1).permute(1, 2, 3, 0)) <= 1e-5
    assert shown.shape == (frames, size, size + stride(module), 3)


@torch.no_grad()
def test_a_picture_is_a_clip_of_one_frame():
    ours = WanVae(tiny.vae("2.1"), torch.device("cpu"))
    image = tiny.picture(37, 50)
    latents = ours.encode_picture(image, width=48, height=32)
    assert latents.shape == (4, 1, 4, 6)
    same_size = np.ascontiguousarray(tiny.picture(32, 48))
    pixels = torch.from_numpy(same_size).permute(2, 0, 1).unsqueeze(1) / 127.5 - 1
    expected = ours.encode_clip(pixels)
    assert relative_error(ours.encode_picture(same_size, width=48, height=32), expected) <= 1e-5


def test_the_weights_that_a_single_frame_skips_are_those_of_time():
    """What makes the single-frame path exact: only last temporal taps, and no time convolution, reach one frame."""
    vae = tiny.vae("2.1")
    latents, pixels = torch.randn(1, 4, 2, 2), torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        before = decode_frame(vae, latents), encode_frame(vae, pixels)
        for name, module in vae.named_modules():
            if isinstance(module, nn.Conv3d):
                module.weight[:, :, :-1] = 9.0
                if name.endswith("time_conv"):
                    module.weight.fill_(9.0)
        after = decode_frame(vae, latents), encode_frame(vae, pixels)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert relative_error(vae.decode(latents.unsqueeze(2)).sample.squeeze(2), after[0]) <= 1e-5
