"""Captions say what the scene shows, in the promised styles, and tell which attributes they state."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petzval.scenes.captions import (
    CLIP_TEMPLATES,
    MOVES,
    PICTURE_TEMPLATES,
    WHERE,
    canonical_caption,
    caption,
    telling_caption,
)
from petzval.scenes.draw import Scene
from petzval.scenes.sample import sample_scene
from petzval.scenes.vocabulary import ATTRIBUTES, BACKGROUNDS, MOTIONS, SIZES, SUBJECTS

FOX = Scene("fox", "beach", "large", "left")


def wordings(scene: Scene) -> set[str]:
    rng = np.random.default_rng(0)
    return {caption(scene, rng).text for _ in range(1000)}


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        (FOX, "a large fox on the left, a beach"),
        (Scene("rocket", "night sky", "small", motion="up"), "a small rocket flies up, the night sky"),
        (Scene("fox", "snow"), "the fox, in snow"),
        (Scene("fox", "snow", motion="right"), "the fox moves right"),
        (Scene("apple", "plain red"), "an apple on a plain red background"),
        (Scene("unicorn", "plain red"), "a unicorn on a plain red background"),
        (Scene("grapes", "grass", motion="still"), "grapes do not move, grass"),
        (Scene("grapes", "grass", motion="up"), "the grapes fly up"),
    ],
)
def test_promised_styles_occur(scene: Scene, text: str) -> None:
    assert text in wordings(scene)


def test_enough_templates() -> None:
    assert len(PICTURE_TEMPLATES) >= 6
    assert len(CLIP_TEMPLATES) >= 6
    assert len(wordings(FOX)) == len(PICTURE_TEMPLATES)


@pytest.mark.parametrize("video", [False, True])
@given(seed=st.integers(0, 2**32))
def test_caption_contains_what_it_states_and_nothing_else(*, video: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = sample_scene(rng, video=video)
    told = caption(scene, rng)
    assert told.states <= set(ATTRIBUTES)
    assert ("motion" in told.states) == video
    assert re.search(rf"\b{scene.subject}\b", told.text)
    assert (scene.background.removeprefix("plain ").split()[-1] in told.text) == ("background" in told.states)
    assert [size in told.text.split() for size in SIZES] == [
        "size" in told.states and size == scene.size for size in SIZES
    ]
    assert [phrase in told.text for phrase in WHERE.values()] == [
        "position" in told.states and position == scene.position for position in WHERE
    ]


def test_canonical_caption_states_everything_and_tells_all_scenes_apart() -> None:
    assert canonical_caption(FOX).text == "a large fox on the left, a beach"
    assert canonical_caption(FOX).states == set(ATTRIBUTES) - {"motion"}
    motions = [motion for motion in MOTIONS if motion != "shrinks"]
    clips = [Scene(subject, "snow", "small", "middle", motion) for subject in SUBJECTS for motion in motions]
    clips += [Scene("fox", background, "large", motion="shrinks") for background in BACKGROUNDS]
    told = [canonical_caption(scene) for scene in clips]
    assert len({one.text for one in told}) == len(clips)
    assert all(one.states == set(ATTRIBUTES) for one in told)


def test_wordings_of_motions_do_not_overlap() -> None:
    phrases = [phrase for wording in MOVES.values() for phrase in wording]
    assert set(MOVES) == set(MOTIONS)
    assert len(phrases) == len(set(phrases))


def test_captions_depend_on_the_generator_alone() -> None:
    texts = [[caption(FOX, rng).text for _ in range(20)] for rng in map(np.random.default_rng, (5, 5, 6))]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("video", [False, True])
def test_a_telling_caption_leaves_out_only_defaults(video: bool) -> None:
    rng = np.random.default_rng(0)
    left_out = set()
    for _ in range(400):
        scene = sample_scene(rng, video=video)
        states = telling_caption(scene, rng).states
        defaults = {
            "size": "small" if scene.motion == "grows" else "large",
            "position": {"left": "right", "right": "left"}.get(scene.motion or "", "middle"),
        }
        for name, default in defaults.items():
            assert name in states or getattr(scene, name) == default
            left_out |= {name} - states
    assert left_out == set(defaults), "what is default may be left out"
