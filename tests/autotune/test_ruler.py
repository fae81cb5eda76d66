"""The ruler's two marks, and what stands between them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from petzval.autotune.ruler import Fidelity, Reference, Ruler, fidelity, measure, reference, softened
from petzval.engine.build import load
from petzval.engine.model import Model
from petzval.errors import BadRequestError
from petzval.types import Request, from_json, to_json


@pytest.fixture(scope="module")
def model() -> Model:
    return load("pocket", device="cpu")


@pytest.fixture(scope="module")
def made(model: Model) -> Reference:
    prompts = ("a large fox on the left, a beach", "an owl, snow", "a small rocket, the night sky")
    asked = [
        Request(task="text-to-image", prompt=text, seed=seed, num_inference_steps=6, tier="draft")
        for seed, text in enumerate(prompts)
    ]
    return reference(model, asked)


@pytest.fixture(scope="module")
def ruler(model: Model, made: Reference) -> Ruler:
    return measure(model, made)


def test_rounding_is_at_zero_and_another_seed_at_one(model: Model, made: Reference, ruler: Ruler) -> None:
    assert all(request.tier == "exact" for request in made.requests)
    assert 0 <= ruler.floor < 1e-6 < ruler.ceiling
    assert fidelity(ruler, made, made.pixels).worst == 0
    others = [dataclasses.replace(r, seed=r.seed + 1_000_003) for r in made.requests]
    assert fidelity(ruler, made, reference(model, others).pixels).median == pytest.approx(1.0)


def test_it_is_of_the_checkpoint_and_shape_it_was_made_with(model: Model, ruler: Ruler) -> None:
    assert ruler.checkpoint == model.checkpoint
    assert (ruler.width, ruler.height, ruler.num_frames, ruler.samples) == (128, 128, 1, 3)
    assert from_json(Ruler, to_json(ruler)) == ruler


def test_fewer_steps_lie_between_and_more_of_them_nearer(model: Model, made: Reference, ruler: Ruler) -> None:
    lost = []
    for steps in (5, 3):
        fewer = [dataclasses.replace(r, num_inference_steps=steps) for r in made.requests]
        lost.append(fidelity(ruler, made, reference(model, fewer).pixels).median)
    assert 0 < lost[0] < lost[1]


@pytest.mark.parametrize("loss", [0.15, 0.3, 0.6])
def test_a_softened_picture_loses_what_it_shows(made: Reference, ruler: Ruler, loss: float) -> None:
    shown = softened(made.pixels[0], made.pixels[1], ruler, loss)
    assert fidelity(ruler, made.head(1), [shown]).median == pytest.approx(loss, abs=0.01)


def test_a_tier_bounds_the_median_and_the_worst() -> None:
    assert Fidelity((0.1, 0.1, 0.29)).within("high")
    assert not Fidelity((0.1, 0.1, 0.31)).within("high")
    assert not Fidelity((0.16, 0.16, 0.16)).within("high")
    assert Fidelity((0.0, 0.0)).within("exact")
    assert Fidelity((0.1, 0.4, 0.2)).worst_sample == 1


def test_what_makes_no_ruler_is_refused(model: Model, made: Reference) -> None:
    with pytest.raises(BadRequestError, match="at least 2 samples"):
        measure(model, made.head(1))
    mixed = Reference(made.requests[:2], (made.pixels[0], np.zeros((1, 64, 64, 3), np.float32)))
    with pytest.raises(BadRequestError, match="one shape"):
        measure(model, mixed)
