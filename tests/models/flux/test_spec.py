"""What a folder's configs say of a checkpoint, and checkpoints that do not fit together."""

import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from petzval.errors import CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.flux import spec
from petzval.models.flux.dit import FluxConfig, FluxDiT
from petzval.models.flux.spec import DIT
from tests.models.flux import tiny


def facts(folder: Path):
    return spec(Checkpoint(name="named-dev-kontext-schnell", folder=folder))


@pytest.mark.parametrize(
    ("variant", "licence", "tokens"),
    [
        ("dev", "FLUX.1 [dev] Non-Commercial License", 512),
        ("schnell", "Apache-2.0", 256),
        ("kontext", "FLUX.1 [dev] Non-Commercial License", 512),
    ],
)
def test_variant_is_read_from_the_configs(flux_folder, variant, licence, tokens):
    found = facts(flux_folder(variant))
    assert (found.family, found.variant, found.licence, found.max_prompt_tokens) == ("flux", variant, licence, tokens)
    assert found.size_multiple == 16
    assert found.samplers[0] == "euler"
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts(variant).items()}
    assert found.parameters == counts


def parts(variant):
    made = tiny.components(**tiny.VARIANTS[variant][1])
    return {name: part for name, part in made.items() if isinstance(part, torch.nn.Module)}


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("transformer/config.json", {"in_channels": 64}, "in_channels is 64, but its other components need 16"),
        ("transformer/config.json", {"joint_attention_dim": 5}, "joint_attention_dim is 5"),
        ("transformer/config.json", {"pooled_projection_dim": 5}, "pooled_projection_dim is 5"),
        ("transformer/config.json", {"axes_dims_rope": [4, 4, 6]}, "must be three numbers that add up"),
        ("transformer/config.json", {"patch_size": 2}, "patch_size must be 1, got 2"),
        ("transformer/config.json", {"qk_norm": "none"}, "does not know: qk_norm"),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderTiny"]}, "vae must be AutoencoderKL"),
        ("model_index.json", {"text_encoder": [None, None]}, "text_encoder must be CLIPTextModel, it is none"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(flux_folder, tmp_path, file, changes, message):
    folder = tmp_path / "dev"
    shutil.copytree(flux_folder("dev"), folder)
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError) as refusal:
        facts(folder)
    assert message in str(refusal.value)


def test_the_spec_names_modules_that_exist():
    with torch.device("meta"):
        dit = FluxDiT(FluxConfig(num_layers=2, num_single_layers=2, guidance_embeds=True), tiny.attention)
    modules = dict(dit.named_modules())
    for pattern in (*DIT.blocks, *DIT.column_split, *DIT.row_split, *DIT.keep_full_precision):
        assert any(fnmatchcase(name, pattern) for name in modules), pattern
    split = [name for name in modules for p in (*DIT.column_split, *DIT.row_split) if fnmatchcase(name, p)]
    assert all(isinstance(modules[name], torch.nn.Linear) for name in split)
    assert len(split) == len(set(split)) == 2 * (12 + 5)
