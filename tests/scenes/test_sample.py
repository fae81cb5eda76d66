"""The split is fixed and disjoint; samples and prompts are deterministic and balanced."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest

from petzval.errors import BadRequestError
from petzval.scenes.sample import held_out_pairs, is_held_out, judge_prompts, sample_scene
from petzval.scenes.vocabulary import BACKGROUNDS, MOTIONS, POSITIONS, SIZES, SUBJECTS


def fingerprint(pairs: frozenset[tuple[str, str]]) -> str:
    return hashlib.sha256(repr(sorted(pairs)).encode()).hexdigest()[:12]


def test_a_tenth_of_the_pairs_is_held_out() -> None:
    pairs = held_out_pairs()
    assert len(pairs.subject_background) == round(0.1 * len(SUBJECTS) * len(BACKGROUNDS))
    assert len(pairs.subject_motion) == round(0.1 * len(SUBJECTS) * len(MOTIONS))


def test_held_out_pairs_never_change() -> None:
    """Shipped weights were trained without exactly these: another split would make their numbers untrue."""
    pairs = held_out_pairs()
    assert fingerprint(pairs.subject_background) == "c497623cc170"
    assert fingerprint(pairs.subject_motion) == "d719c3381439"


def test_every_name_is_still_trained() -> None:
    pairs = held_out_pairs()
    for kind, others in ((pairs.subject_background, BACKGROUNDS), (pairs.subject_motion, MOTIONS)):
        subjects, names = (Counter(pair[side] for pair in kind) for side in (0, 1))
        assert max(subjects.values()) <= len(others) / 2
        assert max(names.values()) <= len(SUBJECTS) / 3


@pytest.mark.parametrize("video", [False, True])
def test_splits_are_disjoint(*, video: bool) -> None:
    rng = np.random.default_rng(0)
    assert not any(is_held_out(sample_scene(rng, video=video)) for _ in range(2000))
    held_out = [sample_scene(rng, video=video, split="held_out") for _ in range(500)]
    assert all(is_held_out(scene) for scene in held_out)
    assert all((scene.motion is not None) == video for scene in held_out)


@pytest.mark.parametrize("video", [False, True])
def test_samples_cover_all_trained_names(*, video: bool) -> None:
    rng = np.random.default_rng(0)
    sampled = [sample_scene(rng, video=video) for _ in range(2000)]
    assert {scene.subject for scene in sampled} == set(SUBJECTS)
    assert {scene.background for scene in sampled} == set(BACKGROUNDS)
    assert {(scene.size, scene.position) for scene in sampled} == {(s, p) for s in SIZES for p in POSITIONS}
    assert {scene.motion for scene in sampled} == (set(MOTIONS) if video else {None})
    if not video:
        assert {(scene.jitter_x, scene.jitter_y) for scene in sampled} == {
            (x, y) for x in (-8, 0, 8) for y in (-8, 0, 8)
        }


def test_same_generator_same_scene() -> None:
    sampled = [[sample_scene(rng, video=True) for _ in range(20)] for rng in map(np.random.default_rng, (1, 1, 2))]
    assert sampled[0] == sampled[1] != sampled[2]


def test_unknown_split_is_refused() -> None:
    with pytest.raises(BadRequestError, match="split must be 'train' or 'held_out', got 'test'"):
        sample_scene(np.random.default_rng(0), video=False, split="test")  # type: ignore[arg-type]


@pytest.mark.parametrize("video", [False, True])
def test_prompts_are_deterministic_balanced_and_half_held_out(*, video: bool) -> None:
    prompts = judge_prompts(256, seed=7, video=video)
    assert prompts == judge_prompts(256, seed=7, video=video)
    assert prompts[:31] == judge_prompts(31, seed=7, video=video)
    assert prompts != judge_prompts(256, seed=8, video=video)
    assert [is_held_out(scene) for scene, _ in prompts] == [False, True] * 128
    trained = [scene for scene, _ in prompts[::2]]
    for names, name in (
        (SUBJECTS, "subject"),
        (MOTIONS if video else BACKGROUNDS, "motion" if video else "background"),
    ):
        counts = Counter(getattr(scene, name) for scene in trained)
        assert set(counts) == set(names)
        assert max(counts.values()) - min(counts.values()) <= 2


@pytest.mark.parametrize("video", [False, True])
def test_prompts_of_held_out_pairs_state_the_pair(*, video: bool) -> None:
    pairs = held_out_pairs()
    for scene, told in judge_prompts(120, seed=0, video=video):
        if (scene.subject, scene.background) in pairs.subject_background:
            assert "background" in told.states
        if (scene.subject, scene.motion) in pairs.subject_motion:
            assert "motion" in told.states
        assert {"subject"} < told.states
        assert scene.subject in told.text


def test_no_prompts_is_refused() -> None:
    with pytest.raises(BadRequestError, match="count must be at least 1, got 0"):
        judge_prompts(0, seed=0, video=False)
