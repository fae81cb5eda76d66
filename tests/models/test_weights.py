"""Loading and saving of weights, against diffusers on the same folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from petzval.errors import CheckpointError
from petzval.models import shards, weights
from petzval.models.checkpoint import Checkpoint
from petzval.models.weights import load_weights, save_model_index, save_weights

Make = Callable[[Callable[[Path], Any]], Checkpoint]
FLUX = diffusers.FluxTransformer2DModel
WAN = diffusers.WanTransformer3DModel
FLUX_CONFIG = {
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "pooled_projection_dim": 16,
    "axes_dims_rope": (4, 4, 8),
}
WAN_CONFIG = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 16,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 2,
    "rope_max_seq_len": 16,
}


def on_meta(cls: Any, config: Any) -> nn.Module:
    with torch.device("meta"):
        return cls.from_config(config)


def blank_flux(checkpoint: Checkpoint) -> nn.Module:
    return on_meta(FLUX, checkpoint.config("transformer"))


def load_flux(checkpoint: Checkpoint, **options: Any) -> nn.Module:
    module = blank_flux(checkpoint)
    load_weights(module, checkpoint, "transformer", **({"dtype": torch.float32, "device": "cpu"} | options))
    return module


def assert_same_state(found: nn.Module, wanted: nn.Module) -> None:
    torch.testing.assert_close(dict(found.state_dict()), dict(wanted.state_dict()), rtol=0, atol=0)


# -- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shards_load_as_diffusers_loads_them(flux_checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    folder = flux_checkpoint.folder / "transformer"
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert_same_state(load_flux(flux_checkpoint, dtype=dtype), FLUX.from_pretrained(folder, torch_dtype=dtype))


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_one_file_or_a_lone_variant_loads_as_diffusers_loads_it(make_checkpoint: Make, variant: str | None) -> None:
    checkpoint = make_checkpoint(lambda folder: WAN(**WAN_CONFIG).save_pretrained(folder, variant=variant))
    reference = WAN.from_pretrained(checkpoint.folder / "dit", variant=variant)
    module = on_meta(WAN, WAN_CONFIG)
    module.rope = type(module.rope)(12, (1, 2, 2), 16)  # its tables are not saved: the owner makes them
    load_weights(module, checkpoint, "dit", dtype=torch.float32, device="cpu")
    assert_same_state(module, reference)
    torch.testing.assert_close(dict(module.named_buffers()), dict(reference.named_buffers()))


def test_sharded_variant_loads(make_checkpoint: Make) -> None:
    checkpoint = make_checkpoint(
        lambda folder: FLUX.from_config(FLUX_CONFIG).save_pretrained(folder, variant="bf16", max_shard_size="30KB")
    )
    module = on_meta(FLUX, FLUX_CONFIG)
    load_weights(module, checkpoint, "dit", dtype=torch.float32, device="cpu")
    assert_same_state(module, FLUX.from_pretrained(checkpoint.folder / "dit", variant="bf16"))


@pytest.mark.parametrize(
    "keep", [("*norm_k.weight", "proj_out.*"), lambda name: "norm_k" in name or "proj_out." in name]
)
def test_named_parameters_keep_float32(flux_checkpoint: Checkpoint, keep: Any) -> None:
    module = load_flux(flux_checkpoint, dtype=torch.bfloat16, keep_float32=keep)
    wide = {name for name, parameter in module.named_parameters() if parameter.dtype == torch.float32}
    assert "proj_out.weight" in wide
    assert all("norm_k" in name or "proj_out." in name for name in wide)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32, torch.bfloat16}


class Odd(nn.Module):
    """Tied weights, an integer buffer that is saved, a table that is not, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("positions", torch.arange(4))
        self.register_buffer("table", torch.arange(4.0), persistent=False)


ODD = {"embed.weight": torch.arange(15.0).view(5, 3), "scale": torch.tensor(2.0), "positions": torch.arange(4) * 2}


def odd_checkpoint(make_checkpoint: Make, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    return make_checkpoint(lambda folder: save_file(tensors, folder / "model.safetensors"))


def odd_on_meta() -> Odd:
    with torch.device("meta"):
        return Odd()


@pytest.mark.parametrize("stored", [{"embed.weight"}, {"head.weight"}, {"embed.weight", "head.weight"}])
def test_tied_weights_stay_one(make_checkpoint: Make, stored: set[str]) -> None:
    tied = {name: ODD["embed.weight"].clone() for name in stored}
    checkpoint = odd_checkpoint(make_checkpoint, {**tied, "scale": ODD["scale"], "positions": ODD["positions"]})
    module = odd_on_meta()
    module.table = torch.arange(4.0)
    load_weights(module, checkpoint, "dit", dtype=torch.bfloat16, device="cpu")
    assert module.head.weight is module.embed.weight
    assert module.head.weight.tolist() == ODD["embed.weight"].tolist()
    assert module.head.weight.dtype == torch.bfloat16
    assert module.head.weight.requires_grad
    assert not module.scale.requires_grad
    assert (module.positions.dtype, module.positions.tolist()) == (torch.int64, [0, 2, 4, 6])
    assert module.table.dtype == torch.float32


def test_buffer_that_nobody_makes_is_an_error(make_checkpoint: Make) -> None:
    checkpoint = odd_checkpoint(make_checkpoint, ODD)
    with pytest.raises(CheckpointError, match="1 tensors that no checkpoint saves were never made: table"):
        load_weights(odd_on_meta(), checkpoint, "dit", dtype=torch.float32, device="cpu")


def test_rename_maps_and_leaves_out(make_checkpoint: Make) -> None:
    checkpoint = odd_checkpoint(
        make_checkpoint, {f"old.{name}": tensor for name, tensor in ODD.items()} | {"x": torch.zeros(1)}
    )
    module = Odd()
    rename = {"x": None}
    load_weights(
        module,
        checkpoint,
        "dit",
        dtype=torch.float32,
        device="cpu",
        rename=lambda n: rename.get(n, n.removeprefix("old.")),
    )
    assert module.scale.item() == 2.0
    with pytest.raises(CheckpointError, match=r"are both renamed to embed\.weight"):
        load_weights(module, checkpoint, "dit", dtype=torch.float32, device="cpu", rename=lambda _: "embed.weight")


def test_progress_counts_every_byte_once(flux_checkpoint: Checkpoint) -> None:
    calls: list[tuple[int, int]] = []
    load_flux(flux_checkpoint, progress=lambda done, total: calls.append((done, total)))
    entries = shards.read_headers(flux_checkpoint.folder / "transformer")
    total = sum(entry.size for entry in entries.values())
    assert len(calls) == len(entries)
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_parameters_are_aligned_alike_whatever_the_file(flux_checkpoint: Checkpoint) -> None:
    module = load_flux(flux_checkpoint)
    assert {parameter.data_ptr() % 64 for parameter in module.parameters()} == {0}


# -- weights that do not fit ------------------------------------------------------------------------------------------


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_all_that_does_not_fit_is_one_error(make_checkpoint: Make) -> None:
    extra = {f"extra.{number:02d}": torch.zeros(1) for number in range(12)}
    checkpoint = odd_checkpoint(
        make_checkpoint, {"embed.weight": torch.zeros(4, 3), "positions": ODD["positions"], **extra}
    )
    module = odd_on_meta()
    with pytest.raises(CheckpointError) as caught:
        load_weights(module, checkpoint, "dit", dtype=torch.float32, device="cpu")
    listed = ", ".join(f"extra.{number:02d}" for number in range(10))
    assert str(caught.value) == (
        "the weights of dit of foo do not fit the model: 1 missing: scale; "
        f"12 unexpected: {listed}, ...; 1 mis-shaped: embed.weight is [4, 3] instead of [5, 3]"
    )
    assert all(tensor.is_meta for tensor in module.state_dict().values()), "nothing is loaded of what does not fit"


def test_integers_are_not_taken_for_floats(make_checkpoint: Make) -> None:
    quantised = {name: tensor.to(torch.int8) for name, tensor in ODD.items()}
    with pytest.raises(CheckpointError, match=r"\d mis-typed: embed\.weight is I8"):
        load_weights(
            odd_on_meta(), odd_checkpoint(make_checkpoint, quantised), "dit", dtype=torch.float32, device="cpu"
        )


@pytest.fixture(scope="module")
def odd_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_file(ODD, Path(folder) / "model.safetensors")
        return (Path(folder) / "model.safetensors").read_bytes()


@given(data=st.data())
def test_a_file_cut_anywhere_is_an_error_that_names_it(odd_bytes: bytes, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(odd_bytes) - 1))
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.safetensors"
        file.write_bytes(odd_bytes[:kept])
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            shards.read_header(file)


@given(data=st.data())
def test_a_damaged_header_is_an_error_or_read(odd_bytes: bytes, data: st.DataObject) -> None:
    """One changed byte of the header never escapes as another exception."""
    header = 8 + int.from_bytes(odd_bytes[:8], "little")
    position, value = data.draw(st.integers(0, header - 1)), data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dit").mkdir()
        (folder / "model_index.json").write_text('{"dit": ["diffusers", "Odd"]}')
        file = folder / "dit" / "model.safetensors"
        file.write_bytes(odd_bytes[:position] + bytes([value]) + odd_bytes[position + 1 :])
        module = Odd()
        try:
            load_weights(module, Checkpoint(name="odd", folder=folder), "dit", dtype=torch.float32, device="cpu")
        except CheckpointError as error:
            assert "dit" in str(error)


def test_truncated_shard_is_named(flux_checkpoint: Checkpoint) -> None:
    shard = sorted((flux_checkpoint.folder / "transformer").glob("*.safetensors"))[1]
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=rf"{shard.name} is truncated"):
        load_flux(flux_checkpoint)


def test_missing_shard_is_named(flux_checkpoint: Checkpoint) -> None:
    shard = sorted((flux_checkpoint.folder / "transformer").glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"index.json needs the shard {shard.name}, which is missing"):
        load_flux(flux_checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("weight_map"), "has no weight_map"),
        (lambda index: index["weight_map"].update({"x": "../vae/diffusion_pytorch_model.safetensors"}), "beside it"),
        (lambda index: index["weight_map"].update({"x": "pickle.bin"}), "beside it"),
        (lambda index: index["weight_map"].update({"x": index["weight_map"]["proj_out.bias"]}), "says that x is in"),
    ],
)
def test_index_that_lies(flux_checkpoint: Checkpoint, change: Callable[[Any], Any], message: str) -> None:
    file = flux_checkpoint.folder / "transformer/diffusion_pytorch_model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message) as caught:
        load_flux(flux_checkpoint)
    assert file.name in str(caught.value)


def test_tensor_in_two_shards(flux_checkpoint: Checkpoint) -> None:
    first, second = sorted((flux_checkpoint.folder / "transformer").glob("*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    rewrite(second, lambda tensors: tensors.update({name: tensor}))
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} is in .* and again in {second.name}"):
        load_flux(flux_checkpoint)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["diffusion_pytorch_model.bin"], "pickles can run code and are never loaded"),
        (["model.ckpt"], "pickles can run code and are never loaded"),
        (["model-00001-of-00002.safetensors"], "nor an index of its shards"),
        (["model.fp16.safetensors", "model.bf16.safetensors"], "in the variants bf16, fp16 only"),
        (["readme.txt"], "holds no safetensors file"),
    ],
)
def test_folders_without_plain_weights(make_checkpoint: Make, names: list[str], message: str) -> None:
    checkpoint = make_checkpoint(lambda folder: [(folder / name).write_bytes(b"x") for name in names])
    with pytest.raises(CheckpointError, match=message):
        load_weights(Odd(), checkpoint, "dit", dtype=torch.float32, device="cpu")


def test_unknown_component_is_named(flux_checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"no component 'transformer_2'; it has .*transformer, vae"):
        load_weights(Odd(), flux_checkpoint, "transformer_2", dtype=torch.float32, device="cpu")


# -- memory -----------------------------------------------------------------------------------------------------------

LAYERS, WIDTH = 24, 2048
MEMORY_PROBE = """
import sys, torch
from pathlib import Path
from torch import nn
from petzval.models.checkpoint import Checkpoint
from petzval.models.weights import load_weights

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

def build(layers, width):
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))

folder, dtype, layers, width = Path(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
warm = Checkpoint(name="warm", folder=folder / "warm")
load_weights(build(1, 8), warm, "dit", dtype=dtype, device="cpu")
Path("/proc/self/clear_refs").write_text("5")  # VmHWM, the peak of resident memory, starts again from here
before, anonymous = memory("VmRSS"), memory("RssAnon")
module = build(layers, width)
load_weights(module, Checkpoint(name="big", folder=folder / "big"), "dit", dtype=dtype, device="cpu")
print(memory("VmHWM") - before, memory("RssAnon") - anonymous, sum(p.nbytes for p in module.parameters()))
"""


@pytest.fixture(scope="module")
def big_folder() -> Iterator[Path]:
    """400 MB of random float32 in shards of 100 MB, and a small one with which the libraries are warmed up."""
    with tempfile.TemporaryDirectory() as name:
        for part, layers, width in (("big", LAYERS, WIDTH), ("warm", 1, 8)):
            tensors = {f"{layer}.weight": torch.rand(width, width) for layer in range(layers)}
            save_weights(tensors, Path(name) / part / "dit", config={}, max_shard_bytes=100_000_000)
            save_model_index(Path(name) / part, class_name="Foo", components={"dit": ("diffusers", "Foo")})
        yield Path(name)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's account of memory")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_is_the_module_and_one_tensor(big_folder: Path, dtype: str) -> None:
    """The peak counts every resident page, those of mapped files too."""
    command = [sys.executable, "-c", MEMORY_PROBE, str(big_folder), dtype, str(LAYERS), str(WIDTH)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, held, size = map(int, done.stdout.split())
    assert size == LAYERS * WIDTH * WIDTH * {"float32": 4, "bfloat16": 2}[dtype]
    assert held >= size
    assert peak <= size + 1.5 * WIDTH * WIDTH * 4, f"{peak / size:.3f} x the module"
    assert peak <= 1.1 * size + 16e6


# -- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_shard_bytes", [10**9, 30_000])
def test_diffusers_loads_what_is_saved(tmp_path: Path, max_shard_bytes: int) -> None:
    module = FLUX.from_config(FLUX_CONFIG)
    folder = tmp_path / "new" / "transformer"
    save_weights(module, folder, config=dict(module.config), max_shard_bytes=max_shard_bytes)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (max_shard_bytes == 30_000)
    loaded, report = FLUX.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    assert_same_state(loaded, module)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert max(sizes) <= max_shard_bytes + 10_000  # headers come on top


def test_a_saved_pipeline_is_loaded_by_diffusers_and_again(flux_checkpoint: Checkpoint, tmp_path: Path) -> None:
    module = load_flux(flux_checkpoint)
    save_weights(
        module,
        flux_checkpoint.folder / "transformer",
        config=flux_checkpoint.config("transformer"),
        max_shard_bytes=10**9,
    )
    components = {**flux_checkpoint.components(), "feature_extractor": (None, None)}
    save_model_index(flux_checkpoint.folder, class_name="FluxPipeline", components=components)
    pipeline = diffusers.FluxPipeline.from_pretrained(flux_checkpoint.folder)
    assert_same_state(pipeline.transformer, module)
    assert_same_state(load_flux(flux_checkpoint), module)
    assert len(list((flux_checkpoint.folder / "transformer").iterdir())) == 2, "shards of before are gone"
    assert not list(flux_checkpoint.folder.glob(".*"))


def test_settings_stand_in_the_model_index(tmp_path: Path) -> None:
    save_model_index(
        tmp_path, class_name="WanPipeline", components={"vae": ("diffusers", "V")}, settings={"boundary_ratio": 0.9}
    )
    checkpoint = Checkpoint(name="x", folder=tmp_path)
    assert checkpoint.class_name == "WanPipeline"
    assert checkpoint.components() == {"vae": ("diffusers", "V")}
    assert checkpoint.settings() == {"boundary_ratio": 0.9}


def test_tied_and_strided_tensors_are_saved(make_checkpoint: Make) -> None:
    module = Odd()
    module.embed.weight.data = torch.rand(3, 5).T
    checkpoint = make_checkpoint(lambda folder: save_weights(module, folder, config={}, stem="model"))
    assert shards.read_headers(checkpoint.folder / "dit").keys() == {"embed.weight", "scale", "positions"}
    loaded = Odd()
    load_weights(loaded, checkpoint, "dit", dtype=torch.float32, device="cpu")
    assert_same_state(loaded, module)


def test_a_failed_save_leaves_the_old_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dit"
    save_weights({"w": torch.zeros(2)}, folder, config={"a": 1})

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "_write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_weights({"w": torch.ones(2)}, folder, config={"a": 2})
    assert load_file(folder / "diffusion_pytorch_model.safetensors")["w"].tolist() == [0, 0]
    assert json.loads((folder / "config.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["dit"]


def test_a_failed_move_puts_the_old_component_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dit"
    save_weights({"w": torch.zeros(2)}, folder, config={})
    write = weights._write_json

    def write_and_lose_the_folder(file: Path, record: Any) -> None:
        write(file, record)
        file.parent.rename(tmp_path / "lost")

    monkeypatch.setattr(weights, "_write_json", write_and_lose_the_folder)
    with pytest.raises(FileNotFoundError):
        save_weights({"w": torch.ones(2)}, folder, config={})
    assert load_file(folder / "diffusion_pytorch_model.safetensors")["w"].tolist() == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dit", "lost"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"thesis\.tex, which is not part of a component"):
        save_weights({"w": torch.zeros(2)}, tmp_path, config={})
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_nothing_to_save_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights to save"):
        save_weights({}, tmp_path / "dit", config={})
