"""Scenes are drawn where and how they say, at every frame count and canvas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petzval.errors import BadRequestError, UnavailableError
from petzval.scenes import sprites
from petzval.scenes.backgrounds import background_image
from petzval.scenes.draw import (
    CANVAS,
    LATTICE,
    SIZE_PIXELS,
    Scene,
    allowed_positions,
    allowed_sizes,
    draw,
    placements,
    subject_mask,
)
from petzval.scenes.sample import sample_scene
from petzval.scenes.vocabulary import (
    BACKGROUNDS,
    DRAWN_BACKGROUNDS,
    MOTIONS,
    NUM_VARIANTS,
    POSITIONS,
    SUBJECT_GLYPHS,
    SUBJECTS,
)


@st.composite
def scenes(draw_value: st.DrawFn) -> Scene:
    motion = draw_value(st.sampled_from((None, *MOTIONS)))
    jitter = st.integers(-5, 5).map(lambda steps: LATTICE * steps)
    return Scene(
        subject=draw_value(st.sampled_from(SUBJECTS)),
        background=draw_value(st.sampled_from(BACKGROUNDS)),
        size=draw_value(st.sampled_from(allowed_sizes(motion))),
        position=draw_value(st.sampled_from(allowed_positions(motion))),
        motion=motion,
        jitter_x=draw_value(jitter),
        jitter_y=draw_value(jitter),
        variant=draw_value(st.integers(0, NUM_VARIANTS - 1)),
    )


def test_vocabulary_is_as_large_as_promised() -> None:
    assert len(SUBJECTS) >= 48
    assert (len(DRAWN_BACKGROUNDS), len(BACKGROUNDS), len(MOTIONS)) == (6, 15, 8)
    assert len(set(SUBJECT_GLYPHS.values())) == len(SUBJECTS)
    assert all(name.replace(" ", "").isalpha() and name.islower() for name in (*SUBJECTS, *BACKGROUNDS))


def test_subjects_look_different() -> None:
    """No two sprites are closer than a fifth of the usual squared distance, so that none stand for another."""
    grey_HWC = np.full((48, 48, 3), 128, np.float32)
    looks = np.stack([s.colour_HWC + s.clear_HWC * grey_HWC for s in (sprites.sprite(n, 48) for n in SUBJECTS)])
    flat = looks.reshape(len(SUBJECTS), -1)
    distances = [float(np.square(flat[a] - flat[b]).mean()) for a, b in itertools.combinations(range(len(flat)), 2)]
    assert min(distances) > 0.2 * float(np.median(distances))


@given(scenes(), st.integers(1, 12))
def test_every_frame_is_background_outside_the_mask_and_sprite_inside(scene: Scene, num_frames: int) -> None:
    frames = draw(scene, num_frames=num_frames)
    mask = subject_mask(scene, num_frames=num_frames)
    assert (frames.shape, frames.dtype) == ((num_frames, CANVAS, CANVAS, 3), np.uint8)
    assert (mask.shape, mask.dtype) == ((num_frames, CANVAS, CANVAS), np.float32)
    assert mask.min() >= 0
    assert mask.max() == 1
    lights = range(num_frames)
    background = np.stack([background_image(scene.background, scene.variant, CANVAS, frame=t) for t in lights])
    assert np.array_equal(frames[mask == 0], background[mask == 0])
    hidden = mask == 1
    elsewhere = draw(Scene(**{**vars(scene), "background": "plain white", "variant": 0}), num_frames=num_frames)
    assert np.array_equal(frames[hidden], elsewhere[hidden])


@given(scenes(), st.integers(2, 12))
def test_subject_is_on_the_lattice_and_mostly_inside(scene: Scene, num_frames: int) -> None:
    for place in placements(scene, num_frames=num_frames):
        assert place.x % LATTICE == place.y % LATTICE == 0
        for centre in (place.x, place.y):
            assert place.pixels / 2 - 8 <= centre <= CANVAS - place.pixels / 2 + 8


@given(scenes(), st.integers(1, 8))
def test_a_short_clip_is_the_beginning_of_a_long_one(scene: Scene, num_frames: int) -> None:
    assert np.array_equal(draw(scene, num_frames=num_frames), draw(scene, num_frames=9)[:num_frames])


@given(scenes())
def test_motion_does_what_it_says(scene: Scene) -> None:
    track = placements(scene, num_frames=9)
    first, last = track[0], track[-1]
    moved = {"right": last.x - first.x, "down": last.y - first.y, "grows": last.pixels - first.pixels}
    opposite = {"left": "right", "up": "down", "shrinks": "grows"}
    axis = opposite.get(scene.motion or "", scene.motion)
    for name, change in moved.items():
        if name != axis:
            assert change == 0
        elif scene.motion in opposite:
            assert change <= 0
        else:
            assert change >= 0
    heights = {place.y for place in track}
    if scene.motion == "bounces":
        assert len(heights) >= 2
    elif axis != "down":
        assert len(heights) == 1


def test_sampled_motions_go_far_enough_to_be_seen() -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        scene = sample_scene(rng, video=True)
        track = placements(scene, num_frames=9)
        way = max(abs(track[-1].x - track[0].x), abs(track[-1].y - track[0].y))
        if scene.motion in ("left", "right", "up", "down"):
            assert way >= 24
        elif scene.motion in ("grows", "shrinks"):
            assert abs(track[-1].pixels - track[0].pixels) == 32


def test_pictures_and_clips_share_lattice_phases_and_first_frames() -> None:
    """Every centre of a picture is a centre of some clip: the autoencoder of pictures serves clips."""
    rng = np.random.default_rng(1)
    pictures, clips, starts = set(), set(), set()
    for _ in range(3000):
        (place,) = placements(sample_scene(rng, video=False))
        pictures.add((place.x % 16, place.y % 16))
        track = placements(sample_scene(rng, video=True), num_frames=9)
        clips |= {(place.x % 16, place.y % 16) for place in track}
        starts.add(track[0].pixels)
    assert pictures == clips == {(x, y) for x in (0, 8) for y in (0, 8)}
    assert starts == set(SIZE_PIXELS.values())


def test_positions_are_apart() -> None:
    reach = {position: set[int]() for position in POSITIONS}
    rng = np.random.default_rng(2)
    for _ in range(500):
        scene = sample_scene(rng, video=False)
        reach[scene.position].add(placements(scene)[0].x)
    assert max(reach["left"]) + 16 <= min(reach["middle"])
    assert max(reach["middle"]) + 16 <= min(reach["right"])


@pytest.mark.parametrize("canvas", [64, 256])
def test_other_canvases_scale_the_scene(canvas: int) -> None:
    scene = Scene("castle", "mountains", "small", "left", "up")
    scaled = draw(scene, num_frames=3, canvas=canvas).astype(float)
    reference = draw(scene, num_frames=3).astype(float)
    factor = max(canvas, CANVAS) // min(canvas, CANVAS)
    large, small = (scaled, reference) if canvas > CANVAS else (reference, scaled)
    side = small.shape[1]
    halved = large.reshape(3, side, factor, side, factor, 3).mean((2, 4))
    assert np.abs(halved - small).mean() < 2
    assert subject_mask(scene, canvas=canvas).shape == (1, canvas, canvas)


def test_backgrounds_and_their_variants_differ() -> None:
    images = [background_image(name, variant, CANVAS) for name in BACKGROUNDS for variant in range(NUM_VARIANTS)]
    assert len({image.tobytes() for image in images}) == len(images)


def test_caches_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        background_image("snow", 0, CANVAS)[0, 0] = 0
    with pytest.raises(ValueError, match="read-only"):
        sprites.sprite("fox", 44).colour_HWC[0, 0] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subject": "dragon"}, "subject 'dragon' is not one of fox, lion"),
        ({"background": "moon"}, "background 'moon' is not one of grass"),
        ({"size": "huge"}, "size 'huge' is not one of small, large"),
        ({"position": "top"}, "position 'top' is not one of left, middle, right"),
        ({"motion": "spins"}, "motion 'spins' is not one of None, left"),
        ({"variant": 3}, "variant 3 is not one of 0, 1, 2"),
        ({"jitter_x": 5}, "jitter_x must be a multiple of 8 within 40, got 5; nearest: 8"),
        ({"jitter_y": -96}, "jitter_y must be a multiple of 8 within 40, got -96; nearest: -40"),
        ({"motion": "right", "position": "right"}, "motion 'right' cannot start with position 'right'; allowed: left"),
        ({"motion": "grows", "size": "large"}, "motion 'grows' cannot start with size 'large'; allowed: small"),
    ],
)
def test_impossible_scenes_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        Scene(**{"subject": "fox", "background": "snow", **change})  # type: ignore[arg-type]


def test_impossible_frames_and_canvases_are_refused() -> None:
    scene = Scene("fox", "snow")
    with pytest.raises(BadRequestError, match="canvas must be a positive multiple of 16, got 100; nearest: 96"):
        draw(scene, canvas=100)
    with pytest.raises(BadRequestError, match="num_frames must be at least 1, got 0"):
        draw(scene, num_frames=0)


def test_missing_font_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PETZVAL_EMOJI_FONT", f"{tmp_path}/none.ttf")
    with pytest.raises(UnavailableError, match=r"none\.ttf .*apt-get install fonts-noto-color-emoji"):
        sprites.load_font()


def test_font_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    with open(f"{tmp_path}/text.ttf", "wb") as file:
        file.write(b"no font at all")
    monkeypatch.setenv("PETZVAL_EMOJI_FONT", f"{tmp_path}/text.ttf")
    with pytest.raises(UnavailableError, match="PETZVAL_EMOJI_FONT"):
        sprites.load_font()
