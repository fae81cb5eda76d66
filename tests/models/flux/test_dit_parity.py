"""The FLUX.1 transformer against diffusers' on the same random weights."""

import pytest
import torch
from diffusers import FluxTransformer2DModel

from petzval.models.flux.dit import FluxConfig, FluxDiT
from tests.models.flux.tiny import attention

BASE = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 24,
    "pooled_projection_dim": 12,
    "guidance_embeds": False,
    "axes_dims_rope": (4, 6, 6),
}

# name: (config, batch, (rows, columns), prompt tokens, reference (rows, columns), dtype)
CASES = {
    "schnell": (BASE, 1, (4, 4), 7, None, torch.float32),
    "dev, guidance embed": ({**BASE, "guidance_embeds": True}, 1, (4, 4), 7, None, torch.float32),
    "odd sizes, batch 3": ({**BASE, "guidance_embeds": True}, 3, (5, 3), 11, None, torch.float32),
    "five heads of 24": (
        {**BASE, "num_attention_heads": 5, "attention_head_dim": 24, "axes_dims_rope": (8, 8, 8)},
        2, (3, 7), 5, None, torch.float32,
    ),
    "uneven axes": (
        {**BASE, "num_attention_heads": 3, "attention_head_dim": 32, "axes_dims_rope": (2, 10, 20)},
        2, (6, 1), 3, None, torch.float32,
    ),
    "double blocks only": ({**BASE, "num_single_layers": 0, "num_layers": 3}, 2, (3, 5), 9, None, torch.float32),
    "single blocks only": ({**BASE, "num_layers": 0, "num_single_layers": 3}, 2, (3, 5), 9, None, torch.float32),
    "Kontext reference": ({**BASE, "guidance_embeds": True}, 2, (4, 5), 6, (3, 7), torch.float32),
    "other output width": ({**BASE, "in_channels": 24, "out_channels": 8}, 1, (4, 3), 8, None, torch.float32),
    "bfloat16": ({**BASE, "guidance_embeds": True}, 2, (4, 4), 7, None, torch.bfloat16),
}  # fmt: skip
BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def grid(index: int, size: tuple[int, int]) -> torch.Tensor:
    rows, columns = size
    return torch.tensor([(index, h, w) for h in range(rows) for w in range(columns)], dtype=torch.float32)


def both(config: dict, dtype: torch.dtype) -> tuple[FluxTransformer2DModel, FluxDiT]:
    torch.manual_seed(0)
    theirs = FluxTransformer2DModel(**config).eval()
    with torch.no_grad():
        for p in theirs.parameters():  # norms start at one and biases near zero: make every number matter
            p.add_(torch.randn_like(p) * 0.1)
    ours = FluxDiT(FluxConfig.from_dict(dict(theirs.config)), attention)
    ours.load_state_dict(theirs.state_dict())
    return theirs.to(dtype), ours.to(dtype)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_forward_parity(name, parity_row):
    config, batch, size, prompt_tokens, reference, dtype = CASES[name]
    theirs, ours = both(config, dtype)
    ids = torch.cat([grid(0, size), *([grid(1, reference)] if reference else [])])
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    x = draw(batch, len(ids), config["in_channels"])
    prompt = draw(batch, prompt_tokens, config["joint_attention_dim"])
    pooled = draw(batch, config["pooled_projection_dim"])
    timesteps = torch.linspace(1000, 3.7, batch + 1)[:batch]
    guidance = 3.5 if config["guidance_embeds"] else None
    expected = theirs(
        hidden_states=x,
        encoder_hidden_states=prompt,
        pooled_projections=pooled,
        timestep=timesteps.to(dtype) / 1000,
        guidance=torch.full((batch,), guidance) if guidance else None,
        img_ids=ids,
        txt_ids=torch.zeros(prompt_tokens, 3),
        return_dict=False,
    )[0]
    # Each row's modulation is taken from a table over all timesteps, as a trajectory does.
    tables = [ours.modulation(timesteps, row, guidance) for row in pooled]
    got = ours(
        x,
        ours.embed_prompt(prompt),
        torch.stack([table[row] for row, table in enumerate(tables)]),
        x_rope=ours.rope(ids),
        prompt_rope=ours.rope(torch.zeros(prompt_tokens, 3)),
    )
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    parity_row("flux", name, "forward, max relative error", f"{error:.1e}")
    assert got.shape == expected.shape
    assert error <= BOUND[dtype]


def test_same_names_and_shapes_as_published():
    """At FLUX.1-dev's size, on the meta device: every parameter of one is in the other."""
    with torch.device("meta"):
        theirs = FluxTransformer2DModel(guidance_embeds=True)
        ours = FluxDiT(FluxConfig(guidance_embeds=True), attention)
    assert {n: p.shape for n, p in ours.state_dict().items()} == {n: p.shape for n, p in theirs.state_dict().items()}
    rows = ours.config.modulation_numbers
    assert rows == 3072 * (12 * 19 + 3 * 38 + 2)
