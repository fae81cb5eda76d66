"""What is on this machine, said without reading weights or asking the network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from petzval.engine import catalogue
from petzval.errors import CheckpointError
from petzval.models import checkpoint
from petzval.types import TaskDefaults

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def here(
    flux_folder: Callable[[str], Path],
    wan_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A bundled checkpoint, a cached one, and a cached one that is not whole; the network is said to be there."""
    shutil.copytree(wan_folder("pocket"), tmp_path / "bundled/pocket")
    for name in ("lens", "half"):
        repository = tmp_path / f"hub/models--studio--{name}"
        shutil.copytree(flux_folder("schnell"), repository / "snapshots" / COMMIT)
        (repository / "refs").mkdir()
        (repository / "refs/main").write_text(COMMIT)
    (tmp_path / f"hub/models--studio--half/snapshots/{COMMIT}/transformer/config.json").unlink()
    monkeypatch.setattr(checkpoint, "BUNDLED", tmp_path / "bundled")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    return tmp_path


def test_entries(here: Path) -> None:
    pocket, half, lens = catalogue.entries()
    assert (pocket["name"], pocket["source"], pocket["family"]) == ("pocket", "bundled", "wan")
    assert (lens["name"], lens["source"], lens["variant"]) == ("studio/lens", "cached", "schnell")
    assert (half["name"], half["error"]["code"]) == ("studio/half", "bad_checkpoint")
    assert json.loads(json.dumps([pocket, half, lens])) == [pocket, half, lens]


def test_an_entry_has_the_facts(here: Path) -> None:
    entry = catalogue.entry("pocket")
    assert set(entry["tasks"]) == {"text-to-image", "image-to-image", "text-to-video", "image-to-video"}
    assert TaskDefaults(**entry["tasks"]["text-to-video"]).num_frames == 121
    files = (here / "bundled/pocket").rglob("*.safetensors")
    assert entry["bytes"] == sum(file.stat().st_size for file in files)
    assert set(entry["parameters"]) == {"transformer", "vae", "text_encoder"}


def test_what_is_not_here_is_not_fetched(here: Path) -> None:
    with pytest.raises(CheckpointError, match="studio/other is not on this machine"):
        catalogue.entry("studio/other")
