"""What HiDream-I1 is told: two CLIPs' pooled embeddings, T5's token embeddings, and the outputs of Llama's layers.

Shapes: S prompt tokens, E width of T5, H width of Llama, P width of both CLIPs together, Y layers of Llama.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from petzval.errors import BadRequestError

MAX_PROMPT_TOKENS = 128
"""What each encoder reads, as published; prompts are padded to it."""


@dataclass(frozen=True, kw_only=True)
class TextEncoders:
    """The CLIPs cut a prompt off at 128 tokens, as published; T5 and Llama read the whole prompt or refuse."""

    clips: tuple[nn.Module, nn.Module]
    clip_tokenizers: tuple[Any, Any]
    t5: nn.Module
    t5_tokenizer: Any
    llama: nn.Module
    llama_tokenizer: Any
    device: torch.device

    def check(self, argument: str, prompt: str) -> None:
        """Raises BadRequestError when `prompt` is longer than T5 or Llama reads: nothing is cut off in silence."""
        for tokenizer in (self.t5_tokenizer, self.llama_tokenizer):
            most = _limit(tokenizer)
            tokens = len(tokenizer(prompt, verbose=False).input_ids)
            if tokens > most:
                raise BadRequestError(f"{argument} has {tokens} tokens; this checkpoint reads at most {most}")

    @torch.no_grad()
    def encode(self, prompt: str) -> dict[str, Tensor]:
        """A prompt -> pooled_prompt_embeds P, t5_embeds SE and llama_embeds YSH, in the encoders' dtype."""
        pooled = []
        for clip, tokenizer in zip(self.clips, self.clip_tokenizers, strict=True):
            ids, _ = self._tokens(tokenizer, prompt, MAX_PROMPT_TOKENS)
            pooled.append(clip(ids).text_embeds[0])
        ids, mask = self._tokens(self.t5_tokenizer, prompt, _limit(self.t5_tokenizer))
        t5_SE = self.t5(ids, attention_mask=mask)[0][0]
        ids, mask = self._tokens(self.llama_tokenizer, prompt, _limit(self.llama_tokenizer))
        states = self.llama(ids, attention_mask=mask, output_hidden_states=True).hidden_states[1:]
        return {
            "pooled_prompt_embeds": torch.cat(pooled),
            "t5_embeds": t5_SE,
            "llama_embeds": torch.cat(states),
        }

    def _tokens(self, tokenizer: Any, prompt: str, length: int) -> tuple[Tensor, Tensor]:
        encoded = tokenizer(prompt, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        return encoded.input_ids.to(self.device), encoded.attention_mask.to(self.device)


def _limit(tokenizer: Any) -> int:
    return min(MAX_PROMPT_TOKENS, tokenizer.model_max_length)
