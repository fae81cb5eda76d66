"""The judge reads drawn scenes back, corrupted ones nearly as well, and nothing where there is nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from petzval.errors import BadRequestError
from petzval.scenes.backgrounds import background_image
from petzval.scenes.draw import Scene, draw
from petzval.scenes.judge import Verdict, judge, score
from petzval.scenes.sample import judge_prompts
from petzval.scenes.vocabulary import ATTRIBUTES, BACKGROUNDS, NUM_VARIANTS
from tests.scenes.corrupt import CORRUPTIONS, Picture, noise

# Least shares read right, (background, subject, all others), of 45 scenes drawn by other seeds than the floors.
FLOORS = {
    "jpeg": (0.97, 0.97, 0.97),
    "noise": (0.97, 0.97, 0.97),
    "shift": (0.97, 0.97, 0.97),
    "hue": (0.95, 0.93, 0.95),
    "blur": (0.97, 0.97, 0.97),
    "pca": (0.97, 0.97, 0.97),
    "all_of_it": (0.97, 0.95, 0.97),
}


def shares(scenes: list[Scene], verdicts: list[Verdict]) -> dict[str, float]:
    """Of each attribute the share read right, and of all of them together."""
    right: Counter[str] = Counter()
    for scene, verdict in zip(scenes, verdicts, strict=True):
        marks = score(scene, set(ATTRIBUTES), verdict)
        right.update(name for name, good in marks.items() if good)
        right["everything"] += all(marks.values())
    return {name: right[name] / len(scenes) for name in (*ATTRIBUTES, "everything")}


def prompted(count: int, *, seed: int, video: bool) -> list[Scene]:
    return [scene for scene, _ in judge_prompts(count, seed=seed, video=video)]


def test_reads_drawn_pictures() -> None:
    scenes = prompted(240, seed=0, video=False)
    assert shares(scenes, [judge(draw(scene)) for scene in scenes])["everything"] >= 0.98


def test_reads_drawn_clips() -> None:
    scenes = prompted(64, seed=1, video=True)
    assert shares(scenes, [judge(draw(scene, num_frames=9)) for scene in scenes])["everything"] >= 0.98


@pytest.mark.parametrize("num_frames", [3, 5, 13])
def test_reads_clips_of_other_lengths(num_frames: int) -> None:
    scenes = prompted(16, seed=2, video=True)
    read = shares(scenes, [judge(draw(scene, num_frames=num_frames)) for scene in scenes])
    assert read["subject"] == read["background"] == 1
    assert read["motion"] >= 0.93


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_reads_corrupted_pictures(name: str) -> None:
    rng = np.random.default_rng(4)
    scenes = prompted(45, seed=3, video=False)
    read = shares(scenes, [judge(CORRUPTIONS[name](draw(scene)[0], rng)[None]) for scene in scenes])
    background, subject, others = FLOORS[name]
    assert read["background"] >= background
    assert read["subject"] >= subject
    assert min(read["size"], read["position"], read["motion"]) >= others


@pytest.mark.parametrize("name", ["jpeg", "hue", "all_of_it"])
def test_reads_corrupted_clips(name: str) -> None:
    rng = np.random.default_rng(6)
    scenes = prompted(16, seed=5, video=True)
    clips = [np.stack([CORRUPTIONS[name](f, rng) for f in draw(scene, num_frames=9)]) for scene in scenes]
    read = shares(scenes, [judge(clip) for clip in clips])
    assert min(read.values()) >= 0.87


def test_a_flickering_clip_is_still_read() -> None:
    """Two of nine frames show nothing but the background."""
    frames = draw(Scene("whale", "grass", "small", "left", "right"), num_frames=9)
    frames[[0, 5]] = background_image("grass", 0, 128)
    verdict = judge(frames)
    assert (verdict.subject, verdict.motion, verdict.position) == ("whale", "right", "left")


@pytest.mark.parametrize("name", ["drawn", *CORRUPTIONS])
def test_blank_backgrounds_show_no_subject(name: str) -> None:
    rng = np.random.default_rng(8)
    for index, background in enumerate(BACKGROUNDS):
        picture: Picture = background_image(background, index % NUM_VARIANTS, 128)
        verdict = judge((picture if name == "drawn" else CORRUPTIONS[name](picture, rng))[None])
        assert verdict.subject is None, f"{background}: {verdict}"
        assert verdict.confidence < 0.45
        if name == "drawn":
            assert (verdict.background, verdict.size, verdict.position) == (background, None, None)


def test_blank_clip_has_no_motion() -> None:
    frames = np.repeat(background_image("city street", 1, 128)[None], 9, axis=0)
    verdict = judge(np.stack([noise(frame, np.random.default_rng(1)) for frame in frames]))
    assert (verdict.subject, verdict.motion, verdict.background) == (None, None, "city street")


def test_a_thing_that_is_no_subject_has_a_place_but_no_name() -> None:
    image = Image.fromarray(background_image("night sky", 0, 128))
    ImageDraw.Draw(image).rectangle((64, 40, 127, 103), fill=(20, 160, 130))
    verdict = judge(np.asarray(image)[None])
    assert (verdict.subject, verdict.size, verdict.position) == (None, "large", "right")


@pytest.mark.parametrize("variant", range(NUM_VARIANTS))
def test_a_mixture_of_a_backgrounds_drawings_is_that_background(variant: int) -> None:
    halves = [draw(Scene("panda", "mountains", variant=v))[0] for v in (variant, (variant + 1) % NUM_VARIANTS)]
    mixed = np.concatenate((halves[0][:, :64], halves[1][:, 64:]), 1)
    verdict = judge(mixed[None])
    assert (verdict.background, verdict.subject, verdict.position) == ("mountains", "panda", "middle")


@pytest.mark.parametrize("canvas", [64, 256])
def test_reads_other_sides(canvas: int) -> None:
    scene = Scene("castle", "beach", "small", "right", "grows")
    verdict = judge(draw(scene, num_frames=5, canvas=canvas))
    assert all(score(scene, set(ATTRIBUTES), verdict).values())


def test_same_pixels_same_verdict() -> None:
    frames = draw(Scene("robot", "snow", motion="bounces"), num_frames=9)
    before = frames.copy()
    assert judge(frames) == judge(frames)
    assert np.array_equal(frames, before)


def test_confidence_falls_with_damage() -> None:
    frame = draw(Scene("lion", "plain blue", "small"))[0]
    rng = np.random.default_rng(2)
    clean, damaged = judge(frame[None]), judge(CORRUPTIONS["all_of_it"](frame, rng)[None])
    assert 1 >= clean.confidence > damaged.confidence > 0.45
    assert 1 >= clean.margin > damaged.margin > 0


def test_score_marks_only_what_was_stated() -> None:
    scene = Scene("fox", "snow", "small", "left")
    verdict = judge(draw(Scene("fox", "snow", "large", "left")))
    assert score(scene, frozenset({"subject", "size"}), verdict) == {"subject": True, "size": False}
    assert score(scene, frozenset({"background", "position"}), verdict) == {"background": True, "position": True}


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((128, 128, 3), np.uint8),
        np.zeros((0, 128, 128, 3), np.uint8),
        np.zeros((1, 128, 64, 3), np.uint8),
        np.zeros((1, 128, 128, 4), np.uint8),
        np.zeros((1, 128, 128, 3), np.float32),
    ],
)
def test_other_arrays_are_refused(frames: NDArray[np.uint8]) -> None:
    with pytest.raises(BadRequestError, match="frames must be uint8 of shape T x side x side x 3, got"):
        judge(frames)
