"""Captions of scenes: varied wordings, each of which says which attributes it states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from petzval.scenes.draw import Scene
from petzval.scenes.vocabulary import PLURAL_SUBJECTS

WHERE: Final = {"left": "on the left", "middle": "in the middle", "right": "on the right"}

PLACES: Final[dict[str, tuple[str, str]]] = {
    "grass": ("grass", "on the grass"),
    "beach": ("a beach", "on a beach"),
    "night sky": ("the night sky", "in the night sky"),
    "mountains": ("mountains", "in the mountains"),
    "city street": ("a city street", "on a city street"),
    "snow": ("snow", "in snow"),
}
"""Each drawn background named as a thing and as a place."""

MOVES: Final[dict[str, tuple[str, ...]]] = {
    "left": ("moves left", "moves to the left", "goes left"),
    "right": ("moves right", "moves to the right", "goes right"),
    "up": ("flies up", "moves up", "rises"),
    "down": ("moves down", "sinks down", "falls"),
    "grows": ("grows", "gets bigger"),
    "shrinks": ("shrinks", "gets smaller"),
    "bounces": ("bounces", "bounces up and down"),
    "still": ("stays still", "does not move"),
}
"""Wordings of each motion; the first is the canonical one."""

SUBJECT_PLACE: Final = frozenset({"subject", "background"})
SIZED, PLACED, MOVING = (SUBJECT_PLACE | {name} for name in ("size", "position", "motion"))


@dataclass(frozen=True)
class Caption:
    """A prompt and the attributes (of `vocabulary.ATTRIBUTES`) that it states; the others are free."""

    text: str
    states: frozenset[str]


@dataclass(frozen=True)
class _Words:
    """The phrases that templates are filled with."""

    a: str
    """The subject with its article: "a fox"."""
    a_sized: str
    """The same with its size: "a large fox"."""
    the: str
    the_sized: str
    where: str
    thing: str
    """The background as a thing: "a beach"."""
    place: str
    """The background as a place: "on a beach"."""
    moves: str


_Template = tuple[Callable[[_Words], str], frozenset[str]]

PICTURE_TEMPLATES: Final[tuple[_Template, ...]] = (
    (lambda w: f"{w.a_sized} {w.where}, {w.thing}", SIZED | PLACED),
    (lambda w: f"{w.a_sized} {w.where} {w.place}", SIZED | PLACED),
    (lambda w: f"{w.thing} with {w.a_sized} {w.where}", SIZED | PLACED),
    (lambda w: f"{w.a_sized}, {w.thing}", SIZED),
    (lambda w: f"{w.a_sized} {w.place}", SIZED),
    (lambda w: f"{w.a} {w.where}, {w.thing}", PLACED),
    (lambda w: f"{w.a} {w.place}, {w.where}", PLACED),
    (lambda w: f"{w.the}, {w.place}", SUBJECT_PLACE),
    (lambda w: f"{w.a} {w.place}", SUBJECT_PLACE),
    (lambda w: f"a picture of {w.a}, {w.thing}", SUBJECT_PLACE),
)

CLIP_TEMPLATES: Final[tuple[_Template, ...]] = (
    (lambda w: f"{w.a_sized} {w.moves}, {w.thing}", SIZED | MOVING),
    (lambda w: f"{w.a_sized} {w.moves} {w.place}", SIZED | MOVING),
    (lambda w: f"{w.a_sized} {w.where} {w.moves}, {w.thing}", SIZED | PLACED | MOVING),
    (lambda w: f"{w.a} {w.where} {w.moves}, {w.thing}", PLACED | MOVING),
    (lambda w: f"{w.a} {w.moves}, {w.thing}", MOVING),
    (lambda w: f"{w.the} {w.moves} {w.place}", MOVING),
    (lambda w: f"{w.thing}, {w.the_sized} {w.moves}", SIZED | MOVING),
    (lambda w: f"{w.the} {w.moves}", frozenset({"subject", "motion"})),
)


def caption(scene: Scene, rng: np.random.Generator) -> Caption:
    """One caption by a random template; which one depends on `rng` alone."""
    templates = CLIP_TEMPLATES if scene.motion else PICTURE_TEMPLATES
    template, states = templates[rng.integers(len(templates))]
    moves = MOVES[scene.motion] if scene.motion else ("",)
    return Caption(template(_words(scene, moves[rng.integers(len(moves))])), states)


def telling_caption(scene: Scene, rng: np.random.Generator) -> Caption:
    """As `caption`, but what it leaves out of size and position is the default: large, in the middle; or what the
    motion needs, room to grow and the longest way to go."""
    size = "small" if scene.motion == "grows" else "large"
    position = {"left": "right", "right": "left"}.get(scene.motion or "", "middle")
    needed = {name for name, default in (("size", size), ("position", position)) if getattr(scene, name) != default}
    while True:
        told = caption(scene, rng)
        if needed <= told.states:
            return told


def canonical_caption(scene: Scene) -> Caption:
    """The caption that states all: "a large fox on the left, a beach", "a small rocket on the left flies up, snow"."""
    template, states = CLIP_TEMPLATES[2] if scene.motion else PICTURE_TEMPLATES[0]
    return Caption(template(_words(scene, MOVES[scene.motion][0] if scene.motion else "")), states)


def _words(scene: Scene, moves: str) -> _Words:
    sized = f"{scene.size} {scene.subject}"
    plain = f"{scene.background} background".replace("plain ", "a plain ")
    thing, place = PLACES.get(scene.background, (plain, f"on {plain}"))
    plural = scene.subject in PLURAL_SUBJECTS
    return _Words(
        a=scene.subject if plural else f"{_article(scene.subject)} {scene.subject}",
        a_sized=sized if plural else f"a {sized}",
        the=f"the {scene.subject}",
        the_sized=f"the {sized}",
        where=WHERE[scene.position],
        thing=thing,
        place=place,
        moves=_plural_verb(moves) if plural else moves,
    )


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeio" else "a"


def _plural_verb(phrase: str) -> str:
    """The phrase for several: "moves up" becomes "move up"."""
    verb, *rest = phrase.split(" ")
    special = {"does": "do", "goes": "go", "flies": "fly"}
    return " ".join([special.get(verb, verb.removesuffix("s")), *rest])
