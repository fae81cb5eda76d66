"""Encoders, tokenizers and VAEs through their own libraries: frozen, silent, and never filled with random numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from petzval.errors import CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.components import load_image_encoder, load_text_encoder, load_tokenizer, load_vae

F32 = {"dtype": torch.float32, "device": "cpu"}


@pytest.mark.parametrize(
    ("load", "component", "cls"),
    [
        (load_text_encoder, "text_encoder", transformers.CLIPTextModel),
        (load_text_encoder, "text_encoder_2", transformers.T5EncoderModel),
        (load_image_encoder, "image_encoder", transformers.CLIPVisionModelWithProjection),
        (load_vae, "vae", diffusers.AutoencoderKL),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_are_loaded_frozen_and_in_silence(
    flux_checkpoint: Checkpoint, load: Any, component: str, cls: Any, dtype: torch.dtype, capfd: Any
) -> None:
    capfd.readouterr()
    model = load(flux_checkpoint, component, dtype=dtype, device="cpu")
    assert capfd.readouterr() == ("", "")
    reference = cls.from_pretrained(flux_checkpoint.folder / component, torch_dtype=dtype)
    assert type(model) is cls
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()), rtol=0, atol=0)


def test_device_contexts_work_after_loading(flux_checkpoint: Checkpoint) -> None:
    """In a process of its own: it matters what uses a device context first."""
    script = f"""
import torch
from pathlib import Path
from petzval.models.checkpoint import Checkpoint
from petzval.models.components import load_text_encoder
checkpoint = Checkpoint(name="x", folder=Path({str(flux_checkpoint.folder)!r}))
load_text_encoder(checkpoint, dtype=torch.float32, device="cpu")
with torch.device("meta"):
    print(torch.linspace(0, 1, 4).device, torch.arange(4).device)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["meta", "meta"]


def test_the_libraries_talk_again_afterwards(flux_checkpoint: Checkpoint) -> None:
    logging = transformers.utils.logging
    logging.enable_progress_bar()
    before = (logging.get_verbosity(), diffusers.utils.logging.get_verbosity())
    load_vae(flux_checkpoint, **F32)
    assert logging.is_progress_bar_enabled()
    assert (logging.get_verbosity(), diffusers.utils.logging.get_verbosity()) == before
    logging.disable_progress_bar()


def test_umt5(flux_checkpoint: Checkpoint) -> None:
    config = transformers.UMT5Config(d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, vocab_size=10)
    model = transformers.UMT5EncoderModel(config).eval()
    model.save_pretrained(flux_checkpoint.folder / "text_encoder")
    set_class(flux_checkpoint, "text_encoder", ["transformers", "UMT5EncoderModel"])
    loaded = load_text_encoder(flux_checkpoint, **F32)
    tokens = torch.tensor([[3, 4, 1]])
    with torch.no_grad():
        assert torch.equal(loaded(tokens).last_hidden_state, model(tokens).last_hidden_state)


@pytest.mark.parametrize("file", ["text_encoder/model.safetensors", "vae/diffusion_pytorch_model.safetensors"])
def test_models_do_not_live_in_their_files(flux_checkpoint: Checkpoint, file: str) -> None:
    """Another program that writes into the file must not change what is loaded."""
    load = load_vae if file.startswith("vae") else load_text_encoder
    model, path = load(flux_checkpoint, **F32), flux_checkpoint.folder / file
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(size // 2)
        stream.write(bytes(size // 2))
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert {tensor.data_ptr() % 64 for tensor in model.parameters()} == {0}


def test_tokenizers(flux_checkpoint: Checkpoint, capfd: Any) -> None:
    capfd.readouterr()
    assert load_tokenizer(flux_checkpoint)("a fox").input_ids == [0, 2, 3, 4, 5, 1]
    assert load_tokenizer(flux_checkpoint, "tokenizer_2")("a fox cub").input_ids == [3, 4, 2, 1]
    assert capfd.readouterr() == ("", "")


def set_class(checkpoint: Checkpoint, component: str, entry: list[str]) -> None:
    index = checkpoint.model_index()
    index[component] = entry
    (checkpoint.folder / "model_index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["os", "system"], r"text_encoder of tiny-flux is os\.system; only classes of transformers are loaded here"),
        (["diffusers", "AutoencoderKL"], "only classes of transformers are loaded here"),
        (["transformers", "NoSuchModel"], r"is transformers\.NoSuchModel, which transformers \d.* does not have"),
        (["transformers", "pipeline"], "does not have as a PreTrainedModel"),
        (["transformers", "T5Config"], "does not have as a PreTrainedModel"),
    ],
)
def test_only_models_of_the_two_libraries(flux_checkpoint: Checkpoint, entry: list[str], message: str) -> None:
    set_class(flux_checkpoint, "text_encoder", entry)
    with pytest.raises(CheckpointError, match=message):
        load_text_encoder(flux_checkpoint, **F32)


def change(checkpoint: Checkpoint, file: str, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(checkpoint.folder / file)
    edit(tensors)
    save_file(tensors, checkpoint.folder / file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("load", "file"),
    [(load_text_encoder, "text_encoder/model.safetensors"), (load_vae, "vae/diffusion_pytorch_model.safetensors")],
)
def test_weights_that_do_not_fit(flux_checkpoint: Checkpoint, load: Any, file: str, capfd: Any) -> None:
    component = file.partition("/")[0]
    name = next(iter(load_file(flux_checkpoint.folder / file)))
    change(flux_checkpoint, file, lambda tensors: tensors.pop(name))
    capfd.readouterr()
    with pytest.raises(CheckpointError, match=f"weights of {component} of tiny-flux do not fit .*1 missing"):
        load(flux_checkpoint, **F32)
    change(flux_checkpoint, file, lambda tensors: tensors.update({name: torch.zeros(3), "extra": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=f"cannot load {component} of tiny-flux: "):
        load(flux_checkpoint, **F32)
    os.truncate(flux_checkpoint.folder / file, 200)
    with pytest.raises(CheckpointError, match=f"{file} is truncated"):
        load(flux_checkpoint, **F32)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("load", "file"),
    [(load_text_encoder, "text_encoder/model.safetensors"), (load_vae, "vae/diffusion_pytorch_model.safetensors")],
)
def test_weights_that_the_libraries_would_take_in_silence(flux_checkpoint: Checkpoint, load: Any, file: str) -> None:
    """Names that the class lacks (a config with too few layers), and integers that only a quantiser understands."""
    load(flux_checkpoint, **F32)
    whole = (flux_checkpoint.folder / file).read_bytes()
    change(flux_checkpoint, file, lambda tensors: tensors.update({"extra.weight": torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"1 unexpected: extra\.weight"):
        load(flux_checkpoint, **F32)
    (flux_checkpoint.folder / file).write_bytes(whole)
    name = next(name for name in load_file(flux_checkpoint.folder / file) if name.endswith("weight"))
    change(flux_checkpoint, file, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=f"1 mis-typed: {name}"):
        load(flux_checkpoint, **F32)


@pytest.mark.parametrize("value", [None, [], "x", 1e308])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_config_of_nonsense_is_the_checkpoints_fault(flux_checkpoint: Checkpoint, key: str, value: Any) -> None:
    path = flux_checkpoint.folder / "text_encoder" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CheckpointError, match="text_encoder of tiny-flux"):
        load_text_encoder(flux_checkpoint, **F32)


def test_pickles_are_refused(flux_checkpoint: Checkpoint) -> None:
    folder = flux_checkpoint.folder / "text_encoder"
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickles can run code and are never loaded"):
        load_text_encoder(flux_checkpoint, **F32)


def test_a_lone_variant_is_loaded(flux_checkpoint: Checkpoint) -> None:
    folder = flux_checkpoint.folder
    (folder / "text_encoder/model.safetensors").rename(folder / "text_encoder/model.fp16.safetensors")
    (folder / "vae/diffusion_pytorch_model.safetensors").rename(folder / "vae/diffusion_pytorch_model.fp16.safetensors")
    load_text_encoder(flux_checkpoint, **F32)
    load_vae(flux_checkpoint, **F32)


def _cut(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": ')


def _empty(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def _none(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize("damage", [_cut, _empty, _none])
@pytest.mark.parametrize("component", ["tokenizer", "tokenizer_2"])
def test_damaged_tokenizers_are_named(flux_checkpoint: Checkpoint, component: str, damage: Any) -> None:
    damage(flux_checkpoint.folder / component)
    with pytest.raises(CheckpointError, match=component):
        load_tokenizer(flux_checkpoint, component)
