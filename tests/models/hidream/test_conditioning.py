"""Prompt embeddings against the pipeline's own."""

import pytest
import torch
from diffusers import HiDreamImagePipeline

from petzval.errors import BadRequestError
from petzval.models.hidream.conditioning import TextEncoders
from tests.models.hidream import tiny


@pytest.fixture(scope="module")
def parts():
    return tiny.encoders()


@pytest.fixture(scope="module")
def ours(parts):
    return TextEncoders(
        clips=(parts["text_encoder"], parts["text_encoder_2"]),
        clip_tokenizers=(parts["tokenizer"], parts["tokenizer_2"]),
        t5=parts["text_encoder_3"],
        t5_tokenizer=parts["tokenizer_3"],
        llama=parts["text_encoder_4"],
        llama_tokenizer=parts["tokenizer_4"],
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("prompt", ["the fox", "", "odd \u00e9\u4e2d words!", "a fox " * 18])
@torch.no_grad()
def test_prompt_embeds_are_the_pipelines(parts, ours, prompt):
    pipeline = HiDreamImagePipeline(scheduler=None, vae=None, transformer=None, **parts)
    t5, _, llama, _, pooled, _ = pipeline.encode_prompt(prompt=prompt, do_classifier_free_guidance=False)
    found = ours.encode(prompt)
    torch.testing.assert_close(found["t5_embeds"], t5[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["llama_embeds"], llama[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["pooled_prompt_embeds"], pooled[0], rtol=1e-5, atol=1e-6)


def test_a_prompt_that_would_be_cut_off_is_refused(ours):
    ours.check("prompt", "x" * 126)
    with pytest.raises(BadRequestError, match="prompt has 200 tokens; this checkpoint reads at most 128"):
        ours.check("prompt", "y" * 198)
