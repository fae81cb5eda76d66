"""The Wan transformer against diffusers' on the same random weights.

Theirs reads prompts padded with zeros to 512 tokens; ours reads the tokens there are and counts the padding.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel

from petzval.errors import CheckpointError
from petzval.models.checkpoint import Checkpoint
from petzval.models.wan.dit import Modulation, WanConfig, WanDiT
from petzval.models.wan.generator import join_text
from petzval.models.wan.spec import KEEP_FLOAT32
from petzval.models.weights import load_weights
from tests.models.wan.tiny import attention, noisier

BASE = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 16,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 2,
}
CLIP = {"image_dim": 10, "added_kv_proj_dim": 24}
MAX_TOKENS = 512


@dataclass(frozen=True)
class Case:
    size: tuple[int, int, int] = (3, 4, 6)
    """Latent frames, height and width."""
    prompts: tuple[int, ...] = (7,)
    """Tokens of each row of the batch."""
    timesteps: tuple[tuple[float, ...], ...] = ((631.0,),)
    """Of each row: one, or one for each frame of patches."""
    images: int = 0
    """Pictures whose CLIP tokens are given."""
    config: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32


CASES = {
    "a clip": Case(),
    "one frame": Case(size=(1, 6, 4), timesteps=((1000.0,),)),
    "odd sizes, batch 3": Case(
        size=(5, 6, 14), prompts=(3, 11, 1), timesteps=((999.0,), (500.5,), (0.0,)),
    ),
    "five heads of 20": Case(config={"num_attention_heads": 5, "attention_head_dim": 20}, size=(2, 10, 6)),
    "three heads of 32": Case(
        config={"num_attention_heads": 3, "attention_head_dim": 32}, prompts=(4, 9), timesteps=((7.0,), (912.0,)),
    ),
    "one head of 6": Case(config={"num_attention_heads": 1, "attention_head_dim": 6}),
    "patches of 1": Case(config={"patch_size": (1, 1, 1)}, size=(3, 5, 3)),
    "patches of 2x2x2": Case(config={"patch_size": (2, 2, 2)}, size=(4, 6, 2)),
    "first frame given": Case(timesteps=((0.0, 631.0, 631.0),)),
    "a timestep per frame, batch 2": Case(
        size=(4, 6, 2), prompts=(5, 8), timesteps=((0.0, 10.0, 500.0, 990.0), (333.0, 333.0, 0.0, 1.0)),
    ),
    "equal timesteps per frame": Case(timesteps=((873.0, 873.0, 873.0),)),
    "CLIP tokens of a picture": Case(config=CLIP, images=1),
    "CLIP tokens, batch 2": Case(config=CLIP, images=1, prompts=(2, 30), timesteps=((20.0,), (870.0,))),
    "CLIP tokens of first and last": Case(config={**CLIP, "pos_embed_seq_len": 10}, images=2),
    "36 channels in, 16 out": Case(config={"in_channels": 36, "out_channels": 16}),
    "no norm before cross-attention": Case(config={"cross_attn_norm": False}),
    "512 tokens": Case(prompts=(MAX_TOKENS,)),
    "512 tokens beside 3": Case(prompts=(3, MAX_TOKENS), timesteps=((50.0,), (700.0,))),
    "bfloat16": Case(dtype=torch.bfloat16, prompts=(7, 20), timesteps=((50.0,), (700.0,))),
    "bfloat16, first frame given, CLIP": Case(
        dtype=torch.bfloat16, config=CLIP, images=1, timesteps=((0.0, 631.0, 631.0),),
    ),
}  # fmt: skip
BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def both(case: Case, tmp_path) -> tuple[WanTransformer3DModel, WanDiT]:
    """The same weights in both, each loaded from disk as it is used, so that both keep in float32 what they keep."""
    noisier(WanTransformer3DModel(**{**BASE, **case.config})).save_pretrained(tmp_path / "transformer")
    index = {"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTransformer3DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    checkpoint = Checkpoint(name="tiny", folder=tmp_path)
    ours = WanDiT(WanConfig.from_json(checkpoint.config("transformer")), attention)
    load_weights(ours, checkpoint, "transformer", dtype=case.dtype, device="cpu", keep_float32=KEEP_FLOAT32)
    theirs = WanTransformer3DModel.from_pretrained(tmp_path / "transformer", torch_dtype=case.dtype)
    return theirs.eval(), ours.eval()


def theirs_forward(theirs, case: Case, latents, prompts, images) -> torch.Tensor:
    padded = torch.stack([torch.cat([p, p.new_zeros(MAX_TOKENS - len(p), p.shape[1])]) for p in prompts])
    timesteps = torch.tensor(case.timesteps)
    if timesteps.shape[1] == 1:
        timesteps = timesteps[:, 0]
    else:  # one for each token
        (_, h, w), (_, height, width) = theirs.config.patch_size, case.size
        timesteps = timesteps.repeat_interleave(height // h * (width // w), dim=1)
    return theirs(
        hidden_states=latents,
        timestep=timesteps,
        encoder_hidden_states=padded,
        encoder_hidden_states_image=images,
        return_dict=False,
    )[0]


def ours_forward(ours: WanDiT, case: Case, latents, prompts, images) -> torch.Tensor:
    per_row = max(1, case.images)
    rows = [
        ours.text_kv(
            torch.cat([prompt, prompt.new_zeros(1, prompt.shape[1])])[None],
            None if images is None else images[row * per_row : (row + 1) * per_row],
        )
        for row, prompt in enumerate(prompts)
    ]
    text, bias_S = join_text(rows, MAX_TOKENS)
    # Each row's modulation is taken from a table over all its timesteps, as a trajectory does.
    tables = [ours.modulation(torch.tensor(row)) for row in case.timesteps]
    modulation = Modulation(*(torch.stack(parts) for parts in zip(*tables, strict=True)))
    return ours(latents, modulation, text, ours.rope(latents.shape, torch.device("cpu")), bias_S)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_forward_parity(name, tmp_path, parity_row):
    case = CASES[name]
    theirs, ours = both(case, tmp_path)
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(case.dtype)

    latents = draw(len(case.prompts), ours.config.in_channels, *case.size)
    prompts = [draw(tokens, BASE["text_dim"]) for tokens in case.prompts]
    images = draw(len(case.prompts) * case.images, 5, CLIP["image_dim"]) if case.images else None
    expected = theirs_forward(theirs, case, latents, prompts, images)
    got = ours_forward(ours, case, latents, prompts, images)
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    parity_row("wan", name, "forward, max relative error", f"{error:.1e}")
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert error <= BOUND[case.dtype]


@pytest.mark.parametrize("name", ["bfloat16", "bfloat16, first frame given, CLIP"])
def test_the_same_parameters_stay_float32(name, tmp_path):
    theirs, ours = both(CASES[name], tmp_path)
    found = {n: p.dtype for n, p in ours.named_parameters()}
    assert found == {n: p.dtype for n, p in theirs.named_parameters()}
    assert set(found.values()) == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize(
    "config", [{}, {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120, "pos_embed_seq_len": 514}]
)
def test_same_names_and_shapes_as_published(config):
    """At the 14B checkpoints' size, on the meta device: every parameter of one is in the other."""
    with torch.device("meta"):
        theirs = WanTransformer3DModel(**config)
        ours = WanDiT(WanConfig.from_json(dict(theirs.config)), attention)
    assert {n: p.shape for n, p in ours.state_dict().items()} == {n: p.shape for n, p in theirs.state_dict().items()}


def test_a_config_that_is_not_known_is_refused():
    with pytest.raises(CheckpointError, match="settings that Wan does not: window"):
        WanConfig.from_json({"num_layers": 2, "window": 3})
    with pytest.raises(CheckpointError, match="qk_norm must be rms_norm_across_heads, got 'layer_norm'"):
        WanConfig.from_json({"qk_norm": "layer_norm"})


def test_positions_end_where_the_checkpoint_says():
    with torch.device("meta"):
        ours = WanDiT(WanConfig.from_json({**BASE, "rope_max_seq_len": 8}), attention)
    assert len(ours.rope((1, 16, 16), torch.device("cpu"))[0]) == 64
    with pytest.raises(CheckpointError, match="9 patches along an axis, but positions end at 8"):
        ours.rope((1, 16, 18), torch.device("cpu"))
