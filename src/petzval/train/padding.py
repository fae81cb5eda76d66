"""A start from which words are heard: Wan's transformer is told prompts padded to hundreds of tokens, and unless its
cross-attention turns away from the padding, that is nearly all it sees.

With 500 padding tokens, their shared key outweighs a word's by log 500 = 6.2 in the softmax. A large model learns in
long training to push it down; in a small one 93 to 99 percent of the attention was still padding after 1,000 steps, and
captions were barely heard. So the weights start with it pushed down, by one channel of every head.

Shapes: D width, N heads, K head width.
"""

from __future__ import annotations

from typing import Any

import torch

from petzval.models.wan.dit import WanDiT

LOGIT = 8.5
"""How far below a word's the padding's attention logit starts: 500 padding tokens then weigh a tenth of one word."""

MEAN_GELU = 0.115
"""Mean of gelu(x) for x of a linear layer's default spread (0.577) on unit input; for zero input it is 0."""

STEP = 0.3
"""The reserved key channel's distance between word and padding, before the norm. Against the spread of a word's other
channels it is small, so that all words start about equal; against a few hundred optimizer steps it is large."""


@torch.no_grad()
def turn_away_from_padding(dit: WanDiT) -> None:
    """Rewrite a freshly made transformer's text embedder and cross-attention so that padding, which is zeros, hardly
    attracts queries. Everything stays an ordinary weight that training may change."""
    embedder = dit.condition_embedder.text_embedder
    # With no biases zeros stay zeros. Channel 0 is about 1 for any word: gelu(x) + gelu(-x) is above 0 for all x but 0.
    embedder.linear_1.bias.zero_()
    embedder.linear_2.bias.zero_()
    half = embedder.linear_1.out_features // 2
    embedder.linear_1.weight[half : 2 * half] = -embedder.linear_1.weight[:half]
    embedder.linear_2.weight[0] = 0
    embedder.linear_2.weight[0, : 2 * half] = 1.0 / (MEAN_GELU * 2 * half)
    for block in dit.blocks:
        _turn_away(block.attn2, dit.config.num_attention_heads)


def _turn_away(attention: Any, num_heads: int) -> None:
    to_q, to_k, to_v = attention.to_q, attention.to_k, attention.to_v
    width = to_q.weight.shape[0]
    reserved = torch.arange(num_heads) * (width // num_heads)
    # Channel 0 of the text says word or padding, and should say nothing else.
    to_k.weight[:, 0] = 0
    to_v.weight[:, 0] = 0
    # Reserved channels: of a key 0 for a word and -STEP for padding; of a query always 1.
    to_k.bias.zero_()
    to_k.weight[reserved] = 0
    to_k.weight[reserved, 0] = STEP
    to_k.bias[reserved] = -STEP
    to_q.weight[reserved] = 0
    to_q.bias[reserved] = 1
    # After the norms over all channels a query's entry there is 1 / 0.58 and the padding's key, whatever STEP, is
    # -sqrt(D / N) = -sqrt(K), which the logit's scale 1 / sqrt(K) makes -1.
    gain = (LOGIT * 0.58) ** 0.5
    attention.norm_q.weight[reserved] = gain
    attention.norm_k.weight[reserved] = gain
