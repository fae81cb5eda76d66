"""The record in a file makes the same picture again, and a record that strangers wrote is checked."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import petzval
from petzval.errors import BadMediaError, BadRequestError, PetzvalError
from petzval.media.record import read_record
from petzval.tasks.generate import generate
from petzval.tasks.record import read, record, request_from_record, save
from petzval.tasks.result import Result
from petzval.types import Request
from tests.tasks.conftest import Load
from tests.tasks.test_generate import from_picture, picture, words


@pytest.fixture(scope="module")
def result(flux: Load) -> Result:
    return generate(flux("dev"), words(tier="high", guidance_scale=2.0))


def test_a_record_holds_all_that_decides(result: Result) -> None:
    found = json.loads(json.dumps(record(result)))
    assert found["version"] == petzval.__version__
    assert found["checkpoint"]["fingerprint"] == result.plan.checkpoint.fingerprint
    assert found["request"]["negative_prompt"] == "", "what was filled in is there too"
    assert found["schedule"]["sigmas"] == list(result.plan.schedule.sigmas)
    assert (found["tier"]["asked"], found["tier"]["ran"]) == ("high", "exact")
    assert found["runs"] == {"device": "cpu", "dtype": "float32", "attention": "sdpa", "group": 1} | {
        "torch": result.runs.torch
    }
    assert request_from_record(found) == result.plan.request


def test_a_record_makes_it_again(result: Result, flux: Load) -> None:
    again = generate(flux("dev"), request_from_record(json.loads(json.dumps(record(result)))))
    assert (again.pixels_THWC == result.pixels_THWC).all()
    assert again.plan == result.plan


def test_input_pictures_are_known_by_digest(flux: Load) -> None:
    found = record(generate(flux("dev"), from_picture()))
    request = request_from_record(found)
    assert [image.sha256 for image in request.images] == [picture().sha256]
    assert request.images[0].data is None


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_pictures_carry_it(suffix: str, result: Result, tmp_path: Path) -> None:
    petzval.save(result, tmp_path / f"x.{suffix}")
    assert read_record(tmp_path / f"x.{suffix}") == json.loads(json.dumps(record(result)))


@pytest.mark.parametrize("suffix", ["mp4", "webp", "gif"])
def test_clips_carry_it(suffix: str, wan: Load, tmp_path: Path) -> None:
    result = generate(wan("pocket"), words(task="text-to-video", num_frames=2))
    save(result, str(tmp_path / f"x.{suffix}"))
    assert request_from_record(read_record(tmp_path / f"x.{suffix}")) == result.plan.request


def test_a_picture_is_no_clip(result: Result, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="a picture ends in"):
        save(result, tmp_path / "x.mp4")


# -- records of strangers ---------------------------------------------------------------------------------------------


def changed(found: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    damaged = copy.deepcopy(found)
    place = damaged
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return damaged


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 2, "has format 2; this version reads 1"),
        (("request",), [], "is damaged"),
        (("request", "task"), "paint", "is damaged: request.task is 'paint'"),
        (("request", "prompt"), 7, "is damaged: request.prompt is 7"),
        (("request", "seed"), True, "is damaged: request.seed is True"),
        (("request", "width"), "48", "is damaged: request.width is '48'"),
        (("request", "guidance_scale"), [1], "is damaged: request.guidance_scale"),
        (("request", "images"), [{}], "is damaged"),
        (("request", "tier"), None, "is damaged: request.tier is None"),
        (("request", "speed"), 3, "is damaged"),
        (("checkpoint", "name"), 3, "is damaged: checkpoint.name is 3"),
        (("checkpoint",), {}, "is damaged"),
        (("runs", "device"), None, "is damaged: runs.device is None"),
        (("runs", "group"), "x", "is damaged: group is 'x'"),
        (("runs",), "cpu", "is damaged"),
    ],
)
def test_damaged_records_are_named(path: tuple[str, ...], value: Any, message: str, result: Result) -> None:
    with pytest.raises(BadMediaError, match=message) as caught:
        read(changed(record(result), path, value), name="x.png")
    assert "x.png" in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_any_change_reads_or_is_refused(result: Result, data: st.DataObject) -> None:
    """And what reads is a request of the right types, whose values `plan` then checks."""
    found = record(result)
    part = data.draw(st.sampled_from(["request", "checkpoint", "runs"]))
    key = data.draw(st.sampled_from(sorted(found[part])))
    value = data.draw(anything)
    try:
        request = read(changed(found, (part, key), value), name="x").request
    except PetzvalError:
        return
    assert isinstance(request, Request)
    assert hash(request) is not None
    assert isinstance(request.prompt, str)
    assert all(isinstance(image.sha256, str) for image in request.images)
