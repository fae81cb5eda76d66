"""The HiDream-I1 transformer against diffusers' on the same random weights."""

import pytest
import torch
from diffusers import HiDreamImageTransformer2DModel

from petzval.errors import CheckpointError
from petzval.models.hidream.dit import HiDreamConfig, HiDreamDiT
from petzval.ops.attention import math_attention

BASE = {
    "patch_size": 2,
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "caption_channels": [12, 20],
    "text_emb_dim": 10,
    "num_routed_experts": 4,
    "num_activated_experts": 2,
    "axes_dims_rope": [8, 4, 4],
    "max_resolution": [16, 16],
    "llama_layers": [0, 2, 1, 2],
}
BOUND = 1e-5

# name: (config changes, batch, (rows, columns) of patches, tokens of T5, of Llama)
CASES = {
    "square": ({}, 1, (4, 4), 5, 5),
    "wide, batch 3": ({}, 3, (3, 7), 4, 6),
    "tall, one column, odd": ({}, 2, (9, 1), 3, 3),
    "not square but full": ({}, 1, (4, 16), 4, 4),
    "one empty token": ({}, 2, (7, 9), 4, 4),
    "five heads of 24": (
        {"num_attention_heads": 5, "attention_head_dim": 24, "axes_dims_rope": [8, 8, 8]}, 2, (5, 3), 6, 6,
    ),
    "half of each head rotated": ({"axes_dims_rope": [4, 2, 2]}, 2, (3, 5), 4, 4),
    "six experts, three active": ({"num_routed_experts": 6, "num_activated_experts": 3}, 2, (3, 3), 4, 4),
    "one expert active": ({"num_activated_experts": 1}, 1, (2, 5), 4, 4),
    "no experts": ({"num_routed_experts": 0}, 2, (3, 4), 4, 4),
    "more single blocks": ({"num_layers": 1, "num_single_layers": 3}, 2, (5, 5), 4, 4),
}  # fmt: skip


def both(config: dict) -> tuple[HiDreamImageTransformer2DModel, HiDreamDiT]:
    torch.manual_seed(0)
    theirs = HiDreamImageTransformer2DModel(**config).eval()
    with torch.no_grad():
        for p in theirs.parameters():  # norms start at one: make every number matter
            p.add_(torch.randn_like(p) * 0.1)
    ours = HiDreamDiT(HiDreamConfig.from_dict(dict(theirs.config)), math_attention)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def patches(x_BCHW: torch.Tensor) -> torch.Tensor:
    cut = x_BCHW.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_forward_parity(name, parity_row):
    changes, batch, (rows, columns), t5_tokens, llama_tokens = CASES[name]
    config = BASE | changes
    theirs, ours = both(config)
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    latents = draw(batch, 4, 2 * rows, 2 * columns)
    t5, llama = draw(batch, t5_tokens, 12), draw(3, batch, llama_tokens, 20)
    pooled, timesteps = draw(batch, 10), torch.linspace(999, 3.7, batch + 1)[:batch]
    expected = theirs(
        hidden_states=latents,
        timesteps=timesteps,
        encoder_hidden_states_t5=t5,
        encoder_hidden_states_llama3=llama,
        pooled_embeds=pooled,
        return_dict=False,
    )[0]
    # Each row's modulation is taken from a table over all timesteps, as a trajectory does.
    tables = [ours.modulation(timesteps, row) for row in pooled]
    got = ours(
        patches(latents),
        ours.embed_prompt(t5, list(llama)),
        torch.stack([table[row] for row, table in enumerate(tables)]),
        rope=ours.rope(rows, columns),
        empty=ours.config.empty_tokens(rows, columns),
    )
    expected = patches(expected)
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    parity_row("hidream", name, "forward, max relative error", f"{error:.1e}")
    assert got.shape == expected.shape
    assert error <= BOUND


def test_same_names_and_shapes_as_published():
    """At HiDream-I1's size, on the meta device: every parameter of one is in the other."""
    layers = list(HiDreamConfig().llama_layers)
    with torch.device("meta"):
        theirs = HiDreamImageTransformer2DModel(
            patch_size=2, in_channels=16, caption_channels=[4096, 4096], llama_layers=layers
        )
        ours = HiDreamDiT(HiDreamConfig(), math_attention)
    assert {n: p.shape for n, p in ours.state_dict().items()} == {n: p.shape for n, p in theirs.state_dict().items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama_layers": [0]}, "llama_layers must name a layer for each of 4 blocks, it names 1"),
        ({"axes_dims_rope": [4, 4, 4]}, "must be three numbers that add up to attention_head_dim 16 or half of it"),
        ({"qk_norm": "none"}, "does not know: qk_norm"),
    ],
)
def test_a_config_that_is_not_hidream_s_is_refused(changes, message):
    with pytest.raises(CheckpointError) as refusal:
        HiDreamConfig.from_dict(BASE | changes)
    assert message in str(refusal.value)
