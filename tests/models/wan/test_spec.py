"""What a folder's configs say of a checkpoint, and checkpoints that do not fit together."""

import inspect
import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanPipeline

from petzval.errors import CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.wan import spec
from petzval.models.wan.dit import WanConfig, WanDiT
from petzval.models.wan.spec import DIT, layout
from petzval.types import Request
from tests.models.wan import tiny


def facts(folder: Path):
    return spec(Checkpoint(name="named-t2v", folder=folder))


def changed(folder: Path, tmp_path: Path, file: str, changes: dict[str, Any]) -> Path:
    """A copy with a config file that says something else; None takes a key away."""
    shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
    path = tmp_path / "copy" / file
    config = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("name", "variant", "tasks", "multiple", "stride", "sampler"),
    [
        ("t2v", "t2v", {"text-to-video", "text-to-image", "image-to-image"}, 16, 4, "unipc"),
        ("t2v, euler", "t2v", {"text-to-video", "text-to-image", "image-to-image"}, 16, 4, "euler"),
        ("t2v, dpm++", "t2v", {"text-to-video", "text-to-image", "image-to-image"}, 16, 4, "dpm++2m"),
        ("ti2v", "ti2v", {"text-to-video", "text-to-image", "image-to-image", "image-to-video"}, 32, 4, "unipc"),
        ("pocket", "ti2v", {"text-to-video", "text-to-image", "image-to-image", "image-to-video"}, 16, 1, "unipc"),
        ("t2v-a14b", "t2v-a14b", {"text-to-video", "text-to-image", "image-to-image"}, 16, 4, "unipc"),
        ("i2v-a14b", "i2v-a14b", {"image-to-video"}, 16, 4, "unipc"),
        ("i2v", "i2v", {"image-to-video"}, 16, 4, "unipc"),
        ("flf2v", "i2v", {"image-to-video"}, 16, 4, "unipc"),
    ],
)
def test_variant_is_read_from_the_configs(wan_folder, name, variant, tasks, multiple, stride, sampler):
    found = facts(wan_folder(name))
    assert (found.family, found.variant, found.licence, found.max_prompt_tokens) == ("wan", variant, "Apache-2.0", 512)
    assert set(found.tasks) == tasks
    assert (found.size_multiple, found.frame_stride, found.samplers[0]) == (multiple, stride, sampler)
    assert set(found.samplers) == {"unipc", "euler", "dpm++2m"}
    parts = tiny.components(tiny.VARIANTS[name])
    models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
    assert found.parameters == {n: sum(p.numel() for p in model.parameters()) for n, model in models.items()}


def test_defaults_are_the_published_ones(wan):
    signature = inspect.signature(WanPipeline.__call__).parameters
    asked = wan("t2v").plan(Request(task="text-to-video", prompt="a fox")).request
    for name in ("width", "height", "num_frames", "num_inference_steps", "guidance_scale"):
        assert getattr(asked, name) == signature[name].default
    assert (asked.fps, asked.strength, asked.guidance_scale_2, asked.negative_prompt) == (16, None, None, "")

    asked = wan("t2v").plan(Request(task="text-to-image", prompt="a fox")).request
    assert (asked.num_frames, asked.fps, asked.width) == (1, None, 832)

    asked = wan("ti2v").plan(Request(task="text-to-video", prompt="a fox")).request
    assert (asked.width, asked.height, asked.num_frames, asked.fps) == (1280, 704, 121, 24)

    asked = wan("t2v-a14b").plan(Request(task="text-to-video", prompt="a fox")).request
    assert (asked.num_inference_steps, asked.guidance_scale, asked.guidance_scale_2) == (40, 4.0, 3.0)


@pytest.mark.parametrize(
    ("name", "file", "changes", "message"),
    [
        ("t2v-a14b", "model_index.json", {"transformer_2": [None, None]}, "two experts need a boundary_ratio"),
        ("t2v", "model_index.json", {"boundary_ratio": 0.9}, "two experts need a boundary_ratio"),
        ("t2v-a14b", "model_index.json", {"boundary_ratio": None}, "two experts need a boundary_ratio"),
        ("t2v-a14b", "transformer_2/config.json", {"eps": 1e-5}, "transformer and transformer_2 have different"),
        ("t2v-a14b", "model_index.json", {"expand_timesteps": True}, "expand_timesteps is for one expert"),
        ("i2v", "model_index.json", {"expand_timesteps": True}, "without a picture's channels"),
        ("t2v", "transformer/config.json", {"in_channels": 9}, "takes 9 channels and gives 4; its vae has 4"),
        ("t2v", "vae/config.json", {"z_dim": 8}, "so it must take 8 or 20 and give 8"),
        ("i2v", "vae/config.json", {"scale_factor_temporal": 2}, "so it must take 4 and give 4"),
        ("t2v", "transformer/config.json", {"patch_size": [1, 2, 1]}, "square and one frame deep, got 1 x 2 x 1"),
        ("t2v", "transformer/config.json", {"patch_size": [2, 2, 2]}, "got 2 x 2 x 2"),
        ("t2v", "transformer/config.json", {"window_size": 3}, "settings that Wan does not: window_size"),
        ("t2v", "transformer/config.json", {"text_dim": 7}, "text_dim is 7, but its other components need 16"),
        ("i2v", "transformer/config.json", {"image_dim": 7}, "image_dim is 7, but its other components need 10"),
        ("i2v", "transformer/config.json", {"added_kv_proj_dim": 7}, "added_kv_proj_dim is 7"),
        ("t2v", "transformer/config.json", {"image_dim": 7}, "image_dim must take a picture's channels"),
        ("t2v", "model_index.json", {"vae": ["diffusers", "AutoencoderKL"]}, "vae must be AutoencoderKLWan, it is"),
        ("t2v", "model_index.json", {"transformer": [None, None]}, "must be WanTransformer3DModel, it is none"),
        (
            "t2v-a14b", "model_index.json", {"transformer_2": ["diffusers", "WanVACETransformer3DModel"]},
            "transformer_2 must be WanTransformer3DModel, it is WanVACETransformer3DModel",
        ),
        ("i2v", "model_index.json", {"image_encoder": [None, None]}, "no component 'image_encoder'"),
        ("t2v", "model_index.json", {"text_encoder": ["transformers", "T5EncoderModel"]}, "must be UMT5EncoderModel"),
        ("t2v", "scheduler/scheduler_config.json", {"_class_name": "PNDMScheduler"}, "no sampler for scheduler 'PNDM"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused(wan_folder, tmp_path, name, file, changes, message):
    folder = changed(wan_folder(name), tmp_path, file, changes)
    with pytest.raises(CheckpointError) as refusal:
        facts(folder)
    assert message in str(refusal.value)


def test_an_image_processor_that_is_not_followed_is_refused(wan_folder, tmp_path):
    file = "image_processor/preprocessor_config.json"
    with pytest.raises(CheckpointError, match="image_processor: do_center_crop must be on"):
        tiny.load_ours(changed(wan_folder("i2v"), tmp_path, file, {"do_center_crop": False}))
    with pytest.raises(CheckpointError, match="image_processor has no crop_size"):
        tiny.load_ours(changed(wan_folder("i2v"), tmp_path, file, {"do_center_crop": True, "crop_size": None}))


def test_the_boundary_counts_training_timesteps(wan_folder, tmp_path):
    assert layout(Checkpoint(name="x", folder=wan_folder("t2v-a14b"))).boundary == 875
    folder = changed(wan_folder("t2v-a14b"), tmp_path, "scheduler/scheduler_config.json", {"num_train_timesteps": 2000})
    assert layout(Checkpoint(name="x", folder=folder)).boundary == 1750


# -- what a checkpoint says of itself ---------------------------------------------------------------------------------

OWN = {
    "variant": "pocket",
    "licence": "CC0-1.0",
    "square": True,
    "training": "0123",
    "defaults": {
        "text-to-image": {"width": 48, "height": 64, "num_inference_steps": 7, "guidance_scale": 4.5},
        "image-to-video": {"width": 32, "height": 32, "num_frames": 9, "fps": 8},
    },
}


def test_its_own_facts_stand_over_the_published(wan_folder, tmp_path):
    ours = tiny.load_ours(changed(wan_folder("pocket"), tmp_path, "petzval.json", OWN))
    assert (ours.spec.variant, ours.spec.licence) == ("pocket", "CC0-1.0")
    asked = ours.plan(Request(task="text-to-image", prompt="a fox")).request
    assert (asked.width, asked.height, asked.num_inference_steps, asked.guidance_scale) == (48, 64, 7, 4.5)
    assert ours.spec.tasks["image-to-video"].num_frames == 9
    assert ours.spec.tasks["image-to-video"].max_images == 1
    assert ours.spec.tasks["text-to-video"].width == 1280
    assert ours.natural_size("image-to-video", 900, 300) == (32, 32)


@pytest.mark.parametrize(
    ("facts_file", "message"),
    [
        ('{"variant": ', "petzval.json is not valid JSON"),
        ('["pocket"]', "petzval.json must hold a JSON object, it holds a list"),
        ('{"license": "MIT"}', "petzval.json has facts that are not known: license"),
        ('{"defaults": {"text-to-image": {"steps": 5}}}', "petzval.json has defaults that are not one"),
        ('{"defaults": ["text-to-image"]}', "petzval.json has defaults that are not one"),
        ('{"defaults": {"text-to-image": 5}}', "petzval.json has defaults that are not one"),
        ('{"defaults": 5}', "petzval.json has defaults that are not one"),
        ('{"defaults": {"text-to-sound": {}}}', "petzval.json has defaults of text-to-sound; it can do text-to-video"),
        (
            '{"defaults": {"text-to-image": {"width": 50}}}',
            "petzval.json, defaults of text-to-image: width must be a multiple of 16, got 50",
        ),
        ('{"defaults": {"image-to-video": {"num_frames": "9"}}}', "defaults of image-to-video: num_frames must be"),
    ],
)  # fmt: skip
def test_damaged_facts_are_refused(wan_folder, tmp_path, facts_file, message):
    folder = changed(wan_folder("pocket"), tmp_path, "petzval.json", {})
    (folder / "petzval.json").write_text(facts_file)
    with pytest.raises(CheckpointError) as refusal:
        facts(folder)
    assert message in str(refusal.value)


def test_the_spec_names_modules_that_exist():
    with torch.device("meta"):
        dit = WanDiT(WanConfig(num_layers=2, image_dim=8, added_kv_proj_dim=5120), tiny.attention)
    modules = dict(dit.named_modules())
    for pattern in (*DIT.blocks, *DIT.column_split, *DIT.row_split, *DIT.keep_full_precision):
        assert any(fnmatchcase(name, pattern) for name in modules), pattern
    split = [name for name in modules for p in (*DIT.column_split, *DIT.row_split) if fnmatchcase(name, p)]
    assert all(isinstance(modules[name], torch.nn.Linear) for name in split)
    linears = [n for n, m in modules.items() if n.startswith("blocks.") and isinstance(m, torch.nn.Linear)]
    assert sorted(split) == sorted(linears)
