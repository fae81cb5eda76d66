"""What FLUX.1 is told: CLIP's pooled embedding, T5's token embeddings, and the size of a Kontext reference.

Shapes: S prompt tokens, E width of T5, P width of CLIP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from petzval.errors import BadRequestError

_KONTEXT_SIDES = (
    (672, 1568),
    (688, 1504),
    (720, 1456),
    (752, 1392),
    (800, 1328),
    (832, 1248),
    (880, 1184),
    (944, 1104),
)
KONTEXT_SIZES = tuple(sorted({(1024, 1024), *_KONTEXT_SIDES, *((b, a) for a, b in _KONTEXT_SIDES)}))
"""(width, height) of the pictures that Kontext was trained on."""


def kontext_size(width: int, height: int, *, multiple: int) -> tuple[int, int]:
    """The trained size whose aspect is nearest to that of a `width` x `height` picture, rounded down to `multiple`."""
    nearest = min(KONTEXT_SIZES, key=lambda size: (abs(width / height - size[0] / size[1]), size))
    return nearest[0] // multiple * multiple, nearest[1] // multiple * multiple


@dataclass(frozen=True, kw_only=True)
class TextEncoders:
    """CLIP reads at most its own 77 tokens and ignores the rest, as published; T5 reads the whole prompt or refuses."""

    clip: nn.Module
    clip_tokenizer: Any
    t5: nn.Module
    t5_tokenizer: Any
    max_tokens: int
    """What T5 embeds: prompts are padded to it."""
    device: torch.device

    def check(self, argument: str, prompt: str) -> None:
        """Raises BadRequestError when `prompt` is longer than T5's limit: nothing is cut off in silence."""
        tokens = len(self.t5_tokenizer(prompt, verbose=False).input_ids)
        if tokens > self.max_tokens:
            raise BadRequestError(f"{argument} has {tokens} tokens; this checkpoint reads at most {self.max_tokens}")

    @torch.no_grad()
    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """A prompt -> its token embeddings SE and its pooled embedding P, in the encoders' dtype."""
        clip_tokens = self._tokens(self.clip_tokenizer, prompt, self.clip_tokenizer.model_max_length)
        pooled_P = self.clip(clip_tokens).pooler_output[0]
        prompt_SE = self.t5(self._tokens(self.t5_tokenizer, prompt, self.max_tokens))[0][0]
        return prompt_SE, pooled_P

    def _tokens(self, tokenizer: Any, prompt: str, length: int) -> Tensor:
        encoded = tokenizer(prompt, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        ids: Tensor = encoded.input_ids
        return ids.to(self.device)
