"""Which family runs which checkpoint, and how an outside package adds one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from petzval.errors import BadRequestError, CheckpointError, UnavailableError
from petzval.models import registry
from petzval.models.checkpoint import Checkpoint

OUTSIDE = """
def spec(checkpoint):
    return ("spec of", checkpoint.name)

def load(checkpoint, *, device, dtype, attention, make_schedule):
    return (checkpoint.name, device, dtype, attention(3), make_schedule(4))
"""


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path with the module `outside_family`."""
    (tmp_path / "outside_family.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("outside_family", None)


def install(site: Path, package: str, entry: str) -> None:
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[petzval.families]\n{entry}\n")


def checkpoint_of(folder: Path, class_name: str) -> Checkpoint:
    (folder / "model_index.json").write_text(json.dumps({"_class_name": class_name}))
    return Checkpoint(name="it", folder=folder)


def test_published_classes_have_a_family() -> None:
    assert {name: path for name, path in registry.supported().items() if path.startswith("petzval.")} == {
        "FluxPipeline": "petzval.models.flux",
        "FluxKontextPipeline": "petzval.models.flux",
        "FluxImg2ImgPipeline": "petzval.models.flux",
        "HiDreamImagePipeline": "petzval.models.hidream",
        "WanPipeline": "petzval.models.wan",
        "WanImageToVideoPipeline": "petzval.models.wan",
    }


def test_unknown_class_lists_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it is a FooPipeline, which no family runs; supported: .*WanPipeline"):
        registry.spec(checkpoint_of(tmp_path, "FooPipeline"))


def test_register_adds_a_family_that_is_imported_when_needed(site: Path) -> None:
    checkpoint = checkpoint_of(site, "FooPipeline")
    registry.register("FooPipeline", "outside_family")
    registry.register("FooPipeline", "outside_family")
    assert "outside_family" not in sys.modules
    assert registry.spec(checkpoint) == ("spec of", "it")
    loaded = registry.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        attention=lambda x: torch.tensor(x),
        make_schedule=lambda x: ("euler", (x,), (), 0),
    )
    assert loaded == ("it", torch.device("cpu"), torch.float32, torch.tensor(3), ("euler", (4,), (), 0))


def test_entry_point_adds_a_family(site: Path) -> None:
    install(site, "foo", "FooPipeline = outside_family")
    assert registry.spec(checkpoint_of(site, "FooPipeline")) == ("spec of", "it")


def test_a_class_has_one_family(site: Path) -> None:
    with pytest.raises(BadRequestError, match=r"WanPipeline is run by petzval\.models\.wan already"):
        registry.register("WanPipeline", "outside_family")
    install(site, "foo", "WanPipeline = outside_family")
    with pytest.raises(UnavailableError, match=r"WanPipeline is claimed by petzval\.models\.wan and by outside_family"):
        registry.supported()


def test_family_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    registry.register("FooPipeline", "no_such_module")
    with pytest.raises(UnavailableError, match="no_such_module, cannot be imported: No module named 'no_such_module'"):
        registry.spec(checkpoint_of(tmp_path, "FooPipeline"))


@pytest.mark.parametrize(
    "error", [KeyError("width"), TypeError("'NoneType'"), ValueError("x"), ZeroDivisionError(), AttributeError("a")]
)
def test_a_configuration_that_a_family_trips_over_is_the_checkpoints_fault(
    error: Exception, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("FooPipeline", "outside_family")

    def trip(*_: object, **__: object) -> None:
        raise error

    module = importlib.import_module("outside_family")
    for name in ("spec", "load"):
        monkeypatch.setattr(module, name, trip)
    checkpoint, cpu = checkpoint_of(site, "FooPipeline"), torch.device("cpu")
    with pytest.raises(CheckpointError, match=f"configuration of it makes no sense .*{type(error).__name__}"):
        registry.spec(checkpoint)
    with pytest.raises(CheckpointError, match=f"configuration of it makes no sense .*{type(error).__name__}"):
        registry.load(checkpoint, device=cpu, dtype=torch.float32, attention=trip, make_schedule=trip)
