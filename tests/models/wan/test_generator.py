"""Planning, conditioning and stepping of tiny Wan checkpoints."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from petzval.errors import BadRequestError, TrajectoryFileError
from petzval.sampling import trajectory_file
from petzval.sampling.trajectory import Trajectory, advance, fork
from petzval.types import InputImage, Plan, Request, from_json, to_json
from tests.models.wan import tiny
from tests.models.wan.tiny import finish

IMAGE = InputImage.of(b"a picture")
PICTURE, OTHER = tiny.picture(50, 70), tiny.picture(40, 40, seed=9)
LONG = "x y " * 127 + "xy"
"""512 tokens, as many as are read."""


def request(task: str = "text-to-video", **fields) -> Request:
    frames = 1 if task.endswith("-image") else 5
    size = {"width": 32, "height": 32, "num_frames": frames, "num_inference_steps": 4}
    return Request(**{"task": task, "prompt": "the fox", **size, **fields})


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_survives_json_and_planning_again(wan):
    plan = wan("t2v-a14b").plan(request(guidance_scale_2=2.0))
    record = json.loads(json.dumps(to_json(plan)))
    assert from_json(Plan, record) == plan
    assert wan("t2v-a14b").plan(from_json(Plan, record).request) == plan


def test_each_expert_has_its_side_of_the_boundary_and_its_guidance(wan):
    schedule = wan("t2v-a14b").plan(request(num_inference_steps=10, guidance_scale_2=1.0)).schedule
    assert schedule.timesteps[3] == 875, "one that is on the boundary"
    assert schedule.experts == ("transformer",) * 4 + ("transformer_2",) * 6
    assert schedule.guidance == (4.0,) * 4 + (1.0,) * 6
    assert set(wan("t2v").plan(request()).schedule.experts) == {"transformer"}


I2V = {"task": "image-to-video"}


@pytest.mark.parametrize(
    ("variant", "fields", "message"),
    [
        ("t2v", {"width": 50}, "width must be a multiple of 16, got 50; the nearest is 48"),
        ("ti2v", {"height": 50}, "height must be a multiple of 32, got 50; the nearest is 64"),
        ("t2v", {"height": 0}, "height must be a whole number from 1"),
        ("t2v", {"num_frames": 7}, "num_frames must be 1 plus a multiple of 4, got 7; the nearest is 9"),
        ("t2v", {"num_frames": 4097}, "num_frames must be at most 4093, got 4097; the nearest is 4093"),
        ("t2v", {"num_frames": 5, "task": "text-to-image"}, "num_frames must be 1 for a picture, got 5"),
        ("t2v", {"fps": 0}, "fps must be a whole number from 1"),
        ("t2v", {"fps": 8, "task": "text-to-image", "num_frames": 1}, "fps has no effect on text-to-image"),
        ("t2v", {"strength": 0.5}, "strength has no effect on text-to-video"),
        ("t2v", {"strength": 0.5, "task": "text-to-image", "num_frames": 1}, "strength has no effect on text-to-image"),
        ("t2v", {"guidance_scale_2": 2.0}, "guidance_scale_2 has no effect"),
        ("t2v-a14b", {"guidance_scale_2": 0.5}, "guidance_scale_2 must be a number of at least 1, got 0.5"),
        ("t2v", {"embedded_guidance": 3.5}, "embedded_guidance has no effect"),
        ("t2v", {"guidance_scale": 0.0}, "guidance_scale must be a number of at least 1, got 0.0"),
        ("t2v", {"sampler": "ddim"}, "sampler must be one of unipc, euler, dpm++2m, got 'ddim'"),
        ("t2v", {"num_inference_steps": 0}, "num_inference_steps must be a whole number from 1"),
        ("t2v", {"prompt": LONG + "x"}, "prompt has 513 tokens; this checkpoint reads at most 512"),
        ("t2v", {"negative_prompt": LONG + "x"}, "negative_prompt has 513 tokens; this checkpoint reads at most 512"),
        ("t2v", {"negative_prompt": "grey", "guidance_scale": 1.0}, "negative_prompt has no effect while"),
        ("t2v", I2V, "can do text-to-video, text-to-image, image-to-image"),
        ("i2v", {"task": "text-to-video"}, "can do image-to-video"),
        ("t2v", {"images": (IMAGE,)}, "images: text-to-video takes 0, got 1"),
        ("i2v", I2V, "images: image-to-video takes 1, got 0"),
        ("i2v", {**I2V, "images": (IMAGE,) * 2}, "images: image-to-video takes 1, got 2"),
        ("ti2v", {**I2V, "images": (IMAGE,) * 2}, "images: image-to-video takes 1, got 2"),
        ("i2v-a14b", {**I2V, "images": (IMAGE,) * 3}, "images: image-to-video takes 1 to 2, got 3"),
        ("flf2v", {**I2V, "images": (IMAGE,)}, "images: this checkpoint takes 2, the first and the last frame, got 1"),
        (
            "i2v-a14b", {**I2V, "images": (IMAGE,) * 2, "num_frames": 1},
            "num_frames must be at least 5 to begin and end with a given picture, got 1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_what_can(wan, variant, fields, message):
    with pytest.raises(BadRequestError) as refusal:
        wan(variant).plan(request(**fields))
    assert message in str(refusal.value)


def test_images_must_be_as_many_as_planned(wan):
    plan = wan("i2v").plan(request("image-to-video", images=(IMAGE,)))
    with pytest.raises(BadRequestError, match="images: the plan says 1, got 0"):
        wan("i2v").encode(plan, [], torch.Generator())


@given(width=st.integers(1, 5000), height=st.integers(1, 5000))
@settings(max_examples=50)
def test_natural_size_can_be_made(wan, width, height):
    made = wan("ti2v").natural_size("image-to-video", width, height)
    assert all(side % 32 == 0 and side > 0 for side in made)
    if 0.5 < width / height < 2:
        assert abs(made[0] * made[1] / (1280 * 704) - 1) < 0.1
        assert abs(made[0] / made[1] / (width / height) - 1) < 0.1


# -- stepping ---------------------------------------------------------------------------------------------------------


def alone(wan, requests) -> list[Trajectory]:
    made = [tiny.start(wan, asked, *images) for asked, *images in requests]
    for trajectory in made:
        finish([trajectory], wan)
    return made


# Of each checkpoint: requests that differ in prompt length, steps, guidance, shape and pictures.
GROUPS = {
    "t2v": [
        (request(seed=1, prompt="a", guidance_scale=1.0),),
        (request(seed=2, prompt=LONG, num_inference_steps=3),),
        (request(seed=3, negative_prompt="grey and blurry", num_inference_steps=6, width=48),),
        (request("text-to-image", seed=4, num_inference_steps=5),),
        (request(seed=5, num_frames=1, guidance_scale=2.0, sampler="euler"),),
        (request("image-to-image", seed=6, strength=0.5), PICTURE),
    ],
    "t2v-a14b": [
        (request(seed=1, prompt="a", num_inference_steps=6),),
        (request(seed=2, prompt="the fox at the beach", num_inference_steps=3, guidance_scale_2=1.0),),
        (request(seed=3, num_inference_steps=5, guidance_scale=1.0, guidance_scale_2=1.0),),
        (request("image-to-image", seed=4, num_inference_steps=6, strength=0.4), PICTURE),
        (request(seed=5, num_inference_steps=5, guidance_scale=1.0, guidance_scale_2=6.0, negative_prompt="x y z"),),
    ],
    "ti2v": [
        (request(seed=1, prompt="a"),),
        (request("image-to-video", seed=2, num_inference_steps=3, prompt="the house"), PICTURE),
        (request("image-to-video", seed=3, num_inference_steps=6, guidance_scale=1.0), OTHER),
        (request("image-to-video", seed=4, num_inference_steps=5, num_frames=9), OTHER),
        (request("image-to-video", seed=5, num_frames=1), OTHER),
        (request("text-to-image", seed=6),),
    ],
    "i2v-a14b": [
        (request("image-to-video", seed=1, prompt="a"), PICTURE),
        (request("image-to-video", seed=2, num_inference_steps=6), OTHER, PICTURE),
        (request("image-to-video", seed=3, num_inference_steps=6, guidance_scale=1.0, guidance_scale_2=1.0), OTHER),
    ],
    "i2v": [
        (request("image-to-video", seed=1, prompt="a", guidance_scale=1.0), PICTURE),
        (request("image-to-video", seed=2, num_inference_steps=6), OTHER),
    ],
    "flf2v": [
        (request("image-to-video", seed=1, prompt="a", guidance_scale=1.0), PICTURE, OTHER),
        (request("image-to-video", seed=2, num_inference_steps=6), OTHER, PICTURE),
    ],
}


@pytest.mark.parametrize("variant", GROUPS)
def test_a_group_gives_what_each_gives_alone(wan, variant):
    family, requests = wan(variant), GROUPS[variant]
    group = [tiny.start(family, asked, *images) for asked, *images in requests]
    advance(group[:1], family)  # out of step with the others
    finish(group, family)
    for one, other in zip(alone(family, requests), group, strict=True):
        assert (one.latents - other.latents).abs().max() <= 1e-5 * one.latents.abs().max()


def test_what_may_share_a_batch(wan):
    """Rows of one expert, and with or without a first frame; the step, the guidance and the prompt may differ."""
    experts = [tiny.start(wan("t2v-a14b"), request(seed=n, num_inference_steps=6)) for n in range(2)]
    given = tiny.start(wan("ti2v"), request("image-to-video"), PICTURE)
    free = tiny.start(wan("ti2v"), request(prompt="a", guidance_scale=1.0))
    advance(experts, wan("t2v-a14b"))
    advance([given, free], wan("ti2v"))
    first, second = (trajectory.invariants for trajectory in experts)
    assert first.batch_key(0) == second.batch_key(1)
    assert first.batch_key(0) != second.batch_key(5)
    assert given.invariants.batch_key(0) == given.invariants.batch_key(3) != free.invariants.batch_key(0)


def test_only_the_experts_and_branches_that_run_are_prepared(wan):
    family = wan("t2v-a14b")
    low = tiny.start(
        family, request("image-to-image", strength=0.25, guidance_scale=1.0, guidance_scale_2=1.0), PICTURE
    )
    advance([low], family)
    assert {branch for _, branch in low.invariants.text} == {"cond"}
    assert "negative_prompt_embeds" not in low.conditioning


def test_a_given_first_frame_stays(wan):
    """In every preview and in the outcome, whatever the sampler made of the latents behind it."""
    family = wan("ti2v")
    trajectory = tiny.start(family, request("image-to-video", width=64), PICTURE)
    given = family.vae.decode(trajectory.conditioning["first_frame_latents"])[0]
    while not trajectory.done:
        advance([trajectory], family)
        shown = family.decode(trajectory.plan, trajectory.conditioning, trajectory.clean_estimate())
        assert shown.shape == (5, 32, 64, 3)
        assert (shown[0] - given).abs().max() < 1e-5
    assert (trajectory.latents[:, :1] - trajectory.conditioning["first_frame_latents"]).abs().max() > 0.01


@pytest.mark.parametrize("variant", ["t2v-a14b", "ti2v", "i2v", "pocket"])
def test_saved_and_loaded_at_any_step_it_ends_the_same(wan, wan_folder, tmp_path, variant):
    """By another load of the same folder: bit by bit what it would have been without the stop."""
    images = () if variant == "t2v-a14b" else (PICTURE,)
    asked = request("image-to-video" if images else "text-to-video", seed=3, num_inference_steps=5)
    again = tiny.load_ours(wan_folder(variant))
    whole = tiny.start(wan(variant), asked, *images)
    saved = []
    while not whole.done:
        trajectory_file.save(whole, tmp_path / f"{whole.step}")
        saved.append(tmp_path / f"{whole.step}")
        advance([whole], wan(variant))
    for path in saved[::2]:
        resumed = trajectory_file.load(path, again.checkpoint, again.device)
        finish([resumed], again)
        assert torch.equal(resumed.latents, whole.latents)
        shown = again.decode(resumed.plan, resumed.conditioning, resumed.latents)
        assert torch.equal(shown, wan(variant).decode(whole.plan, whole.conditioning, whole.latents))


def test_a_saved_trajectory_of_another_checkpoint_is_refused(wan):
    blob = trajectory_file.to_bytes(tiny.start(wan("t2v"), request()))
    with pytest.raises(TrajectoryFileError, match="made by another checkpoint"):
        trajectory_file.from_bytes(blob, wan("ti2v").checkpoint, "cpu")


def test_a_fork_goes_its_own_way_and_the_same_way(wan):
    family = wan("ti2v")
    trajectory = tiny.start(family, request("image-to-video"), PICTURE)
    advance([trajectory], family)
    twin, other = fork(trajectory), fork(trajectory)
    other.conditioning = {**other.conditioning, "prompt_embeds": family.text_encoder.encode("a house at night")}
    other.invariants = None
    for each in (trajectory, twin, other):
        finish([each], family)
    assert torch.equal(trajectory.latents, twin.latents)
    assert (trajectory.latents - other.latents).abs().max() > 1e-3


def test_prompt_seed_picture_and_guidance_all_show(wan):
    family = wan("i2v-a14b")
    base = request("image-to-video", seed=1, num_inference_steps=6, guidance_scale=3.0, guidance_scale_2=3.0)
    pixels = tiny.generate(family, base, PICTURE)
    assert torch.equal(tiny.generate(family, base, PICTURE), pixels)
    changed = {
        "prompt": {"prompt": "a house at night"},
        "negative prompt": {"negative_prompt": "a house"},
        "seed": {"seed": 2},
        "guidance": {"guidance_scale": 6.0},
        "second guidance": {"guidance_scale_2": 6.0},
        "sampler": {"sampler": "euler"},
    }
    for name, fields in changed.items():
        assert tiny.psnr(tiny.generate(family, dataclasses.replace(base, **fields), PICTURE), pixels) < 60, name
    assert tiny.psnr(tiny.generate(family, base, OTHER), pixels) < 60
    assert tiny.psnr(tiny.generate(family, base, PICTURE, OTHER), pixels) < 60


@pytest.mark.parametrize("variant", ["ti2v", "i2v"])
def test_bfloat16_stays_near_float32(wan, wan_folder, variant):
    low = tiny.load_ours(wan_folder(variant), torch.bfloat16)
    assert low.vae.module.dtype == torch.float32
    asked = request("image-to-video", num_inference_steps=3)
    trajectory = tiny.start(low, asked, PICTURE)
    advance([trajectory], low)
    assert trajectory.latents.dtype == torch.float32
    assert tiny.psnr(tiny.generate(low, asked, PICTURE), tiny.generate(wan(variant), asked, PICTURE)) > 30
