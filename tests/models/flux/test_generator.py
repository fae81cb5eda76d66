"""Planning, conditioning and stepping of tiny FLUX.1 checkpoints."""

import inspect
import json

import numpy as np
import pytest
import torch
from diffusers import FluxImg2ImgPipeline, FluxPipeline
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from hypothesis import given
from hypothesis import strategies as st

from petzval.errors import BadRequestError
from petzval.models.flux.conditioning import KONTEXT_SIZES, kontext_size
from petzval.sampling.trajectory import advance, fork
from petzval.types import InputImage, Plan, Request, from_json, to_json
from tests.models.flux import tiny

IMAGE = InputImage.of(b"a picture")
PICTURE = np.random.default_rng(1).integers(0, 256, (40, 56, 3), dtype=np.uint8)


def request(**fields) -> Request:
    return Request(**{"task": "text-to-image", "prompt": "the fox", "width": 48, "height": 48, **fields})


# -- plans ------------------------------------------------------------------------------------------------------------


def test_defaults_are_the_published_ones(flux):
    def published(pipeline, name):
        return inspect.signature(pipeline.__call__).parameters[name].default

    plan = flux("dev").plan(Request(task="text-to-image", prompt="a fox")).request
    assert (plan.width, plan.height) == (1024, 1024)
    assert plan.num_inference_steps == published(FluxPipeline, "num_inference_steps")
    assert plan.embedded_guidance == published(FluxPipeline, "guidance_scale")
    assert plan.guidance_scale == published(FluxPipeline, "true_cfg_scale")
    assert (plan.num_frames, plan.fps, plan.strength, plan.negative_prompt) == (1, None, None, None)

    plan = flux("dev").plan(Request(task="image-to-image", prompt="a fox", images=(IMAGE,))).request
    assert plan.num_inference_steps == published(FluxImg2ImgPipeline, "num_inference_steps")
    assert plan.embedded_guidance == published(FluxImg2ImgPipeline, "guidance_scale")
    assert plan.strength == published(FluxImg2ImgPipeline, "strength")

    plan = flux("schnell").plan(Request(task="text-to-image", prompt="a fox")).request
    assert (plan.num_inference_steps, plan.embedded_guidance) == (4, None)


def test_a_plan_survives_json_and_planning_again(flux):
    plan = flux("dev").plan(request(guidance_scale=2.0, num_inference_steps=5))
    record = json.loads(json.dumps(to_json(plan)))
    assert from_json(Plan, record) == plan
    assert flux("dev").plan(from_json(Plan, record).request) == plan


@pytest.mark.parametrize(
    ("variant", "fields", "message"),
    [
        ("dev", {"width": 50}, "width must be a multiple of 16, got 50; the nearest is 48"),
        ("dev", {"height": 0}, "height must be a whole number from 1"),
        ("dev", {"num_frames": 5}, "num_frames must be 1 for a picture, got 5"),
        ("dev", {"fps": 8}, "fps has no effect on text-to-image"),
        ("dev", {"guidance_scale_2": 2.0}, "guidance_scale_2 has no effect"),
        ("dev", {"strength": 0.5}, "strength has no effect on text-to-image"),
        ("dev", {"images": (IMAGE,)}, "images: text-to-image takes 0, got 1"),
        ("dev", {"task": "image-to-image"}, "images: image-to-image takes 1, got 0"),
        ("dev", {"task": "image-to-image", "images": (IMAGE, IMAGE)}, "images: image-to-image takes 1, got 2"),
        ("dev", {"task": "image-to-image", "images": (IMAGE,), "strength": 1.5}, "strength must be above 0"),
        ("dev", {"task": "text-to-video"}, "can do text-to-image, image-to-image"),
        ("dev", {"negative_prompt": "blurry"}, "negative_prompt has no effect while guidance_scale is 1"),
        ("dev", {"guidance_scale": 0.5}, "guidance_scale must be a number of at least 1, got 0.5"),
        ("dev", {"embedded_guidance": float("nan")}, "embedded_guidance must be a number of at least 0"),
        ("dev", {"num_inference_steps": 0}, "num_inference_steps must be a whole number from 1"),
        ("dev", {"sampler": "ddim"}, "sampler must be one of euler, unipc, dpm"),
        ("dev", {"seed": -1}, "seed must be a whole number from 0"),
        ("dev", {"prompt": "x y " * 300}, "prompt has 1201 tokens; this checkpoint reads at most 512"),
        ("schnell", {"prompt": "x y " * 64}, "prompt has 257 tokens; this checkpoint reads at most 256"),
        ("dev", {"guidance_scale": 2.0, "negative_prompt": "x y " * 300}, "negative_prompt has 1201 tokens"),
        ("schnell", {"embedded_guidance": 3.5}, "embedded_guidance has no effect on text-to-image"),
        ("kontext", {"task": "image-to-image", "images": (IMAGE,), "strength": 0.5}, "strength has no effect"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(flux, variant, fields, message):
    with pytest.raises(BadRequestError) as refusal:
        flux(variant).plan(request(**fields))
    assert message in str(refusal.value)


def test_a_prompt_of_exactly_the_limit_is_read(flux):
    flux("schnell").plan(request(prompt="x y " * 63 + "xy"))


def test_images_must_be_as_many_as_planned(flux):
    plan = flux("dev").plan(request(task="image-to-image", images=(IMAGE,)))
    with pytest.raises(BadRequestError, match="the plan says 1, got 0"):
        flux("dev").encode(plan, [], torch.Generator())


# -- sizes ------------------------------------------------------------------------------------------------------------


@given(width=st.integers(1, 5000), height=st.integers(1, 5000))
def test_kontext_size_is_the_pipelines_choice(width, height):
    _, w, h = min((abs(width / height - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
    assert kontext_size(width, height, multiple=16) == (w, h)
    assert (w, h) in KONTEXT_SIZES


def test_natural_size_keeps_the_picture_s_shape(flux):
    assert flux("dev").natural_size("image-to-image", 400, 400) == (1024, 1024)
    assert flux("dev").natural_size("image-to-image", 400, 200) == (1456, 720)
    assert flux("kontext").natural_size("image-to-image", 400, 200) == (1456, 720)


# -- stepping ---------------------------------------------------------------------------------------------------------


def finish(group, flux) -> None:
    while left := [t for t in group if not t.done]:
        advance(left, flux)


def test_a_group_gives_what_each_gives_alone(flux):
    """Different prompts, step counts, steps, guidance and shapes in one group."""
    requests = [
        request(seed=1, num_inference_steps=3),
        request(seed=2, num_inference_steps=5, prompt="a house", embedded_guidance=1.0),
        request(seed=3, num_inference_steps=4, guidance_scale=3.0, negative_prompt="grey"),
        request(seed=4, num_inference_steps=4, width=64),
    ]
    alone = [tiny.start(flux("dev"), r) for r in requests]
    for trajectory in alone:
        finish([trajectory], flux("dev"))
    group = [tiny.start(flux("dev"), r) for r in requests]
    advance(group[:1], flux("dev"))  # out of step with the others
    finish(group, flux("dev"))
    for one, other in zip(alone, group, strict=True):
        assert (one.latents - other.latents).abs().max() <= 1e-5 * one.latents.abs().max()


def test_kontext_references_of_different_shapes_share_no_batch(flux):
    edit = request(task="image-to-image", num_inference_steps=2)
    wide = tiny.start(flux("kontext"), edit, PICTURE)
    tall = tiny.start(flux("kontext"), edit, np.ascontiguousarray(PICTURE.transpose(1, 0, 2)))
    none = tiny.start(flux("kontext"), request(num_inference_steps=2))
    again = fork(wide)
    advance([again], flux("kontext"))
    advance([wide, tall, none], flux("kontext"))
    keys = [t.invariants.batch_key(1) for t in (wide, tall, none)]
    assert len(set(keys)) == 3
    assert keys[2] is None
    assert (wide.latents - again.latents).abs().max() <= 1e-5 * again.latents.abs().max()


def test_prompt_seed_picture_and_guidance_all_show(flux):
    base = request(seed=1, num_inference_steps=4, task="image-to-image", strength=1.0)
    pixels = tiny.generate(flux("dev"), base, PICTURE)
    assert torch.equal(tiny.generate(flux("dev"), base, PICTURE), pixels)
    changed = {
        "prompt": {"prompt": "a house at night"},
        "seed": {"seed": 2},
        "strength": {"strength": 0.5},
        "embedded guidance": {"embedded_guidance": 1.0},
        "guidance": {"guidance_scale": 4.0},
        "sampler": {"sampler": "unipc"},
    }
    for name, fields in changed.items():
        other = tiny.generate(flux("dev"), Request(**{**base.__dict__, **fields}), PICTURE)
        assert tiny.psnr(other, pixels) < 60, name


def test_bfloat16_stays_near_float32(flux, flux_folder):
    low = tiny.load_ours(flux_folder("dev"), torch.bfloat16)
    assert {p.dtype for p in low.dit.parameters()} == {torch.bfloat16}
    asked = request(num_inference_steps=3)
    trajectory = tiny.start(low, asked)
    advance([trajectory], low)
    assert trajectory.latents.dtype == torch.float32
    assert tiny.psnr(tiny.generate(low, asked), tiny.generate(flux("dev"), asked)) > 30
