"""Words and pictures as the model reads them, against the published pipelines' own preprocessing."""

import numpy as np
import pytest
import torch
from diffusers import WanPipeline
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import CLIPImageProcessor

from petzval.models.wan.conditioning import ImageEncoder, clean_prompt
from petzval.models.wan.dit import TextKV
from petzval.models.wan.generator import join_text
from tests.models.wan import tiny

CPU = torch.device("cpu")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
@example("  a\t fox\u00a0\u2003 in\n\nsnow ")
@example("a fox &amp;amp; a bear &lt;3 &#x1c;")
@example("caf\u00c3\u00a9")
@settings(max_examples=300)
def test_prompts_are_cleaned_as_published(prompt):
    assert clean_prompt(prompt) == prompt_clean(prompt)


@pytest.mark.parametrize("prompt", ["the fox", "", "  odd \u00e9\u4e2d words! ", "x y " * 127 + "xy"])
def test_prompt_embeds_are_the_pipelines_without_its_padding(wan, wan_folder, prompt):
    pipeline = WanPipeline.from_pretrained(wan_folder("t2v"))
    with torch.no_grad():
        padded, _ = pipeline.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=512)
    embeds_SD = wan("t2v").text_encoder.encode(prompt)
    assert torch.allclose(embeds_SD, padded[0, : len(embeds_SD)], atol=1e-5)
    assert embeds_SD.abs().amax(1).min() > 0
    assert not padded[0, len(embeds_SD) :].any()


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3), seed=st.integers(0, 9))
@settings(max_examples=50)
def test_one_counted_key_stands_for_all_padding(lengths, seed):
    """Against dense attention over prompts that are really padded, to 6 tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    rows = [TextKV(draw(1, n + 1, 2, 4), draw(1, n + 1, 2, 4)) for n in lengths]
    q = draw(len(rows), 3, 2, 4)
    (joined,), bias_S = join_text([[row] for row in rows], 6)
    got = tiny.attention(q, joined.k, joined.v, bias_S=bias_S)
    full = [
        [torch.cat([t[:, :n], t[:, n:].expand(-1, 6 - n, -1, -1)], dim=1) for t in (row.k, row.v)]
        for row, n in zip(rows, lengths, strict=True)
    ]
    k, v = (torch.cat(parts) for parts in zip(*full, strict=True))
    assert torch.allclose(got, tiny.attention(q, k, v), atol=1e-5)
    assert (bias_S is None) == (max(lengths) == 6)
    assert joined.k.shape[1] <= max(lengths) + 1


# -- pictures ---------------------------------------------------------------------------------------------------------


def processed(processor: CLIPImageProcessor, image: np.ndarray) -> torch.Tensor:
    return processor(images=Image.fromarray(image), return_tensors="pt").pixel_values[0]


@given(height=st.integers(2, 40), width=st.integers(2, 40))
@example(height=8, width=8)
@example(height=3, width=40)
@settings(max_examples=60)
def test_pictures_are_scaled_and_cropped_as_published(height, width):
    processor = CLIPImageProcessor(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    image = tiny.picture(height, width)
    ours = ImageEncoder(module=None, settings=processor.to_dict(), device=CPU)
    assert torch.allclose(ours._preprocess(image), processed(processor, image), atol=1e-5)


@pytest.mark.parametrize(
    "settings_",
    [
        {"size": {"height": 9, "width": 12}, "crop_size": {"height": 8, "width": 8}},
        {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}, "resample": 2},
        {"size": {"shortest_edge": 6}, "crop_size": {"height": 8, "width": 8}},
        {"size": {"shortest_edge": 7}, "crop_size": {"height": 8, "width": 11}},
    ],
)
def test_other_settings_of_the_image_processor(settings_):
    """Also a crop larger than the picture, which is padded with black."""
    processor = CLIPImageProcessor(**settings_)
    image = tiny.picture(30, 21)
    ours = ImageEncoder(module=None, settings=processor.to_dict(), device=CPU)
    assert torch.allclose(ours._preprocess(image), processed(processor, image), atol=1e-5)
