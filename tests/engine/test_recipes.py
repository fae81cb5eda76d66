"""A tier runs by a recipe whose evidence holds here, or exact and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import petzval
from petzval.accel.reuse.forecasts import FORECASTS
from petzval.accel.reuse.signals import SIGNALS
from petzval.accel.versions import ROWS, versions_of
from petzval.engine.build import load
from petzval.engine.model import Model
from petzval.engine.recipes import Shelf, read, shelf, why_not, write
from petzval.errors import BadRequestError, CheckpointError
from petzval.types import Evidence, Recipe, Request, ReusePlan, StepPlan

REUSE = ReusePlan(forecast="taylor", order=1, first_full=2, max_consecutive=2)


@pytest.fixture(scope="module")
def model(flux_folder: Callable[[str], Path]) -> Model:
    return load(str(flux_folder("dev")), device="cpu")


def words(**fields: Any) -> Request:
    given = {"prompt": "fox", "seed": 1, "width": 48, "height": 32, "num_inference_steps": 8, "tier": "draft"}
    return Request(task="text-to-image", **{**given, **fields})


def recipe(model: Model, **fields: Any) -> Recipe:
    """One that fits `words()`."""
    asked = model.family.plan(words()).request
    made = Recipe(
        tier="draft",
        checkpoint=model.checkpoint,
        device=model.kind,
        width=48,
        height=32,
        num_frames=1,
        num_inference_steps=8,
        sampler=str(asked.sampler),
        build=model.build,
        steps=StepPlan(reuse=REUSE),
    )
    made = dataclasses.replace(made, **fields)
    found = {"speedup": 2.0, "loss_median": 0.3, "loss_worst": 0.9, "samples": 32, "date": "2026-12-04"}
    evidence = Evidence(**found, versions=versions_of(made))
    return made if "evidence" in fields else dataclasses.replace(made, evidence=evidence)


def on(model: Model, *recipes: Recipe) -> Model:
    return dataclasses.replace(model, shelf=Shelf(tuple((f"{i}.json", r) for i, r in enumerate(recipes))))


def test_a_recipe_with_evidence_runs_and_is_named(model: Model) -> None:
    fast = on(model, recipe(model))
    result = petzval.generate(fast, words())
    tier = result.plan.tier
    assert (tier.asked, tier.ran, tier.why) == ("draft", "draft", None)
    assert tier.evidence == recipe(model).evidence
    assert result.plan.steps.reuse == REUSE
    exact = petzval.generate(fast, words(tier="exact"))
    assert exact.plan.steps == StepPlan()
    assert abs(exact.pixels_THWC - result.pixels_THWC).max() > 0, "it does skip something"


def test_fewer_steps_keep_what_was_asked(model: Model) -> None:
    fast = on(model, recipe(model, steps=StepPlan(num_inference_steps=3)))
    plan = fast.plan(words())
    assert plan.schedule.num_steps == 3
    assert plan.request.num_inference_steps == 8


@pytest.mark.parametrize(
    ("changed", "asked", "told"),
    [
        ({}, {"num_inference_steps": 9}, "measured with num_inference_steps 8, asked for 9"),
        ({"device": "cuda-9.0"}, {}, "measured on cuda-9.0, this is cpu-"),
        ({"evidence": None}, {}, "it has no evidence"),
        ({}, {"width": 64}, "no recipe has evidence for tier 'draft'"),
        ({}, {"tier": "high"}, "no recipe has evidence for tier 'high'"),
    ],
)
def test_what_the_evidence_does_not_cover_runs_exact(
    model: Model, changed: dict[str, Any], asked: dict[str, Any], told: str
) -> None:
    plan = on(model, recipe(model, **changed)).plan(words(**asked))
    assert plan.steps == StepPlan()
    assert plan.tier.ran == "exact"
    assert told in str(plan.tier.why)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("loss_median", 0.61, "does not reach the tier"),
        ("loss_worst", 1.21, "does not reach the tier"),
        ("samples", 31, "does not reach the tier"),
        ("versions", {"forecast/taylor": "0", "gate": "1"}, "forecast/taylor changed since it was measured"),
        ("versions", {}, "forecast/taylor, gate changed since"),
    ],
)
def test_weak_and_stale_evidence_is_refused(model: Model, field: str, value: Any, told: str) -> None:
    good = recipe(model)
    assert good.evidence is not None
    bad = dataclasses.replace(good, evidence=dataclasses.replace(good.evidence, **{field: value}))
    request = model.family.plan(words()).request
    assert why_not(good, request, model.checkpoint, model.kind) is None
    assert told in str(why_not(bad, request, model.checkpoint, model.kind))
    assert on(model, bad, good).plan(words()).tier.ran == "draft", "the next one that fits is taken"


def test_other_weights_and_other_builds_are_refused(model: Model) -> None:
    other = dataclasses.replace(model.checkpoint, fingerprint="0" * 16)
    assert "other weights" in str(on(model, recipe(model, checkpoint=other)).plan(words()).tier.why)
    built = dataclasses.replace(model.build, attention="math")
    assert "is for a checkpoint built as" in str(on(model, recipe(model, build=built)).plan(words()).tier.why)


def test_recipes_are_files(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(recipe(model), tmp_path / "fast.json")
    assert read(tmp_path / "fast.json") == recipe(model)
    monkeypatch.setenv("PETZVAL_RECIPES", str(tmp_path))
    assert ("fast.json", recipe(model)) in shelf().recipes
    (tmp_path / "bad.json").write_text('{"tier": "draft"}')
    with pytest.raises(CheckpointError, match=r"bad\.json cannot be read: .*checkpoint"):
        shelf()


def test_a_recipe_for_a_row_that_is_no_more_is_an_error(model: Model) -> None:
    gone = recipe(model, steps=StepPlan(reuse=dataclasses.replace(REUSE, forecast="crystal-ball")))
    assert "crystal-ball" in versions_of(gone).__str__()
    with pytest.raises(BadRequestError, match="forecast must be one of"):
        model.plan_as(words(), gone.steps)


def test_every_row_has_a_version() -> None:
    assert {f"forecast/{name}" for name in FORECASTS} | {f"signal/{name}" for name in SIGNALS} <= set(ROWS)
