"""From words to pixels: the same folder, the same seed, through diffusers and through the trajectory."""

import numpy as np
import pytest
import torch
from diffusers import FluxImg2ImgPipeline, FluxKontextPipeline, FluxPipeline
from PIL import Image

from petzval.types import Request
from tests.models.flux import tiny

PROMPT = "the fox at the beach, shouting"


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


def t2i(**fields) -> Request:
    return Request(task="text-to-image", prompt=PROMPT, **fields)


def i2i(**fields) -> Request:
    return Request(task="image-to-image", prompt=PROMPT, **fields)


# name: (variant, diffusers' pipeline, our request, an input picture, what diffusers is told differently)
CASES = {
    "schnell, 4 steps": (
        "schnell", FluxPipeline, t2i(seed=1, width=48, height=64, num_inference_steps=4), None,
        {"max_sequence_length": 256},
    ),
    "dev, embedded guidance": (
        "dev", FluxPipeline, t2i(seed=2, width=80, height=48, num_inference_steps=5, embedded_guidance=2.5), None,
        {"guidance_scale": 2.5},
    ),
    "dev, true CFG": (
        "dev", FluxPipeline,
        t2i(seed=3, width=48, height=48, num_inference_steps=4, guidance_scale=3.0, negative_prompt="blurry"), None,
        {"true_cfg_scale": 3.0, "negative_prompt": "blurry", "guidance_scale": 3.5},
    ),
    "schnell, true CFG": (
        "schnell", FluxPipeline,
        t2i(seed=4, width=32, height=48, num_inference_steps=3, guidance_scale=2.0, negative_prompt="grey"), None,
        {"true_cfg_scale": 2.0, "negative_prompt": "grey", "max_sequence_length": 256},
    ),
    "dev, image to image": (
        "dev", FluxImg2ImgPipeline, i2i(seed=5, width=64, height=48, num_inference_steps=6), picture(70, 90),
        {"strength": 0.6, "guidance_scale": 7.0},
    ),
    "dev, image to image, strength 1": (
        "dev", FluxImg2ImgPipeline, i2i(seed=6, width=48, height=48, num_inference_steps=3, strength=1.0),
        picture(48, 48), {"strength": 1.0, "guidance_scale": 7.0},
    ),
    "schnell, image to image": (
        "schnell", FluxImg2ImgPipeline, i2i(seed=7, width=48, height=80, strength=0.3), picture(20, 30),
        {"strength": 0.3, "max_sequence_length": 256, "num_inference_steps": 4},
    ),
    "Kontext": (
        "kontext", FluxKontextPipeline, i2i(seed=8, width=64, height=48, num_inference_steps=3), picture(60, 50),
        {"guidance_scale": 2.5, "max_area": 64 * 48},
    ),
    "Kontext, no picture, true CFG": (
        "kontext", FluxKontextPipeline,
        t2i(seed=9, width=48, height=48, num_inference_steps=3, guidance_scale=2.5, negative_prompt="ugly"), None,
        {"guidance_scale": 2.5, "max_area": 48 * 48, "true_cfg_scale": 2.5, "negative_prompt": "ugly"},
    ),
}  # fmt: skip


def theirs(folder, pipeline_class, request: Request, image, options) -> torch.Tensor:
    pipeline = pipeline_class.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        **{
            "prompt": request.prompt,
            "width": request.width,
            "height": request.height,
            "num_inference_steps": request.num_inference_steps,
            **({} if image is None else {"image": Image.fromarray(image)}),
            **options,
        },
        generator=torch.Generator().manual_seed(request.seed),
        output_type="np",
    )
    return torch.from_numpy(made.images[0])


@pytest.mark.parametrize("name", CASES)
def test_pipeline_parity(name, flux, flux_folder, parity_row):
    variant, pipeline_class, request, image, options = CASES[name]
    images = () if image is None else (image,)
    ours = tiny.generate(flux(variant), request, *images)
    expected = theirs(flux_folder(variant), pipeline_class, request, image, options)
    decibels = tiny.psnr(ours, expected)
    parity_row("flux", name, "pipeline, PSNR in dB", f"{decibels:.1f}")
    assert ours.shape == expected.shape
    assert ours.std() > 0.02, "a flat picture would prove nothing"
    assert ((ours == 0) | (ours == 1)).float().mean() < 0.2, "clamping would hide differences"
    assert decibels >= 60
