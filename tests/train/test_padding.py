"""The start from which words are heard, in a transformer of the pocket's own size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from petzval.models.wan.dit import Modulation, WanConfig, WanDiT
from petzval.train.config import TextConfig, TransformerConfig
from petzval.train.padding import turn_away_from_padding


def padding_share(*, turned: bool, words: int) -> list[float]:
    """Share of the cross-attention that goes to the padding, per block, for unit-scale text."""
    torch.manual_seed(0)
    size, text = TransformerConfig(), TextConfig()
    shares: list[float] = []

    def attention(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
        logits = torch.einsum("blnk,bsnk->bnls", q, k) / math.sqrt(q.shape[-1])
        weights = (logits if bias_S is None else logits + bias_S).softmax(-1)
        if bias_S is not None:
            shares.append(float(weights[..., -1].mean()))
        return torch.einsum("bnls,bsnk->blnk", weights, v)

    config = WanConfig(
        num_attention_heads=size.num_heads, attention_head_dim=size.head_dim, text_dim=text.width,
        freq_dim=size.freq_dim, ffn_dim=size.ffn_dim, num_layers=size.num_layers,
    )  # fmt: skip
    dit = WanDiT(config, attention)
    if turned:
        turn_away_from_padding(dit)
    embeds = torch.cat([torch.randn(2, words, text.width), torch.zeros(2, 1, text.width)], dim=1)
    bias = torch.zeros(words + 1)
    bias[-1] = math.log(text.max_tokens - words)
    with torch.no_grad():
        flat = dit.modulation(torch.tensor([700.0, 300.0]))
        modulation = Modulation(flat.block[:, None], flat.out[:, None])
        latents = torch.randn(2, 16, 1, 16, 16)
        dit(latents, modulation, dit.text_kv(embeds), dit.rope(latents.shape, latents.device), bias)
    return shares


@pytest.mark.parametrize("words", [3, 10, 40])
def test_words_are_heard_over_padding(words: int) -> None:
    assert max(padding_share(turned=True, words=words)) < 0.1
    assert min(padding_share(turned=False, words=words)) > 0.8, "the default start needs no turning away: delete it"
