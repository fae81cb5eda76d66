"""Finding checkpoints and reading their facts. The hub is its local cache and its own error classes, no network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import diffusers
import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors
from safetensors.torch import load_file, save_file

from petzval.errors import CheckpointError
from petzval.models import checkpoint as checkpoint_module
from petzval.models.checkpoint import Checkpoint, bundled_names, cached_names, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def one_line(error: BaseException) -> str:
    message = str(error)
    assert "\n" not in message
    return message


# -- facts ------------------------------------------------------------------------------------------------------------


def test_facts_are_those_of_diffusers(flux_checkpoint: Checkpoint) -> None:
    pipeline = diffusers.FluxPipeline.from_pretrained(flux_checkpoint.folder)
    assert flux_checkpoint.class_name == "FluxPipeline"
    parts = {name: part for name, part in pipeline.components.items() if part is not None}
    assert flux_checkpoint.components().keys() == parts.keys()
    assert flux_checkpoint.scheduler_config()["shift"] == 3.0
    assert flux_checkpoint.config("transformer")["num_single_layers"] == 2
    modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    assert flux_checkpoint.parameters() == {
        name: sum(parameter.numel() for parameter in module.parameters()) for name, module in modules.items()
    }
    files = list(flux_checkpoint.folder.rglob("*.safetensors"))
    assert flux_checkpoint.bytes == sum(file.stat().st_size for file in files)


def test_integer_tensors_are_not_parameters(flux_checkpoint: Checkpoint) -> None:
    before = flux_checkpoint.parameters()["text_encoder"]
    file = flux_checkpoint.folder / "text_encoder/model.safetensors"
    save_file({**load_file(file), "position_ids": torch.arange(77)}, file)
    assert flux_checkpoint.parameters()["text_encoder"] == before


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("model_index.json", None, "cannot read .*model_index.json"),
        ("model_index.json", "{", "model_index.json is not valid JSON"),
        ("model_index.json", "[]", "model_index.json must hold a JSON object, it holds a list"),
        ("model_index.json", "{}", "model_index.json has no _class_name"),
        ("transformer/config.json", None, "cannot read .*config.json"),
        ("transformer/config.json", "[" * 100_000, "config.json is not valid JSON"),
        ("transformer/config.json", "\x00\x01", "config.json is not valid JSON"),
        ("scheduler/scheduler_config.json", "nonsense", "scheduler_config.json is not valid JSON"),
    ],
)
def test_damaged_json_is_named(flux_checkpoint: Checkpoint, file: str, text: str | None, message: str) -> None:
    path = flux_checkpoint.folder / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        _ = flux_checkpoint.class_name, flux_checkpoint.config("transformer"), flux_checkpoint.scheduler_config()
    one_line(caught.value)


# -- the fingerprint --------------------------------------------------------------------------------------------------


def test_fingerprint_is_that_of_every_copy(flux_checkpoint: Checkpoint, tmp_path: Path) -> None:
    copy = Checkpoint(name="another name", folder=tmp_path / "elsewhere" / "copy")
    shutil.copytree(flux_checkpoint.folder, copy.folder)
    (copy.folder / "README.md").write_text("not part of it")
    for file in copy.folder.rglob("*"):
        os.utime(file, (0, 0))
    assert copy.fingerprint() == flux_checkpoint.fingerprint()
    assert copy.id("flux").fingerprint == copy.fingerprint()
    assert (copy.id("flux").family, copy.id("flux").name) == ("flux", "another name")


def test_fingerprint_does_not_depend_on_sharding(flux_checkpoint: Checkpoint) -> None:
    before, folder = flux_checkpoint.fingerprint(), flux_checkpoint.folder / "transformer"
    tensors = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    assert flux_checkpoint.fingerprint() == before


def _other_values(folder: Path) -> None:
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    name = max(tensors, key=lambda key: tensors[key].numel())
    save_file({**tensors, name: tensors[name] + 1}, file)


def _other_shape(folder: Path) -> None:
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if tensors[name].dim() == 4)
    save_file({**tensors, name: tensors[name].transpose(0, 1).contiguous().view(-1)}, file)


@pytest.mark.parametrize(
    "change",
    [
        _other_values,
        _other_shape,
        lambda folder: (folder / "transformer/config.json").write_text("{}"),
        lambda folder: (folder / "tokenizer/tokenizer.json").write_text("{}"),
    ],
    ids=["a fine-tune", "a shape", "a config", "a tokenizer"],
)
def test_fingerprint_sees(flux_checkpoint: Checkpoint, change: Any) -> None:
    before = flux_checkpoint.fingerprint()
    change(flux_checkpoint.folder)
    assert flux_checkpoint.fingerprint() != before


# -- folders and bundled checkpoints ----------------------------------------------------------------------------------


def test_a_folder_is_a_checkpoint(flux_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve(str(flux_checkpoint.folder))
    assert (found.folder, found.name) == (flux_checkpoint.folder, str(flux_checkpoint.folder))
    monkeypatch.chdir(flux_checkpoint.folder.parent)
    assert resolve("./flux").folder == flux_checkpoint.folder
    assert resolve("flux").class_name == "FluxPipeline"


def test_a_bundled_name_goes_before_a_folder(flux_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = flux_checkpoint.folder.parent
    shutil.copytree(flux_checkpoint.folder, folder / "bundled/pocket")
    monkeypatch.setattr(checkpoint_module, "BUNDLED", folder / "bundled")
    (folder / "pocket").mkdir()
    monkeypatch.chdir(folder)
    assert bundled_names() == ("pocket",)
    assert resolve("pocket") == Checkpoint(name="pocket", folder=folder / "bundled/pocket")
    with pytest.raises(CheckpointError, match=r"\./pocket has no model_index\.json.* it holds nothing"):
        resolve("./pocket")
    with pytest.raises(CheckpointError, match="did you mean pocket"):
        resolve("pokcet")


def test_bundled_checkpoints_lie_in_the_package() -> None:
    assert Path(str(checkpoint_module.BUNDLED)) == Path(checkpoint_module.__file__).parents[1] / "checkpoints"


@pytest.mark.parametrize("name", ["./nowhere", "nowhere/at/all", "../nowhere"])
def test_no_such_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"there is no folder {name}"):
        resolve(name)


def test_other_layouts_are_named(tmp_path: Path) -> None:
    (tmp_path / "sd.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"it holds sd\.safetensors"):
        resolve(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"sd\.safetensors is a file; a checkpoint is a folder"):
        resolve(str(tmp_path / "sd.safetensors"))


def test_a_revision_of_a_folder_is_refused(flux_checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="only hub ids have revisions"):
        resolve(str(flux_checkpoint.folder), revision="main")


# -- the hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub_cache(flux_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds studio/lens at main and at v2."""
    repository = tmp_path / "hub/models--studio--lens"
    shutil.copytree(flux_template, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    for revision in ("main", "v2"):
        (repository / "refs" / revision).write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def test_cached_repositories_need_no_network(hub_cache: Path) -> None:
    folder = hub_cache / "models--studio--lens/snapshots" / COMMIT
    assert resolve("studio/lens") == Checkpoint(name="studio/lens", folder=folder)
    assert resolve("studio/lens@v2") == Checkpoint(name="studio/lens@v2", folder=folder)
    assert resolve("studio/lens", revision="v2") == resolve("studio/lens@v2")
    assert resolve(f"studio/lens@{COMMIT}").folder == folder
    assert cached_names() == ("studio/lens",)


def test_where_nothing_may_be_downloaded(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert resolve("studio/lens", download=False) == Checkpoint(
        name="studio/lens", folder=hub_cache / "models--studio--lens/snapshots" / COMMIT
    )
    with pytest.raises(CheckpointError, match=r"studio/other is not on this machine, .*and nothing is downloaded here"):
        resolve("studio/other", download=False)


def test_offline_says_what_to_do_and_what_is_here(hub_cache: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve("black-forest-labs/FLUX.1-dev@refs/pr/1")
    message = one_line(caught.value)
    assert "black-forest-labs/FLUX.1-dev@refs/pr/1 is not on this machine" in message
    assert "'hf download black-forest-labs/FLUX.1-dev --revision refs/pr/1'" in message
    assert "HF_HUB_OFFLINE" in message
    assert "on this machine: studio/lens" in message


def test_a_snapshot_that_was_broken_off_is_not_used(hub_cache: Path) -> None:
    (hub_cache / "models--studio--lens/snapshots" / COMMIT / "model_index.json").unlink()
    with pytest.raises(CheckpointError, match=r"studio/lens has no model_index\.json"):
        resolve("studio/lens")
    assert cached_names() == ()


def test_revision_given_twice(hub_cache: Path) -> None:
    with pytest.raises(CheckpointError, match="revision given twice"):
        resolve("studio/lens@v2", revision="v1")


def answer(status: int) -> Any:
    class Response:
        status_code, headers, request = status, {}, None

    return Response()


def unreachable() -> Exception:
    error = errors.LocalEntryNotFoundError("no snapshot\nsecond line")
    error.__cause__ = ConnectionError("no route")
    return error


def broken_server() -> Exception:
    error = errors.LocalEntryNotFoundError("no snapshot")
    error.__cause__ = errors.HfHubHTTPError("server error\nmore", response=answer(503))
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            errors.GatedRepoError("x", response=answer(401)),
            "is gated: accept its licence at https://.*/a/b, ",
        ),
        (errors.RepositoryNotFoundError("x", response=answer(404)), "the hub has no repository a/b, or it is private"),
        (errors.RevisionNotFoundError("x", response=answer(404)), "a/b has no revision 'v9'"),
        (errors.HfHubHTTPError("x\ny", response=answer(401)), r"refused a/b@v9 \(status 401\): log in"),
        (errors.HfHubHTTPError("x\ny", response=answer(500)), "status 500 for a/b@v9: x"),
        (unreachable(), "a/b@v9 is not on this machine, or not all of it, and the hub cannot be reached: run 'hf "),
        (broken_server(), "the hub answered with status 503 for a/b@v9: server error"),
        (OSError(28, "No space left on device"), "a/b@v9 could not be downloaded: .*No space left"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_the_hub_says(error: Exception, message: str, hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=message) as caught:
        resolve("a/b", revision="v9")
    one_line(caught.value)


def test_a_name_that_no_repository_can_have(hub_cache: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be downloaded"):
        resolve("a/b--c..d")


def test_pickles_are_never_asked_for(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patterns, judged by the hub client's own filter over what real repositories hold."""
    asked: dict[str, Any] = {}

    def record(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(hub_cache / "models--studio--lens/snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", record)
    resolve("studio/lens@v2")
    assert (asked["repo_id"], asked["revision"]) == ("studio/lens", "v2")
    wanted = [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "tokenizer/merges.txt",
        "tokenizer_2/spiece.model",
        "transformer/diffusion_pytorch_model-00001-of-00003.safetensors",
        "transformer/diffusion_pytorch_model.safetensors.index.json",
    ]
    unwanted = [
        "flux1-dev.safetensors",
        "transformer/diffusion_pytorch_model.bin",
        "unet/model.ckpt",
        "text_encoder/pytorch_model.bin",
        "vae/model.pt",
        "vae/weights.pkl",
        "vae/model.onnx",
        "custom/pipeline.py",
        "README.md",
    ]
    kept = huggingface_hub.utils.filter_repo_objects([*wanted, *unwanted], allow_patterns=asked["allow_patterns"])
    assert list(kept) == wanted
