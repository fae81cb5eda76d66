"""An evaluation counts what the judge finds, attribute by attribute, trained and held-out pairs apart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from petzval.errors import BadRequestError
from petzval.scenes.backgrounds import background_image
from petzval.scenes.draw import draw
from petzval.scenes.evaluate import Tally, evaluate
from petzval.scenes.sample import judge_prompts

Frames = NDArray[np.uint8]


class Painter:
    """Draws what its prompts ask for, except that pictures of held-out pairs are left blank."""

    def __init__(self, *, count: int, seed: int, video: bool) -> None:
        self.prompts = judge_prompts(count, seed=seed, video=video)
        self.num_frames = 5 if video else 1
        self.asked: list[tuple[list[str], list[int]]] = []

    def __call__(self, prompts: list[str], seeds: list[int]) -> Iterator[Frames]:
        self.asked.append((prompts, seeds))
        for index, (scene, _) in enumerate(self.prompts):
            blank = background_image(scene.background, 0, 128)
            shown = draw(scene, num_frames=self.num_frames)
            yield np.repeat(blank[None], self.num_frames, axis=0) if index % 2 else shown


@pytest.mark.parametrize(("video", "count"), [(False, 24), (True, 8)])
def test_counts_by_attribute_and_kind_of_pair(*, video: bool, count: int) -> None:
    painter = Painter(count=count, seed=3, video=video)
    progress: list[tuple[int, int]] = []
    found = evaluate(painter, count=count, video=video, seed=3, on_judged=lambda *step: progress.append(step))
    half = count // 2
    assert found.trained["everything"] == found.trained["subject"] == Tally(half, half)
    assert found.held_out["subject"] == found.held_out["everything"] == Tally(0, half)
    assert found.held_out["background"].share == 1
    assert found.overall()["subject"] == Tally(half, count)
    stated = sum("size" in told.states for _, told in painter.prompts)
    assert found.overall()["size"].asked == stated
    assert painter.asked == [([told.text for _, told in painter.prompts], list(range(3, 3 + count)))]
    assert progress == [(done, count) for done in range(1, count + 1)]


def test_result_is_plain_data() -> None:
    painter = Painter(count=4, seed=0, video=False)
    written = json.loads(json.dumps(evaluate(painter, count=4, video=False, seed=0).to_json()))
    assert written["trained"]["subject"] == {"right": 2, "asked": 2, "share": 1.0}
    assert (written["video"], written["count"], written["seed"]) == (False, 4, 0)
    assert set(written) == {"video", "count", "seed", "trained", "held_out", "overall"}


def test_nothing_asked_is_no_success() -> None:
    assert Tally(0, 0).share == 0


@pytest.mark.parametrize(("given", "message"), [(3, "gave 3 results for 4"), (5, "gave more than 4 results for 4")])
def test_wrong_number_of_results_is_refused(given: int, message: str) -> None:
    frames = background_image("snow", 0, 128)[None]
    with pytest.raises(BadRequestError, match=message):
        evaluate(lambda prompts, seeds: [frames] * given, count=4, video=False, seed=0)
