"""The pocket text encoder: a tokenizer learned from captions, and a small UMT5 encoder."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from petzval.train.config import TextConfig

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"


def make_tokenizer(captions: Iterable[str], config: TextConfig) -> PreTrainedTokenizerFast:
    """Byte-pair encoding of bytes: every word of the scenes is one token, and any other text has some."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, END, UNKNOWN]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, special.index(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=config.max_tokens,
        clean_up_tokenization_spaces=False,
    )


def make_encoder(tokenizer: PreTrainedTokenizerFast, config: TextConfig) -> UMT5EncoderModel:
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(tokenizer),
            d_model=config.width,
            d_kv=config.width // config.num_heads,
            d_ff=2 * config.width,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
