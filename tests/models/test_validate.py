"""Requests against a made-up checkpoint's facts: pictures and clips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petzval.errors import BadRequestError
from petzval.models.validate import complete, fit_size, nearest_frames, nearest_multiple
from petzval.types import DiTSpec, InputImage, ModelSpec, Request, TaskDefaults

SPEC = ModelSpec(
    family="made-up",
    variant="test",
    licence="Apache-2.0",
    tasks={
        "text-to-video": TaskDefaults(
            width=64, height=32, num_inference_steps=50, guidance_scale=5.0, num_frames=9, fps=8,
            guidance_scale_2=3.0, negative_prompt="blurry",
        ),
        "image-to-video": TaskDefaults(
            width=64, height=32, num_inference_steps=50, guidance_scale=1.0, num_frames=9, fps=8, max_images=2,
        ),
    },
    dit=DiTSpec(blocks=(), column_split=(), row_split=(), keep_full_precision=(), sequence_inputs=()),
    prediction="velocity",
    samplers=("unipc", "euler"),
    size_multiple=32,
    frame_stride=4,
    max_prompt_tokens=512,
)  # fmt: skip
IMAGE = InputImage.of(b"x")


def clip(**fields) -> Request:
    return Request(**{"task": "text-to-video", "prompt": "a fox", **fields})


def test_everything_left_out_is_filled_in():
    done = complete(clip(seed=3), SPEC)
    assert done == clip(
        seed=3, width=64, height=32, num_frames=9, fps=8, num_inference_steps=50, guidance_scale=5.0,
        guidance_scale_2=3.0, negative_prompt="blurry", sampler="unipc",
    )  # fmt: skip
    assert complete(done, SPEC) == done


def test_what_is_given_stays():
    given_ = clip(
        seed=3, width=96, height=64, num_frames=1, fps=24, num_inference_steps=2, guidance_scale=1.5,
        guidance_scale_2=1.0, negative_prompt="", sampler="euler",
    )  # fmt: skip
    assert complete(given_, SPEC) == given_


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_frames": 10}, "num_frames must be 1 plus a multiple of 4, got 10; the nearest is 9"),
        ({"num_frames": 0}, "num_frames must be a whole number from 1, got 0"),
        ({"num_frames": True}, "num_frames must be a whole number from 1, got True"),
        ({"width": 47}, "width must be a multiple of 32, got 47; the nearest is 32"),
        ({"width": 17000}, "width must be a whole number from 1 to 16384, got 17000"),
        ({"height": 48}, "height must be a multiple of 32, got 48; the nearest is 64"),
        ({"fps": 0}, "fps must be a whole number from 1 to 240, got 0"),
        ({"guidance_scale": float("inf")}, "guidance_scale must be a number of at least 1, got inf"),
        ({"guidance_scale_2": 0}, "guidance_scale_2 must be a number of at least 1, got 0"),
        ({"embedded_guidance": 3.5}, "embedded_guidance has no effect on text-to-video"),
        ({"num_inference_steps": 1001}, "num_inference_steps must be a whole number from 1 to 1000, got 1001"),
        ({"seed": 2**63}, "seed must be a whole number from 0"),
        ({"task": "image-to-video"}, "images: image-to-video takes 1 to 2, got 0"),
        ({"task": "image-to-video", "images": (IMAGE,) * 3}, "images: image-to-video takes 1 to 2, got 3"),
        ({"task": "text-to-image"}, "task 'text-to-image': made-up (test) can do text-to-video, image-to-video"),
        ({"guidance_scale": 1, "guidance_scale_2": 1, "negative_prompt": ""}, "negative_prompt has no effect"),
    ],
)
def test_what_cannot_be_done_is_named(fields, message):
    with pytest.raises(BadRequestError) as refusal:
        complete(clip(**fields), SPEC)
    assert message in str(refusal.value)


def test_either_expert_s_guidance_keeps_the_negative_prompt():
    done = complete(clip(guidance_scale=1.0, negative_prompt="grey"), SPEC)
    assert done.negative_prompt == "grey"
    quiet = complete(clip(guidance_scale=1.0, guidance_scale_2=1.0), SPEC)
    assert quiet.negative_prompt is None


@given(value=st.integers(1, 10_000), multiple=st.integers(1, 64))
def test_nearest_multiple(value, multiple):
    near = nearest_multiple(value, multiple)
    assert near > 0
    assert near % multiple == 0
    assert abs(near - value) <= abs(multiple - value)
    assert value < multiple or abs(near - value) <= multiple / 2


@given(value=st.integers(1, 2000), stride=st.integers(1, 16))
def test_nearest_frames(value, stride):
    near = nearest_frames(value, stride)
    assert near >= 1
    assert (near - 1) % stride == 0
    assert abs(near - value) <= stride / 2


@given(width=st.integers(64, 4000), height=st.integers(64, 4000), multiple=st.sampled_from([8, 16, 32]))
def test_fit_size_keeps_area_and_shape_within_rounding(width, height, multiple):
    area = 1024 * 1024
    fitted_width, fitted_height = fit_size(width, height, area=area, multiple=multiple)
    ideal = (area * width / height) ** 0.5
    assert fitted_width % multiple == fitted_height % multiple == 0
    assert fitted_width == multiple or abs(fitted_width - ideal) <= multiple / 2 + 1e-6
    assert fitted_height == multiple or abs(fitted_height - area / ideal) <= multiple / 2 + 1e-6
