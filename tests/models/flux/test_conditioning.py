"""Prompt embeddings against the pipeline's own."""

import pytest
import torch
from diffusers import FluxPipeline


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("the fox", 512), ("", 512), ("odd \u00e9\u4e2d words!", 256), ("long and longer " * 20, 512)],
)
def test_prompt_embeds_are_the_pipelines(flux, flux_folder, prompt, tokens):
    """Also where CLIP cuts the prompt off at its 77 tokens, as published."""
    variant = "schnell" if tokens == 256 else "dev"
    pipeline = FluxPipeline.from_pretrained(flux_folder(variant))
    with torch.no_grad():
        expected, expected_pooled, _ = pipeline.encode_prompt(prompt=prompt, max_sequence_length=tokens)
    prompt_SE, pooled_P = flux(variant).encoders.encode(prompt)
    assert prompt_SE.shape[0] == tokens
    assert torch.equal(prompt_SE, expected[0])
    assert torch.equal(pooled_P, expected_pooled[0])
