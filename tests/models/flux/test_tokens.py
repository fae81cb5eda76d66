"""Packing latents into tokens, against diffusers' own packing."""

import torch
from diffusers import FluxPipeline
from hypothesis import given
from hypothesis import strategies as st

from petzval.models.flux.tokens import pack, positions, unpack

SIDES = st.integers(1, 6).map(lambda half: 2 * half)


@given(batch=st.integers(1, 3), channels=st.integers(1, 5), height=SIDES, width=SIDES)
def test_pack_is_diffusers_and_unpack_undoes_it(batch, channels, height, width):
    latents = torch.randn(batch, channels, height, width)
    packed = pack(latents)
    assert torch.equal(packed, FluxPipeline._pack_latents(latents, batch, channels, height, width))
    assert torch.equal(unpack(packed, height=height, width=width), latents)
    ids = FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu", torch.float32)
    assert torch.equal(positions(index=0, height=height, width=width), ids)
    assert torch.equal(positions(index=1, height=height, width=width)[:, 0], torch.ones(len(ids)))
