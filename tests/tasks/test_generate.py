"""One mechanism for every task: what a request becomes, in a group or alone, told or interrupted."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from petzval.engine.build import load
from petzval.errors import BadMediaError, BadRequestError, NotFiniteError, OutOfMemoryError
from petzval.media.images import encode_image
from petzval.sampling.trajectory import advance
from petzval.tasks import generate as tasks
from petzval.tasks.generate import begin, begin_group, decode, finish, generate, run
from petzval.tasks.result import Event
from petzval.types import InputImage, Request, TierRun
from tests.tasks.conftest import Load

SIZE: dict[str, Any] = {"width": 48, "height": 32, "num_inference_steps": 3}


def words(**fields: Any) -> Request:
    return Request(**{"task": "text-to-image", "prompt": "the fox", "seed": 3, **SIZE, **fields})


def picture(height: int = 40, width: int = 56) -> InputImage:
    pixels = np.random.default_rng(5).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return InputImage.of(encode_image(pixels.repeat(8, 0).repeat(8, 1), format="png"))


def from_picture(**fields: Any) -> Request:
    return words(**{"task": "image-to-image", "images": (picture(),), "strength": 0.7, **fields})


# -- alone ------------------------------------------------------------------------------------------------------------


def test_a_picture_is_its_trajectory(flux: Load) -> None:
    model = flux("schnell")
    result = generate(model, words())
    trajectory = begin(model, words())
    while not trajectory.done:
        advance([trajectory], model)
    assert result.pixels_THWC.shape == (1, 32, 48, 3)
    assert result.pixels_THWC.dtype == np.float32
    assert (result.pixels_THWC == decode(model, trajectory)).all()
    assert result.plan == trajectory.plan
    assert result.runs == model.runs


def test_a_wrapper_changes_nothing(flux: Load) -> None:
    model = flux("schnell")
    [trajectory] = begin_group(model.family, [words()])
    run(model.family, [trajectory])
    assert (decode(model.family, trajectory) == generate(model, words()).pixels_THWC).all()


@pytest.mark.parametrize(
    ("task", "images", "shape"),
    [
        ("text-to-image", 0, (1, 32, 48, 3)),
        ("image-to-image", 1, (1, 32, 48, 3)),
        ("text-to-video", 0, (3, 32, 48, 3)),
        ("image-to-video", 1, (3, 32, 48, 3)),
    ],
)
def test_every_task(task: Any, images: int, shape: tuple[int, ...], wan: Load) -> None:
    request = words(task=task, images=(picture(),) * images, num_frames=shape[0])
    result = generate(wan("pocket"), request)
    assert result.pixels_THWC.shape == shape
    assert 0 <= result.pixels_THWC.min() <= result.pixels_THWC.max() <= 1
    assert result.pixels_THWC.std() > 0.01
    other = generate(wan("pocket"), dataclasses.replace(request, seed=4))
    assert np.abs(other.pixels_THWC - result.pixels_THWC).max() > 0.01


def test_strength_starts_from_the_picture_at_its_noise(flux: Load) -> None:
    model = flux("dev")
    trajectory = begin(model, from_picture(num_inference_steps=10, strength=0.3))
    schedule = trajectory.plan.schedule
    assert trajectory.step == schedule.first_step == 7
    image = model.image_latents(trajectory.plan, trajectory.conditioning)
    sigma = schedule.sigmas[7]
    noise = (trajectory.latents - (1 - sigma) * image) / sigma
    assert abs(noise.mean().item()) < 0.3
    assert abs(noise.std().item() - 1) < 0.2
    weak, strong = (generate(model, from_picture(num_inference_steps=10, strength=s)) for s in (0.1, 1.0))
    near = model.decode(trajectory.plan, trajectory.conditioning, image).numpy()
    assert np.abs(weak.pixels_THWC - near).mean() < np.abs(strong.pixels_THWC - near).mean()


# -- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_is_each_alone(flux: Load) -> None:
    model = flux("dev")
    requests = [
        words(seed=1),
        words(seed=2, num_inference_steps=5),
        words(seed=1, prompt="another", guidance_scale=2.0, negative_prompt="grey"),
        words(seed=3, width=32, height=32),
        from_picture(seed=4),
    ]
    together = generate(model, requests)
    for request, result in zip(requests, together, strict=True):
        alone = generate(model, request)
        assert result.plan == alone.plan
        assert np.abs(result.pixels_THWC - alone.pixels_THWC).max() < 1e-5
        assert (result.group, alone.group) == (5, 1)


def test_seeds_share_an_encoding_and_pictures_do_not(flux: Load) -> None:
    group = begin_group(
        flux("dev"), [words(seed=1), words(seed=2), words(seed=2, prompt="x"), from_picture(), from_picture(seed=4)]
    )
    first, second, other, image, image_2 = group
    assert first.conditioning is second.conditioning
    assert first.invariants is second.invariants
    assert first.conditioning is not other.conditioning
    assert (first.latents != second.latents).any()
    assert image.conditioning is not image_2.conditioning


def test_one_bad_request_stops_all_before_any_is_encoded(flux: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = flux("dev")

    def encode(*args: object) -> None:
        pytest.fail("nothing may be encoded")

    monkeypatch.setattr(type(model.family), "encode", encode)
    with pytest.raises(BadRequestError, match="width must be a multiple of 16"):
        generate(model, [words(), words(width=47)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("prompt", value) for value in (None, 5, b"fox", ["fox"])),
        *(("negative_prompt", value) for value in (5, b"fox")),
        *(("task", value) for value in (None, 5, ["text-to-image"], "paint")),
        *(("tier", value) for value in (None, 5, "best")),
        *(("images", value) for value in (None, 5, "fox", (b"fox",), (None,), [picture()])),
        *(("seed", value) for value in (None, "3", 3.0, True)),
        *(("guidance_scale", value) for value in ("3", True, float("nan"), 10**400)),
    ],
)
def test_values_of_other_types_are_named(field: str, value: Any, flux: Load) -> None:
    with pytest.raises(BadRequestError, match=field):
        generate(flux("dev"), words(**{field: value}))


@pytest.mark.parametrize("value", [None, 5, "fox", ["fox"], [None], iter([])])
def test_what_is_no_request_is_refused(value: Any, flux: Load) -> None:
    with pytest.raises(BadRequestError, match=r"petzval\.Request"):
        generate(flux("dev"), value)


def test_nothing_is_asked(flux: Load) -> None:
    with pytest.raises(BadRequestError, match="requests must hold at least one"):
        generate(flux("dev"), [])


# -- nothing to show --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["transformer", "vae", "text_encoder"])
def test_weights_that_are_not_finite_make_no_picture(
    component: str, wan_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(wan_folder("pocket"), folder)
    [file] = (folder / component).glob("*.safetensors")
    save_file({name: torch.full_like(value, torch.inf) for name, value in load_file(file).items()}, file)
    with pytest.raises(NotFiniteError, match="not finite: the checkpoint's weights are damaged"):
        generate(load(str(folder), device="cpu"), words())


def test_a_step_that_leaves_no_numbers_ends_the_run(wan: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wan("pocket")
    [trajectory] = begin_group(model, [words()])
    run_one = type(model.family).predict
    monkeypatch.setattr(type(model.family), "predict", lambda *given: run_one(*given) / 0)
    with pytest.raises(NotFiniteError, match="the latents after step 1 "):
        run(model, [trajectory])
    assert trajectory.step == 1


# -- what is told -----------------------------------------------------------------------------------------------------


def test_events(flux: Load) -> None:
    events: list[Event] = []
    generate(flux("dev"), [words(), words(num_inference_steps=5)], events.append)
    told = [(e.kind, e.stage, e.step, e.num_steps) for e in events]
    expected = []
    for stage, steps in (("encode", 2), ("denoise", 5), ("decode", 2)):
        expected += [("started", stage, 0, 0), *(("step", stage, k + 1, steps) for k in range(steps))]
        expected += [("ended", stage, 0, 0)]
    assert told == expected
    assert all(e.seconds > 0 for e in events if e.kind != "started")


def test_seconds_cover_the_stages(flux: Load) -> None:
    first, second = generate(flux("dev"), [words(), words(seed=4)])
    assert list(first.seconds) == ["encode", "denoise", "decode"]
    assert first.seconds == second.seconds
    assert all(seconds > 0 for seconds in first.seconds.values())


def test_tiers_without_evidence_run_exact(flux: Load) -> None:
    exact, draft = generate(flux("dev"), [words(), words(tier="draft")])
    assert exact.plan.tier == TierRun()
    tier = draft.plan.tier
    assert (tier.asked, tier.ran, "evidence" in str(tier.why)) == ("draft", "exact", True)
    assert (exact.pixels_THWC == draft.pixels_THWC).all()


# -- what is interrupted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_leaves_a_step_boundary(at: int, flux: Load) -> None:
    model = flux("dev")
    whole = generate(model, words())
    trajectory = begin(model, words())

    def on_step(done: int, total: int, seconds: float) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, [trajectory], on_step)
    assert trajectory.step == at
    preview = decode(model, trajectory)
    assert preview.shape == whole.pixels_THWC.shape
    run(model, [trajectory])
    assert (finish(model, trajectory).pixels_THWC == whole.pixels_THWC).all()


def test_finishing_takes_a_done_trajectory(flux: Load) -> None:
    with pytest.raises(AssertionError, match="at step 0 of 3"):
        finish(flux("dev"), begin(flux("dev"), words()))


@pytest.mark.parametrize(
    ("size", "advice"),
    [(4, r"4 at a time do not fit .*: ask for fewer"), (1, r"1 at a time do not fit .*: ask for a smaller size")],
)
def test_memory_that_ran_out(size: int, advice: str) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(OutOfMemoryError, match=advice), tasks._memory_errors(cpu, size):
        torch.empty(2**50)
    with pytest.raises(OutOfMemoryError, match=advice), tasks._memory_errors(cpu, size):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="other"), tasks._memory_errors(cpu, size):
        raise RuntimeError("other")


# -- input pictures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({"width": 64, "height": None}, (64, 48)),
        ({"width": None, "height": 32}, (48, 32)),
        ({"width": 48, "height": 80}, (48, 80)),
    ],
)
def test_a_size_follows_the_picture(asked: dict[str, Any], size: tuple[int, int], flux: Load) -> None:
    plan = begin(flux("dev"), from_picture(**asked)).plan
    assert (plan.request.width, plan.request.height) == size


def test_a_size_nobody_asked_for_is_the_familys(wan: Load) -> None:
    model = wan("pocket")
    request = words(task="image-to-image", images=(picture(),), width=None, height=None)
    plan, _ = tasks._planned(model, request)
    assert (plan.request.width, plan.request.height) == model.natural_size("image-to-image", 56, 40)
    assert plan.request.width != plan.request.height


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (words(task="text-to-video"), BadRequestError, r"task 'text-to-video': flux \(dev\) can do"),
        (words(task="reference-to-video"), BadRequestError, r"can do text-to-image, image-to-image"),
        (words(task="image-to-image"), BadRequestError, "images: image-to-image takes 1, got 0"),
        (words(images=(picture(),)), BadRequestError, "images: text-to-image takes 0, got 1"),
        (from_picture(images=(InputImage.of(b"nothing"),)), BadMediaError, r"images\[0\]"),
        (from_picture(images=(InputImage(sha256="0" * 64),)), BadRequestError, r"images\[0\] is known by its digest"),
        (words(prompt="\udcff"), BadRequestError, "prompt is not valid text"),
        (words(negative_prompt="\ud800", guidance_scale=2.0), BadRequestError, "negative_prompt is not valid text"),
    ],
)
def test_what_cannot_be_done(request_: Request, error: type[Exception], message: str, flux: Load) -> None:
    with pytest.raises(error, match=message):
        generate(flux("dev"), request_)
