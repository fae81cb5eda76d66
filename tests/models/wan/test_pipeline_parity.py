"""From words to pixels: the same folder, the same seed, through diffusers and through the trajectory."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline, WanVideoToVideoPipeline
from PIL import Image

from petzval.types import Request
from tests.models.wan import tiny

PROMPT = "the fox at the beach, shouting"
FIRST, LAST = tiny.picture(50, 70), tiny.picture(64, 40, seed=8)


@dataclass(frozen=True)
class Case:
    variant: str
    pipeline: Any
    asked: dict[str, Any] = field(default_factory=dict)
    """Fields of our request."""
    told: dict[str, Any] = field(default_factory=dict)
    """What diffusers is told that the request does not say in its words."""
    images: tuple[np.ndarray, ...] = ()


def t2v(variant: str = "t2v", told: dict[str, Any] | None = None, **asked: Any) -> Case:
    base = {"task": "text-to-video", "width": 48, "height": 32, "num_frames": 5, "num_inference_steps": 4}
    return Case(variant, WanPipeline, {**base, **asked}, told or {})


def i2v(variant: str, *images: np.ndarray, told: dict[str, Any] | None = None, **asked: Any) -> Case:
    base = {"task": "image-to-video", "width": 48, "height": 32, "num_frames": 5, "num_inference_steps": 4}
    return Case(variant, WanImageToVideoPipeline, {**base, **asked}, told or {}, images)


def i2i(variant: str, **asked: Any) -> Case:
    """One frame through diffusers' video-to-video. It rounds the number of steps to run down where FLUX's pipelines and
    we round up, so these cases have strengths whose number of steps is whole. It reads the posterior's mode, as we do.
    """
    base = {"task": "image-to-image", "width": 48, "height": 32, "num_inference_steps": 5, "guidance_scale": 3.0}
    return Case(variant, WanVideoToVideoPipeline, {**base, **asked}, {"strength": asked["strength"]}, (FIRST,))


CASES = {
    "2.1 T2V": t2v(seed=1, guidance_scale=5.0, negative_prompt="grey, blurry"),
    "2.1 T2V, 9 frames, no guidance": t2v(seed=2, num_frames=9, guidance_scale=1.0, width=32),
    "2.1 T2V, a picture": t2v(seed=3, task="text-to-image", num_frames=1, width=64, negative_prompt="ugly"),
    "2.1 T2V, a clip of one frame": t2v(seed=4, num_frames=1, num_inference_steps=6),
    "2.1 T2V, Euler": t2v("t2v, euler", seed=5, negative_prompt="grey"),
    "2.1 T2V, DPM++": t2v("t2v, dpm++", seed=6, num_inference_steps=6),
    "2.1 T2V, image to image": i2i("t2v", seed=7, strength=0.6),
    "2.1 T2V, image to image, all of it": i2i("t2v", seed=8, strength=1.0),
    "2.1 T2V, image to image, Euler": i2i("t2v, euler", seed=9, strength=0.4),
    "2.1 I2V with CLIP": i2v("i2v", FIRST, seed=10, guidance_scale=4.0, negative_prompt="grey"),
    "2.1 FLF2V": i2v("flf2v", FIRST, LAST, seed=11, num_frames=9),
    "2.2 TI2V, text": t2v("ti2v", seed=12, width=64, negative_prompt="grey"),
    "2.2 TI2V, a picture": t2v("ti2v", seed=13, width=64, task="text-to-image", num_frames=1),
    "2.2 TI2V, first frame": i2v("ti2v", FIRST, seed=14, width=64, negative_prompt="grey"),
    "2.2 TI2V, first frame, no guidance": i2v("ti2v", LAST, seed=15, width=32, num_frames=9, guidance_scale=1.0),
    "2.2 TI2V, image to image": i2i("ti2v", seed=24, width=64, height=64, strength=0.6),
    "2.2 T2V-A14B": t2v(
        "t2v-a14b", seed=16, num_inference_steps=10, guidance_scale=4.0, guidance_scale_2=2.0, negative_prompt="grey",
    ),
    "2.2 T2V-A14B, second unguided": t2v("t2v-a14b", seed=17, guidance_scale=4.0, guidance_scale_2=1.0),
    "2.2 I2V-A14B": i2v("i2v-a14b", FIRST, seed=18, num_inference_steps=6, guidance_scale_2=2.0),
    "2.2 I2V-A14B, last frame": i2v("i2v-a14b", FIRST, LAST, seed=19, num_frames=9, guidance_scale_2=2.0),
    # Where the autoencoder does not shorten time, WanPipeline's rounding makes n frames n + 1: asked for one fewer.
    "pocket, text": t2v("pocket", {"num_frames": 5}, seed=20, num_frames=6, negative_prompt="grey"),
    "pocket, a picture": t2v("pocket", {"num_frames": 0}, seed=21, task="text-to-image", num_frames=1),
    "pocket, first frame": i2v("pocket", FIRST, told={"num_frames": 6}, seed=22, num_frames=7),
    "pocket, image to image": i2i("pocket", seed=23, strength=0.8),
}  # fmt: skip


def theirs(folder, case: Case, request: Request) -> torch.Tensor:
    pipeline = case.pipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    named = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    names = ["width", "height", "num_inference_steps", "guidance_scale"]
    if case.pipeline is WanVideoToVideoPipeline:
        named["video"] = [Image.fromarray(image) for image in case.images]
        # It counts levels to know the autoencoder's stride, and so misses the pixels that a patch adds.
        pipeline.vae_scale_factor_spatial = pipeline.vae.config.scale_factor_spatial
    else:
        names += ["num_frames", "guidance_scale_2"]
        named |= dict(zip(("image", "last_image"), map(Image.fromarray, case.images), strict=False))
    named |= {name: getattr(request, name) for name in names}
    made = pipeline(**{**named, **case.told}, generator=torch.Generator().manual_seed(request.seed), output_type="np")
    return torch.from_numpy(made.frames[0])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of DPMSolver's own use of numpy
@pytest.mark.parametrize("name", CASES)
def test_pipeline_parity(name, wan, wan_folder, parity_row):
    case = CASES[name]
    family = wan(case.variant)
    request = Request(prompt=PROMPT, **case.asked)
    ours = tiny.generate(family, request, *case.images)
    filled = tiny.start(family, request, *case.images).plan.request
    expected = theirs(wan_folder(case.variant), case, filled)
    decibels = tiny.psnr(ours, expected)
    parity_row("wan", name, "pipeline, PSNR in dB", f"{decibels:.1f}")
    assert ours.shape == expected.shape
    assert ours.std() > 0.02, "a flat clip would prove nothing"
    assert ((ours == 0) | (ours == 1)).float().mean() < 0.2, "clamping would hide differences"
    assert decibels >= 60


def test_both_experts_compute_in_these_cases(wan):
    for name in ("2.2 T2V-A14B", "2.2 I2V-A14B"):
        case = CASES[name]
        plan = tiny.start(wan(case.variant), Request(prompt=PROMPT, **case.asked), *case.images).plan
        assert set(plan.schedule.experts) == {"transformer", "transformer_2"}
