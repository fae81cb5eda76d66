"""Draws scenes at random, and keeps a fixed share of subject-background and subject-motion pairs out of training."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from petzval.errors import BadRequestError
from petzval.scenes.captions import Caption, caption
from petzval.scenes.draw import LATTICE, Scene, allowed_positions, allowed_sizes
from petzval.scenes.vocabulary import BACKGROUNDS, MOTIONS, NUM_VARIANTS, SUBJECTS

HELD_OUT_SHARE = 0.1
JITTERS = (-LATTICE, 0, LATTICE)
# Clips that go up or down start anywhere from the far border to where a picture's subject rests,
# so that a picture can be a clip's first frame.
CLIP_JITTERS_Y = {"up": (-24, -16, -8, 0), "down": (0, 8, 16, 24, 32, 40)}
DIRECTED = 0.75
"""Share of clips moving left or right that start at the opposite side, with the longest way to go."""

Split = Literal["train", "held_out"]
Pair = tuple[str, str]
Item = TypeVar("Item")


class HeldOut(NamedTuple):
    """Pairs that no training scene shows."""

    subject_background: frozenset[Pair]
    subject_motion: frozenset[Pair]


@lru_cache(maxsize=1)
def held_out_pairs() -> HeldOut:
    """The pairs with the smallest hashes, one tenth of each kind: the same on every machine and in every run."""
    return HeldOut(_smallest_hashes(BACKGROUNDS), _smallest_hashes(MOTIONS))


def is_held_out(scene: Scene) -> bool:
    """Whether the scene shows a pair that training never does."""
    pairs = held_out_pairs()
    return (scene.subject, scene.background) in pairs.subject_background or (
        scene.subject,
        scene.motion,
    ) in pairs.subject_motion


def sample_scene(rng: np.random.Generator, *, video: bool, split: Split = "train", jitter: bool = True) -> Scene:
    """A random scene: of trained pairs alone, or (`split="held_out"`) with at least one pair held out; without `jitter`
    the subject is exactly where its position says.

    A held-out clip is as often new in its motion as in its background. Raises `BadRequestError` for another split.
    """
    if split not in ("train", "held_out"):
        raise BadRequestError(f"split must be 'train' or 'held_out', got {split!r}")
    if split == "held_out":
        subject, background, motion = _held_out_choice(rng, video=video)
        return _arranged(rng, subject, background, motion, jitter=jitter)
    while True:
        motion = None
        subject, background = _pick(rng, SUBJECTS), _pick(rng, BACKGROUNDS)
        if video:
            motion = _pick(rng, MOTIONS)
        scene = _arranged(rng, subject, background, motion, jitter=jitter)
        if not is_held_out(scene):
            return scene


def judge_prompts(count: int, *, seed: int, video: bool) -> list[tuple[Scene, Caption]]:
    """Scenes and captions for an evaluation, trained and held-out pairs in turn, the same list for the same seed.

    A shorter list is the beginning of a longer one. Over the list subjects, and backgrounds (of clips: motions), of
    trained pairs come equally often; held-out pairs come equally often too.
    """
    if count < 1:
        raise BadRequestError(f"count must be at least 1, got {count}")
    rng = np.random.default_rng((seed, int(video)))
    makers = (_trained_round(rng, video=video), _held_out_round(rng, video=video))
    prompts = []
    for index in range(count):
        scene = makers[index % 2]()
        prompts.append((scene, _telling_caption(scene, rng)))
    return prompts


def _telling_caption(scene: Scene, rng: np.random.Generator) -> Caption:
    """A caption that states whatever makes the scene a held-out one."""
    pairs = held_out_pairs()
    telling = {"subject"}
    if (scene.subject, scene.background) in pairs.subject_background:
        telling.add("background")
    while True:
        told = caption(scene, rng)
        if telling <= told.states:
            return told


def _smallest_hashes(others: tuple[str, ...]) -> frozenset[Pair]:
    pairs = [(subject, other) for subject in SUBJECTS for other in others]
    ranked = sorted(pairs, key=lambda pair: hashlib.sha256("|".join(pair).encode()).digest())
    return frozenset(ranked[: round(HELD_OUT_SHARE * len(pairs))])


def _held_out_choice(rng: np.random.Generator, *, video: bool) -> tuple[str, str, str | None]:
    pairs = held_out_pairs()
    if video and rng.random() < 0.5:
        subject, motion = _pick(rng, sorted(pairs.subject_motion))
        return subject, _pick(rng, BACKGROUNDS), motion
    subject, background = _pick(rng, sorted(pairs.subject_background))
    return subject, background, _pick(rng, MOTIONS) if video else None


def _trained_round(rng: np.random.Generator, *, video: bool) -> Callable[[], Scene]:
    """Deals subjects and backgrounds (and motions) from shuffled decks, skipping held-out pairs."""
    subjects, backgrounds, motions = (_Deck(rng, items) for items in (SUBJECTS, BACKGROUNDS, MOTIONS))
    pairs = held_out_pairs()

    def deal() -> Scene:
        subject = subjects.next(lambda _: True)
        background = backgrounds.next(lambda name: (subject, name) not in pairs.subject_background)
        motion = motions.next(lambda name: (subject, name) not in pairs.subject_motion) if video else None
        return _arranged(rng, subject, background, motion)

    return deal


def _held_out_round(rng: np.random.Generator, *, video: bool) -> Callable[[], Scene]:
    """Deals held-out pairs from shuffled decks; a clip's new pair is a motion and a background in turn."""
    pairs = held_out_pairs()
    by_background, by_motion = (_Deck(rng, tuple(sorted(kind))) for kind in pairs)
    backgrounds, motions = _Deck(rng, BACKGROUNDS), _Deck(rng, MOTIONS)
    new_motion = False

    def deal() -> Scene:
        nonlocal new_motion
        new_motion = video and not new_motion
        if new_motion:
            subject, motion = by_motion.next(lambda _: True)
            return _arranged(rng, subject, backgrounds.next(lambda _: True), motion)
        subject, background = by_background.next(lambda _: True)
        return _arranged(rng, subject, background, motions.next(lambda _: True) if video else None)

    return deal


class _Deck(Generic[Item]):
    """Deals its items in random order, all of them before any comes again (as far as the wanted ones allow)."""

    def __init__(self, rng: np.random.Generator, items: tuple[Item, ...]) -> None:
        self._rng, self._items = rng, items
        self._left: list[Item] = []

    def next(self, wanted: Callable[[Item], bool]) -> Item:
        if not any(map(wanted, self._left)):
            self._left += [self._items[index] for index in self._rng.permutation(len(self._items))]
        return self._left.pop(next(index for index, item in enumerate(self._left) if wanted(item)))


def _arranged(
    rng: np.random.Generator, subject: str, background: str, motion: str | None, *, jitter: bool = True
) -> Scene:
    """The scene with everything else chosen at random."""
    position = _pick(rng, allowed_positions(motion))
    if motion in ("left", "right") and rng.random() < DIRECTED:
        position = "right" if motion == "left" else "left"
    return Scene(
        subject=subject,
        background=background,
        size=_pick(rng, allowed_sizes(motion)),
        position=position,
        motion=motion,
        jitter_x=_pick(rng, JITTERS) if jitter else 0,
        jitter_y=_pick(rng, _jitters_y(motion, jitter=jitter)),
        variant=int(rng.integers(NUM_VARIANTS)),
    )


def _jitters_y(motion: str | None, *, jitter: bool) -> tuple[int, ...]:
    """Without jitter a clip that goes up or down still starts at its border or where a picture's subject rests."""
    allowed = CLIP_JITTERS_Y.get(motion or "", JITTERS)
    if jitter:
        return allowed
    return (allowed[0], allowed[-1]) if motion in CLIP_JITTERS_Y else (0,)


def _pick(rng: np.random.Generator, items: tuple[Item, ...] | list[Item]) -> Item:
    return items[int(rng.integers(len(items)))]
