"""What runs is what was asked for, or an error that names what could."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import petzval
from petzval.engine import build
from petzval.engine.build import check, identify, load, pick_device, pick_dtype
from petzval.engine.model import Model
from petzval.errors import BadRequestError, CheckpointError, UnavailableError
from petzval.models.family import Family
from petzval.ops.attention import ChosenAttention
from petzval.types import Request

Folder = Callable[[str], Path]


def test_load_says_how_it_runs(flux_folder: Folder) -> None:
    model = petzval.load(str(flux_folder("schnell")), device="cpu")
    assert (model.runs.device, model.runs.dtype, model.runs.attention) == ("cpu", "float32", "sdpa")
    assert model.runs.torch == torch.__version__
    assert model.device == torch.device("cpu")
    assert model.checkpoint.fingerprint == identify(str(flux_folder("schnell"))).fingerprint


def test_named_rows_and_dtypes_run(flux_folder: Folder) -> None:
    model: Any = load(str(flux_folder("schnell")), device="cpu", dtype="bfloat16", attention="math")
    assert (model.runs.dtype, model.runs.attention) == ("bfloat16", "math")
    dit = model.family.dit
    assert dit.dtype == torch.bfloat16
    chosen = dit.transformer_blocks[0].attn.attention
    assert isinstance(chosen, ChosenAttention)
    assert (chosen.plain.name, chosen.biased.name) == ("math", "math")


def test_rows_agree(flux_folder: Folder) -> None:
    request = Request(task="text-to-image", prompt="fox", seed=1, width=48, height=32, num_inference_steps=2)
    sdpa, reference = (
        petzval.generate(load(str(flux_folder("dev")), device="cpu", attention=row), request)
        for row in ("sdpa", "math")
    )
    assert (sdpa.runs.attention, reference.runs.attention) == ("sdpa", "math")
    assert abs(sdpa.pixels_THWC - reference.pixels_THWC).max() < 1e-4


def test_the_model_offers_what_a_family_does() -> None:
    wanted = {name for name, member in vars(Family).items() if not name.startswith("_")}
    offered = {name for name in vars(Model) if not name.startswith("_")}
    assert wanted <= offered
    for name in wanted:
        ours, theirs = getattr(Model, name), getattr(Family, name)
        if inspect.isfunction(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), name


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert build.available_devices()[-1] == "cpu"
    monkeypatch.setattr(build, "available_devices", lambda: ("cpu",))
    assert pick_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0", "mps", "tpu", "", "CPU"):
        with pytest.raises(UnavailableError, match=f"device {name!r} is not here; have auto, cpu"):
            pick_device(name)
    monkeypatch.setattr(build, "available_devices", lambda: ("cuda:0", "cuda:1", "cpu"))
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda:0")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UnavailableError, match="device 'cuda:2' is not here; have auto, cuda:0, cuda:1, cpu"):
        pick_device("cuda:2")
    monkeypatch.setattr(build, "available_devices", lambda: ("mps", "cpu"))
    assert pick_device("auto") == torch.device("mps")


def test_dtypes() -> None:
    assert pick_dtype("auto", torch.device("cpu")) == torch.float32
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert pick_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    with pytest.raises(UnavailableError, match="dtype 'float8' is not one of auto, float32, bfloat16"):
        pick_dtype("float8", torch.device("cpu"))


def test_threads() -> None:
    build.use_threads(1)
    assert torch.get_num_threads() == 1
    with pytest.raises(UnavailableError, match="threads must be at least 1, got 0"):
        build.use_threads(0)


def test_heads_are_as_wide_as_the_transformer_says(flux_folder: Folder, wan_folder: Folder) -> None:
    for folder in (flux_folder("dev"), wan_folder("pocket")):
        assert build.head_dim(build.resolve(str(folder))) == 12


def test_requests_are_checked_without_weights(wan_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(wan_folder("t2v"))
    good = Request(task="text-to-video", prompt="fox", num_frames=5)
    [filled] = check([good], name=name)
    assert (filled.width, filled.num_frames, filled.num_inference_steps) == (832, 5, 50)
    bad = Request(task="text-to-video", prompt="fox", num_frames=6)
    with pytest.raises(BadRequestError, match="num_frames must be 1 plus a multiple of 4, got 6; the nearest is 5"):
        check([good, bad], name=name)
    with pytest.raises(CheckpointError, match="there is no checkpoint 'nope'"):
        check([good], name="nope")


def test_unknown_rows_are_refused_before_weights_are_read(flux_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.registry, "load", lambda *args, **kwargs: pytest.fail("read"))
    with pytest.raises(BadRequestError, match="unknown row 'fast'"):
        load(str(flux_folder("dev")), device="cpu", attention="fast")
    with pytest.raises(UnavailableError, match="'flash2' cannot run here: needs cuda, got cpu"):
        load(str(flux_folder("dev")), device="cpu", attention="flash2")


@pytest.mark.gpu
def test_on_a_gpu(flux_folder: Folder) -> None:
    model = load(str(flux_folder("dev")))
    assert (model.runs.device, model.runs.dtype) == ("cuda:0", "bfloat16")
    request = Request(task="text-to-image", prompt="fox", seed=1, width=48, height=32, num_inference_steps=2)
    assert petzval.generate(model, request).pixels_THWC.shape == (1, 32, 48, 3)
