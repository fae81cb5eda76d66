"""Tiny random parts of HiDream-I1 checkpoints, with real tokenizers."""

from __future__ import annotations

import string
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)


def clip_tokenizer() -> CLIPTokenizer:
    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{c}</w>" for c in letters)]
    vocab = {word: index for index, word in enumerate(["<|startoftext|>", *words, "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)


def t5_tokenizer() -> T5Tokenizer:
    pieces = [(c, -5.0) for c in string.ascii_letters + string.digits + string.punctuation]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces, ("\u2581", -3.0), ("\u2581fox", -4.0)]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def llama_tokenizer() -> PreTrainedTokenizerFast:
    letters = ["<|eot|>", *sorted(ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|eot|>", pad_token="<|eot|>")


def encoders() -> dict[str, Any]:
    """Components of HiDreamImagePipeline that read the prompt."""
    torch.manual_seed(3)
    clip, t5, llama = clip_tokenizer(), t5_tokenizer(), llama_tokenizer()

    def clip_model(projection: int) -> CLIPTextModelWithProjection:
        return CLIPTextModelWithProjection(
            CLIPTextConfig(
                vocab_size=len(clip), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                num_attention_heads=2, max_position_embeddings=128, projection_dim=projection,
                bos_token_id=clip.bos_token_id, eos_token_id=clip.eos_token_id, pad_token_id=clip.pad_token_id,
            )
        ).eval()  # fmt: skip

    return {
        "text_encoder": clip_model(4),
        "tokenizer": clip,
        "text_encoder_2": clip_model(6),
        "tokenizer_2": clip,
        "text_encoder_3": T5EncoderModel(
            T5Config(vocab_size=len(t5), d_model=12, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0)
        ).eval(),
        "tokenizer_3": t5,
        "text_encoder_4": LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(llama), hidden_size=20, intermediate_size=24, num_hidden_layers=3,
                num_attention_heads=2, num_key_value_heads=1, head_dim=10, attn_implementation="eager",
            )
        ).eval(),
        "tokenizer_4": llama,
    }  # fmt: skip
