"""Whole runs: resumed ones end as uninterrupted ones, damaged ones are refused, and diffusers loads what comes out."""

from __future__ import annotations

import dataclasses
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import WanPipeline
from safetensors.torch import load_file

from petzval.durable import alone_in
from petzval.errors import CheckpointError, UnavailableError
from petzval.train.config import TrainConfig
from petzval.train.loop import read_log
from petzval.train.run import run


def quiet(*_: object) -> None:
    pass


def test_a_run_leaves_its_log_plot_samples_and_checkpoint(tiny_run: Path) -> None:
    assert [record["step"] for record in read_log(tiny_run / "transformer" / "log.jsonl")] == list(range(1, 7))
    for name in (
        "transformer/loss.png",
        "transformer/samples-000006.png",
        "decoder/loss.png",
        "checkpoint/model_index.json",
        "checkpoint/petzval.json",
    ):
        assert (tiny_run / name).stat().st_size > 0, name


@pytest.mark.parametrize("stopped_after", [2, 3, 5])
def test_a_run_stopped_anywhere_and_resumed_ends_bit_identical(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path, stopped_after: int
) -> None:
    for done in ("vae-start", "vae", *(p.name for p in tiny_run.glob("latents-*"))):
        shutil.copytree(tiny_run / done, tmp_path / done)

    class StoppedError(Exception):
        pass

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if stage == "transformer" and done == stopped_after:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(tiny_config, tmp_path, stop, stages=("transformer",))
    run(tiny_config, tmp_path, quiet, stages=("transformer",))
    whole, resumed = (load_file(folder / "transformer" / "state.safetensors") for folder in (tiny_run, tmp_path))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_state_of_another_model_is_refused_and_a_longer_run_goes_on(
    tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    other = dataclasses.replace(
        tiny_config, transformer=dataclasses.replace(tiny_config.transformer, num_layers=1), name="other"
    )
    with pytest.raises(CheckpointError, match="another config"):
        run(other, tmp_path / "run", quiet, stages=("transformer",))
    longer = dataclasses.replace(tiny_config, optim=dataclasses.replace(tiny_config.optim, steps=8, decay_from=8))
    run(longer, tmp_path / "run", quiet, stages=("transformer",))
    assert read_log(tmp_path / "run" / "transformer" / "log.jsonl")[-1]["step"] == 8


def test_a_damaged_state_is_refused(tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    path = tmp_path / "run" / "transformer" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        run(tiny_config, tmp_path / "run", quiet, stages=("transformer",))


def test_what_a_kill_leaves_half_written_is_made_good(tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path) -> None:
    """What kill -9 can leave: half a line of the log, and parts of files that were not yet given their names."""
    for done in ("vae-start", *(p.name for p in tiny_run.glob("latents-*"))):
        shutil.copytree(tiny_run / done, tmp_path / done)
    stage = tmp_path / "transformer"
    stage.mkdir()
    (stage / "log.jsonl").write_text('{"step": 1, "kind": "pictures", "loss": 1.0}\n{"step": 2, "ki')
    (stage / ".petzval-0123456789abcdef.part").write_bytes(b"half")
    run(tiny_config, tmp_path, quiet, stages=("transformer",))
    assert [record["step"] for record in read_log(stage / "log.jsonl")] == list(range(1, 7))
    assert not list(stage.glob(".petzval-*.part"))
    whole, after = (load_file(folder / "transformer" / "state.safetensors") for folder in (tiny_run, tmp_path))
    assert all(torch.equal(whole[name], after[name]) for name in whole)


@pytest.mark.parametrize("limit", [0, 20_000])
def test_a_full_disk_is_one_error_and_leaves_nothing_half(
    limit: int, tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk; it has the same error at the same calls."""
    for done in ("vae-start", *(p.name for p in tiny_run.glob("latents-*"))):
        shutil.copytree(tiny_run / done, tmp_path / "whole" / done)
    shutil.copytree(tiny_run / "vae-start", tmp_path / "bare" / "vae-start")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        for name, said in (("whole", "state.safetensors"), ("bare", "npy")):
            with pytest.raises(UnavailableError if limit or name == "bare" else OSError, match=said if limit else None):
                run(tiny_config, tmp_path / name, quiet, stages=("transformer",))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = [path.name for path in tmp_path.rglob("*") if path.suffix in (".part", ".npy") and "bare" in str(path)]
    assert left == []
    assert not list((tmp_path / "whole" / "transformer").glob("state.*"))


def test_export_without_a_state_says_so(tiny_config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no training state yet"):
        run(tiny_config, tmp_path, quiet, stages=("export",))


def test_diffusers_loads_the_exported_weights(tiny_run: Path) -> None:
    pipeline = WanPipeline.from_pretrained(tiny_run / "checkpoint")
    pipeline.set_progress_bar_config(disable=True)
    state = load_file(tiny_run / "transformer" / "state.safetensors")
    loaded = pipeline.transformer.state_dict()
    assert all(torch.equal(loaded[name], state[f"ema.dit.{name}"]) for name in loaded)
    embedding = pipeline.text_encoder.get_input_embeddings().weight
    assert torch.equal(embedding, state["ema.text_encoder.shared.weight"])
    frames = pipeline(
        "a fox", height=64, width=64, num_frames=2, num_inference_steps=2, generator=torch.Generator().manual_seed(0)
    ).frames
    assert np.isfinite(frames).all()


def test_two_runs_do_not_share_a_folder(tiny_config: TrainConfig, tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    with (
        alone_in(tmp_path / "run" / "transformer"),
        pytest.raises(UnavailableError, match="another process trains into"),
    ):
        run(tiny_config, tmp_path / "run", quiet, stages=("transformer",))
