"""The bundled pocket checkpoint: diffusers gets the same from it, and it shows what it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from PIL import Image

from petzval.engine.build import load
from petzval.engine.model import Model
from petzval.media.images import encode_image, to_uint8
from petzval.models.checkpoint import BUNDLED
from petzval.tasks.generate import generate
from petzval.tasks.judge import JudgeConfig, judge
from petzval.types import InputImage, Request

PROMPT = "a large fox on the left, a beach"


@pytest.fixture(scope="module")
def pocket() -> Model:
    return load("pocket", device="cpu")


@pytest.fixture(scope="module")
def pipeline() -> WanPipeline:
    pipeline = WanPipeline.from_pretrained(BUNDLED / "pocket")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(1 / np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)))


@pytest.mark.parametrize(("task", "num_frames"), [("text-to-image", 1), ("text-to-video", 9)])
def test_diffusers_makes_the_same_of_it_parity(
    pocket: Model, pipeline: WanPipeline, parity_row: Callable[..., None], task: str, num_frames: int
) -> None:
    steps = 8
    # diffusers makes n frames into n + 1 where the autoencoder does not compress time, so it is asked for one less.
    theirs = pipeline(
        PROMPT,
        width=128,
        height=128,
        num_frames=num_frames - 1,
        num_inference_steps=steps,
        guidance_scale=pocket.spec.tasks[task].guidance_scale,  # type: ignore[index]
        generator=torch.Generator().manual_seed(7),
    ).frames[0]
    request = Request(task=task, prompt=PROMPT, seed=7, num_inference_steps=steps)  # type: ignore[arg-type]
    ours = generate(pocket, request).pixels_THWC
    assert ours.shape == theirs.shape == (num_frames, 128, 128, 3)
    same = psnr(ours, theirs)
    parity_row("pocket", task, "prompt to pixels, PSNR", f"{same:.0f} dB")
    assert same >= 60


def test_diffusers_animates_a_picture_the_same_parity(
    pocket: Model, pipeline: WanPipeline, parity_row: Callable[..., None]
) -> None:
    picture = to_uint8(
        generate(pocket, Request(task="text-to-image", prompt=PROMPT, num_inference_steps=4)).pixels_THWC
    )[0]
    animator = WanImageToVideoPipeline(
        **{**pipeline.components, "image_processor": None, "image_encoder": None}, expand_timesteps=True
    )
    animator.set_progress_bar_config(disable=True)
    theirs = animator(
        Image.fromarray(picture),
        "the fox moves right",
        negative_prompt="",
        width=128,
        height=128,
        num_frames=8,
        num_inference_steps=6,
        guidance_scale=pocket.spec.tasks["image-to-video"].guidance_scale,
        generator=torch.Generator().manual_seed(3),
    ).frames[0]
    image = InputImage.of(encode_image(picture, format="png"))
    request = Request(
        task="image-to-video", prompt="the fox moves right", seed=3, num_inference_steps=6, images=(image,)
    )
    ours = generate(pocket, request).pixels_THWC
    same = psnr(ours, theirs)
    parity_row("pocket", "image-to-video", "prompt and picture to pixels, PSNR", f"{same:.0f} dB")
    assert same >= 60
    assert psnr(ours[0], picture / 255) >= 24, "the first frame is the given picture, as the autoencoder sees it"


def test_pictures_show_what_was_asked(pocket: Model) -> None:
    accuracy = judge(pocket, JudgeConfig(prompts=24, seed=1, batch=12, num_inference_steps=20), video=False).overall()
    found = {name: accuracy[name].share for name in ("background", "size", "position", "subject")}
    assert found["position"] >= 0.8, found
    assert found["background"] >= 0.95, found
    assert found["size"] >= 0.8, found
    assert found["subject"] >= 0.6, found


def test_clips_show_what_was_asked_and_move_as_they_were_told(pocket: Model) -> None:
    accuracy = judge(pocket, JudgeConfig(prompts=8, seed=1, batch=4, num_inference_steps=16), video=True).overall()
    assert accuracy["subject"].right >= 5, accuracy
    assert accuracy["motion"].right >= 4, accuracy  # a chance of one in eight each
    assert accuracy["background"].share >= 0.8, accuracy


def test_little_strength_keeps_a_picture_and_full_strength_makes_another(pocket: Model) -> None:
    start = generate(pocket, Request(task="text-to-image", prompt=PROMPT, seed=7, num_inference_steps=12)).pixels_THWC
    image = InputImage.of(encode_image(to_uint8(start)[0], format="png"))

    def again(strength: float) -> float:
        request = Request(
            task="image-to-image",
            prompt="a large fox on the left, snow",
            seed=7,
            num_inference_steps=12,
            strength=strength,
            images=(image,),
        )
        return float(np.abs(generate(pocket, request).pixels_THWC - start).mean())

    assert again(0.1) < 0.5 * again(1.0)
