"""Judging a checkpoint: the same pictures whatever the groups, read by the judge itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from petzval.engine.build import load
from petzval.engine.model import Model
from petzval.errors import BadRequestError
from petzval.scenes.draw import draw
from petzval.scenes.sample import judge_prompts
from petzval.tasks import judge as judging
from petzval.tasks.judge import JudgeConfig, judge
from petzval.tasks.result import Result
from petzval.types import Request


@pytest.fixture(scope="module")
def model(wan_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny Wan whose default pictures are small and square, as the judge reads them."""
    folder = tmp_path_factory.mktemp("judged") / "checkpoint"
    shutil.copytree(wan_folder("pocket"), folder)
    defaults = {"text-to-image": {"width": 32, "height": 32}}
    (folder / "petzval.json").write_text(json.dumps({"defaults": defaults}))
    return load(str(folder), device="cpu")


def test_counts_do_not_depend_on_groups(model: Model) -> None:
    seen: list[tuple[int, int]] = []
    config = {"prompts": 3, "num_inference_steps": 1, "guidance_scale": 1.0}
    grouped = judge(model, JudgeConfig(batch=2, **config), video=False, on_judged=lambda *at: seen.append(at))
    alone = judge(model, JudgeConfig(batch=1, **config), video=False)
    assert grouped == alone
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert grouped.overall()["everything"].asked == 3


def test_what_is_drawn_right_is_judged_right(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the model stands the program that draws the scenes: what the prompts and seeds asked for arrives."""
    scenes = [scene for scene, _ in judge_prompts(4, seed=2, video=False)]
    asked: list[Request] = []

    def drawn(model: Model, requests: list[Request]) -> list[Result]:
        first = len(asked)
        asked.extend(requests)
        return [
            Result(
                pixels_THWC=draw(scene, num_frames=1).astype(np.float32) / 255,
                plan=model.plan(request), runs=model.runs, seconds={},
            )
            for request, scene in zip(requests, scenes[first:], strict=False)
        ]  # fmt: skip

    monkeypatch.setattr(judging, "generate", drawn)
    accuracy = judge(model, JudgeConfig(prompts=4, seed=2, batch=3), video=False)
    assert accuracy.overall()["everything"].share == 1
    assert [request.seed for request in asked] == [2, 3, 4, 5]
    assert {request.num_inference_steps for request in asked} == {None}


def test_a_batch_holds_something(model: Model) -> None:
    with pytest.raises(BadRequestError, match="batch must be at least 1, got 0"):
        judge(model, JudgeConfig(batch=0), video=False)
