"""From words to pixels: the same folder, the same seed, through diffusers and through the trajectory."""

import functools

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchLCMScheduler,
    HiDreamImagePipeline,
    HiDreamImageTransformer2DModel,
    UniPCMultistepScheduler,
)

from petzval.models.checkpoint import Checkpoint
from petzval.models.hidream import load
from petzval.ops.attention import math_attention
from petzval.sampling.schedules import make_schedule
from petzval.sampling.trajectory import advance
from petzval.types import Request
from tests.models.drive import start
from tests.models.hidream import tiny
from tests.models.hidream.test_dit_parity import BASE

SCHEDULERS = {
    "full": lambda: UniPCMultistepScheduler(
        flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction", solver_order=2
    ),
    "dev": lambda: FlowMatchLCMScheduler(shift=6.0),
    "fast": lambda: FlowMatchLCMScheduler(shift=3.0),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    @functools.cache
    def write(variant):
        parts = tiny.encoders()
        vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(4, 4, 4, 4), layers_per_block=1, latent_channels=4, norm_num_groups=2,
            scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
            mid_block_add_attention=False,
        ).eval()  # fmt: skip
        model = HiDreamImageTransformer2DModel(**BASE).eval()
        with torch.no_grad():
            for part in (model, vae):
                for weight in part.parameters():
                    weight.add_(torch.randn_like(weight) * 0.1)
            vae.decoder.conv_out.weight.mul_(0.5)
        where = tmp_path_factory.mktemp("hidream") / variant
        pipeline = HiDreamImagePipeline(scheduler=SCHEDULERS[variant](), vae=vae, transformer=model, **parts)
        pipeline.save_pretrained(where)
        return where

    return write


def family(where):
    return load(
        Checkpoint(name="tiny", folder=where), device=torch.device("cpu"), dtype=torch.float32,
        attention=math_attention, make_schedule=make_schedule,
    )  # fmt: skip


def generate(model, request, *images):
    trajectory = start(model, request, *images)
    while not trajectory.done:
        advance([trajectory], model)
    return model.decode(trajectory.plan, trajectory.conditioning, trajectory.latents)[0]


def theirs(where, request):
    pipeline = HiDreamImagePipeline.from_pretrained(where)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.default_sample_size = 16  # it makes pictures of one area only
    generator = torch.Generator().manual_seed(request.seed)
    if isinstance(pipeline.scheduler, FlowMatchLCMScheduler):  # the pipeline would draw from the global generator
        pipeline.scheduler.step = functools.partial(pipeline.scheduler.step, generator=generator)
    made = pipeline(
        request.prompt, width=request.width, height=request.height, num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale, negative_prompt=request.negative_prompt, generator=generator,
        output_type="np",
    )  # fmt: skip
    return torch.from_numpy(made.images[0])


CASES = {
    "full": ("full", {"width": 128, "height": 128, "guidance_scale": 5.0, "negative_prompt": "grey"}),
    "full, wide": ("full", {"width": 160, "height": 96, "guidance_scale": 3.0, "negative_prompt": ""}),
    "dev": ("dev", {"width": 128, "height": 128, "guidance_scale": 1.0}),
    "fast, tall": ("fast", {"width": 96, "height": 160, "guidance_scale": 1.0}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_pipeline_parity(name, folder, parity_row):
    variant, fields = CASES[name]
    request = Request(task="text-to-image", prompt="the fox", seed=3, num_inference_steps=4, **fields)
    ours, expected = generate(family(folder(variant)), request), theirs(folder(variant), request)
    decibels = (-10 * (ours.double() - expected.double()).square().mean().log10()).item()
    parity_row("hidream", name, "pipeline, PSNR in dB", f"{decibels:.1f}")
    assert ours.shape == expected.shape
    assert ours.std() > 0.02, "a flat picture would prove nothing"
    assert decibels >= 60


@pytest.mark.parametrize(("variant", "steps", "guidance"), [("full", 50, 5.0), ("dev", 28, 1.0), ("fast", 16, 1.0)])
def test_defaults_are_the_published_ones(folder, variant, steps, guidance):
    found = family(folder(variant)).spec
    defaults = found.tasks["text-to-image"]
    assert (found.variant, defaults.num_inference_steps, defaults.guidance_scale) == (variant, steps, guidance)


def test_a_picture_and_its_strength_show(folder):
    model, picture = family(folder("full")), np.random.default_rng(5).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    asked = {"task": "image-to-image", "prompt": "a", "width": 64, "height": 64, "num_inference_steps": 4}
    made = [generate(model, Request(**asked, strength=s), picture) for s in (0.25, 1.0)]
    other = generate(model, Request(**asked, strength=0.25), 255 - picture)
    assert not torch.equal(made[0], made[1])
    assert not torch.equal(made[0], other)
