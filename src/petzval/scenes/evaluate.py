"""Measures how often generated pictures or clips show what their prompts asked for."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from petzval.errors import BadRequestError
from petzval.scenes.judge import judge, score
from petzval.scenes.sample import is_held_out, judge_prompts

Generate = Callable[[list[str], list[int]], Iterable[NDArray[np.uint8]]]
"""(prompts, seeds) -> one array of frames a prompt, uint8, T side side 3, in order; may be lazy."""

EVERYTHING = "everything"
"""The tally of prompts of which all stated attributes are right."""


@dataclass(frozen=True)
class Tally:
    """How many prompts stated an attribute, and in how many of them it was right."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """Right over asked; 0 when nothing was asked."""
        return self.right / self.asked if self.asked else 0.0


@dataclass(frozen=True)
class Accuracy:
    """Tallies by attribute ("subject", "background", ..., and "everything"), of trained and of held-out pairs."""

    video: bool
    count: int
    seed: int
    trained: dict[str, Tally]
    held_out: dict[str, Tally]

    def overall(self) -> dict[str, Tally]:
        """Both kinds of pairs together."""
        kinds = (self.trained, self.held_out)
        names = sorted(set().union(*kinds))
        found = {name: [kind[name] for kind in kinds if name in kind] for name in names}
        return {name: Tally(sum(t.right for t in both), sum(t.asked for t in both)) for name, both in found.items()}

    def to_json(self) -> dict[str, object]:
        """Plain data for a JSON file, with the shares beside the counts."""
        groups = {"trained": self.trained, "held_out": self.held_out, "overall": self.overall()}
        shares = {
            group: {name: {**asdict(tally), "share": round(tally.share, 4)} for name, tally in tallies.items()}
            for group, tallies in groups.items()
        }
        return {"video": self.video, "count": self.count, "seed": self.seed, **shares}


def evaluate(
    generate: Generate,
    *,
    count: int,
    video: bool,
    seed: int,
    on_judged: Callable[[int, int], None] | None = None,
) -> Accuracy:
    """Generates for `count` prompts (`sample.judge_prompts`) and judges each.

    The prompts are generated with the seeds `seed`, `seed` + 1, and so on; `on_judged(done, count)` is called after
    each. Raises `BadRequestError` when `generate` gives fewer or more results than prompts.
    """
    prompts = judge_prompts(count, seed=seed, video=video)
    results = generate([told.text for _, told in prompts], [seed + index for index in range(count)])
    right: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    asked: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    done = 0
    for frames_THWC in results:
        if done == count:
            raise BadRequestError(f"generate gave more than {count} results for {count} prompts")
        scene, told = prompts[done]
        marks = score(scene, told.states, judge(frames_THWC))
        marks[EVERYTHING] = all(marks.values())
        held_out = is_held_out(scene)
        asked[held_out].update(marks.keys())
        right[held_out].update(name for name, good in marks.items() if good)
        done += 1
        if on_judged:
            on_judged(done, count)
    if done < count:
        raise BadRequestError(f"generate gave {done} results for {count} prompts")
    trained, held = (
        {name: Tally(right[kind][name], asked[kind][name]) for name in sorted(asked[kind])} for kind in (False, True)
    )
    return Accuracy(video=video, count=count, seed=seed, trained=trained, held_out=held)
