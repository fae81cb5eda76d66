"""A run that starts from a checkpoint goes on from its very weights, and keeps what it does not train."""

from __future__ import annotations

import dataclasses
import filecmp
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from petzval.errors import BadRequestError, CheckpointError
from petzval.train.config import MADE_ANEW, TrainConfig, read_config
from petzval.train.pocket import make_model
from petzval.train.run import run
from tests.train.conftest import write_config


def quiet(*_: object) -> None:
    pass


def started(config: TrainConfig, run_folder: Path, **optim: float) -> TrainConfig:
    return dataclasses.replace(
        config, name="on", start=str(run_folder / "checkpoint"), optim=dataclasses.replace(config.optim, **optim)
    )


def test_its_first_weights_are_the_checkpoints(tiny_config: TrainConfig, tiny_run: Path) -> None:
    model, _ = make_model(started(tiny_config, tiny_run), None)  # type: ignore[arg-type]
    stored = load_file(next((tiny_run / "checkpoint" / "transformer").glob("*.safetensors")))
    found = model.dit.state_dict()
    assert stored.keys() == found.keys()
    assert all(torch.equal(stored[name], found[name]) for name in stored)
    assert all(p.requires_grad for p in model.parameters())


def test_it_trains_text_encoder_and_transformer_and_keeps_the_rest(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path
) -> None:
    run(started(tiny_config, tiny_run, steps=3), tmp_path, quiet)
    before, after = tiny_run / "checkpoint", tmp_path / "checkpoint"
    for name in ("vae", "tokenizer"):
        match, mismatch, errors = filecmp.cmpfiles(
            before / name, after / name, [p.name for p in (before / name).iterdir()], shallow=False
        )
        assert match and not mismatch and not errors
    for name in ("transformer", "text_encoder"):
        (old,), (new,) = ([load_file(p) for p in (folder / name).glob("*.safetensors")] for folder in (before, after))
        assert any(not torch.equal(old[key], new[key]) for key in old)
    told = [path.read_text() for path in after.rglob("*.json")]
    assert not [text for text in told if str(tiny_run) in text], "where it started from is told to nobody"
    assert not (tmp_path / "decoder").exists(), "the checkpoint's decoder is trained already"


def test_a_start_that_is_not_there_is_named(tiny_config: TrainConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config, start=str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="none"):
        run(config, tmp_path / "run", quiet)


@pytest.mark.parametrize("section", MADE_ANEW)
def test_what_a_start_makes_idle_is_refused(tmp_path: Path, section: str) -> None:
    with pytest.raises(BadRequestError, match=f"{section}: no effect on a run that starts from a checkpoint"):
        read_config(write_config(tmp_path, f"name = 'x'\nstart = 'pocket'\n[{section}]\n"))
    with pytest.raises(BadRequestError, match="start must be"):
        read_config(write_config(tmp_path, "name = 'x'\nstart = 5"))
