"""models, doctor, train and judge: what they print, for people and for programs."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import petzval as package
from petzval.cli.show import sized
from petzval.models import checkpoint
from petzval.train import run as trainer
from tests.cli.conftest import Petzval


@pytest.fixture
def bundled(flux_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of bundled checkpoints with a whole one and one that no family runs."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(flux_folder("dev"), folder / "lens")
    (folder / "other").mkdir()
    (folder / "other/model_index.json").write_text('{"_class_name": "FooPipeline"}')
    monkeypatch.setattr(checkpoint, "BUNDLED", folder)
    monkeypatch.setattr(checkpoint, "cached_names", tuple)
    return folder


def test_version_and_help(petzval: Petzval) -> None:
    assert petzval("--version").out == f"{package.__version__}\n"
    for line in ("", "--help", "-h"):
        ran = petzval(line)
        assert (ran.exit_code, "doctor" in ran.out) == (0, True)


def test_models(petzval: Petzval, bundled: Path) -> None:
    lines = petzval("models").out.splitlines()
    assert lines[0].split() == ["name", "family", "tasks", "parameters", "size", "licence"]
    assert lines[1].startswith("lens")
    assert "flux (dev)" in lines[1]
    assert "text-to-image, image-to-image" in lines[1]
    assert "FLUX.1 [dev] Non-Commercial License" in lines[1], "brackets are no markup"
    assert "other" in lines[2]
    assert "cannot be used: other is a FooPipeline" in lines[2]
    whole, other = petzval("models --json").json["models"]
    assert (whole["name"], whole["source"], other["error"]["code"]) == ("lens", "bundled", "bad_checkpoint")
    assert whole["bytes"] > 4 * sum(whole["parameters"].values())


def test_one_model(petzval: Petzval, bundled: Path) -> None:
    out = petzval("models lens").out
    assert "lens (bundled)" in out
    assert "1024x1024" in out
    assert "embedded_guidance 3.5" in out
    facts = petzval("models lens --json").json
    assert facts["tasks"]["image-to-image"]["strength"] == 0.6
    assert facts["size_multiple"] == 16
    folder = petzval(f"models {shlex.quote(str(bundled / 'lens'))} --json").json
    assert (folder["source"], folder["fingerprint"]) == ("folder", facts["fingerprint"])


def test_doctor(petzval: Petzval) -> None:
    out = petzval("doctor").out
    assert "attention on cpu, float32" in out
    assert "no: needs cuda, got cpu" in out
    assert "yes, taken" in out
    report = petzval("doctor --json").json
    assert report["petzval"] == package.__version__
    assert report["devices"][-1]["name"] == "cpu"
    assert report["encoders"]["libx264"]["usable"] is True
    assert {row["row"] for row in report["ops"] if row["usable"]} >= {"sdpa", "math"}
    assert report["memory"] is None or 0 < report["memory"]["available"] <= report["memory"]["total"]


def test_train_calls_the_trainer(petzval: Petzval, monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, Any] = {}

    def run(config: Any, folder: Path, report: Any, *, stages: tuple[str, ...]) -> None:
        called.update(config=config, folder=folder, stages=stages)
        report("decoder", 1, 4, "loss 0.1")
        report("decoder", 2, 4, "loss 0.1")

    monkeypatch.setattr(trainer, "run", run)
    Path("tiny.toml").write_text('name = "tiny"\n[flow]\nseed = 3\n')
    ran = petzval("train tiny.toml --stage decoder --json")
    assert ran.exit_code == 0, ran.err
    assert ran.err == "decoder\n"
    assert {**ran.json, "seconds": 0} == {
        "name": "tiny", "folder": "runs/tiny", "stages": ["decoder"], "seconds": 0,
    }  # fmt: skip
    assert (called["config"].flow.seed, called["folder"]) == (3, Path("runs/tiny"))
    ran = petzval("train tiny.toml --stage paint")
    assert (ran.exit_code, "--stage must be one of transformer, decoder, export, got 'paint'" in ran.err) == (2, True)
    ran = petzval("train tiny.toml --threads 0")
    assert (ran.exit_code, "threads must be at least 1, got 0" in ran.err) == (2, True)


def test_judge(petzval: Petzval, judged_folder: Path) -> None:
    line = f"judge --model {shlex.quote(str(judged_folder))} --prompts 2 --steps 1 --batch 2"
    report = petzval(f"{line} --json").json
    assert {name: report[name]["count"] for name in ("pictures", "clips")} == {"pictures": 2, "clips": 2}
    assert report["pictures"]["overall"]["subject"]["asked"] == 2
    ran = petzval(f"{line} --pictures")
    assert ran.exit_code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "2 pictures, seed 0"
    assert lines[1].split("  ")[0] == "attribute"
    assert not any("clips" in line for line in lines)


@pytest.fixture
def judged_folder(wan_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny Wan whose default pictures and clips are small and square, as the judge reads them."""
    folder = tmp_path / "judged"
    shutil.copytree(wan_folder("pocket"), folder)
    small = {"width": 32, "height": 32}
    defaults = {"text-to-image": small, "text-to-video": {**small, "num_frames": 2}}
    (folder / "petzval.json").write_text(json.dumps({"defaults": defaults}))
    return folder


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [
        (0, "B", "0 B"), (999, "B", "999 B"), (999.6, "B", "1 kB"), (61_400_000, "B", "61.4 MB"),
        (5_440_000, "", "5.44 M"), (12_000_000_000, "", "12 B"), (3e15, "B", "3e+03 TB"),
    ],
)  # fmt: skip
def test_sizes_in_words(count: float, unit: str, text: str) -> None:
    assert sized(count, unit=unit) == text
