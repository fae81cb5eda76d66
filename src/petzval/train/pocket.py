"""The recipe of the pocket checkpoints: draw scenes, make the autoencoder, cache latents, train text and transformer.

Each stage leaves its outcome in the run's folder and is skipped when that is there, so a killed run goes on where it
was. Equal configs make equal weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from petzval.errors import CheckpointError
from petzval.models.checkpoint import resolve
from petzval.models.components import load_text_encoder, load_tokenizer, load_vae
from petzval.models.wan.dit import WanConfig, WanDiT
from petzval.models.wan.spec import layout, spec
from petzval.models.weights import load_weights
from petzval.ops.attention import sdpa_attention
from petzval.scenes.captions import caption
from petzval.scenes.draw import Scene
from petzval.train.autoencoder import decoder_batch, decoder_loss, decoder_parts, pca_autoencoder
from petzval.train.batches import Batches
from petzval.train.config import TrainConfig
from petzval.train.export import save_vae
from petzval.train.flow import TextToVelocity, flow_loss
from petzval.train.latents import LatentSet, LatentSets, cached_set, draw_set
from petzval.train.loop import LoopHooks, Progress, make_optimizer, plot_log, read_log, train
from petzval.train.padding import turn_away_from_padding
from petzval.train.preview import averaged
from petzval.train.state import STATE_FILE, RunState, load_state
from petzval.train.text import make_encoder, make_tokenizer

STATE_SECTIONS = ("start", "data", "autoencoder", "text", "transformer")
"""What a training state depends on: a longer run, or a later decay, may go on from a shorter one; another model or
other data may not."""

Report = Callable[[str, int, int, str], None]
"""(stage, done, total, note): how far a stage is."""


def autoencoder(config: TrainConfig, folder: Path, report: Report) -> AutoencoderKLWan:
    """The PCA autoencoder, with its decoder trained if that stage is done; or that of the checkpoint started from."""
    if config.start:
        return load_vae(resolve(config.start), dtype=torch.float32, device="cpu")
    trained, start = folder / "vae", folder / "vae-start"
    for path in (trained, start):
        if (path / "config.json").exists():
            return AutoencoderKLWan.from_pretrained(path).eval()
    frames = []
    scenes = draw_set(config.autoencoder.pca_frames, num_frames=1, canvas=config.data.canvas, seed=config.data.seed + 1)
    for index, (_, frame, _) in enumerate(scenes):
        frames.append(frame)
        report("principal components", index + 1, config.autoencoder.pca_frames, "")
    vae = pca_autoencoder(np.concatenate(frames), config.autoencoder)
    save_vae(vae, start)
    return vae


def train_decoder(config: TrainConfig, folder: Path, report: Report) -> AutoencoderKLWan:
    """The stage that trains the decoder. The encoder stays, so neither latents nor transformer depend on it."""
    vae = autoencoder(config, folder, report)
    if config.start or (folder / "vae" / "config.json").exists():
        return vae
    parts = decoder_parts(vae)

    def loss_at(train_step: int) -> tuple[Tensor, str]:
        pixels = decoder_batch(train_step, config)
        return decoder_loss(vae, pixels, train_step, config.decoder), "frames"

    state = train(
        parts,
        loss_at,
        config.decoder_optim,
        folder / "decoder",
        config.digest("data", "autoencoder", "decoder"),
        LoopHooks(_progress("decoder", report), lambda _: None),
    )
    with averaged(state):
        save_vae(vae.eval(), folder / "vae")
    plot_log(read_log(folder / "decoder" / "log.jsonl"), folder / "decoder" / "loss.png")
    return vae


def _progress(stage: str, report: Report) -> Callable[[Progress], None]:
    """Reports losses smoothed over about 50 steps."""
    recent: dict[str, float] = {}

    def on_progress(progress: Progress) -> None:
        recent[progress.kind] = 0.98 * recent.get(progress.kind, progress.loss) + 0.02 * progress.loss
        losses = ", ".join(f"{kind} {loss:.3f}" for kind, loss in recent.items())
        report(stage, progress.train_step, progress.num_steps, f"loss {losses} ({progress.seconds:.2f} s/step)")

    return on_progress


def latent_sets(config: TrainConfig, folder: Path, vae: Any, report: Report) -> LatentSets:
    data = config.data

    def cached(name: str, count: int, num_frames: int, *, jitter: bool = True) -> LatentSet | None:
        if not count:
            return None
        seed = data.seed + 3
        return cached_set(
            folder / f"latents-{config.digest('start', 'autoencoder')}",
            vae,
            draw_set(count, num_frames=num_frames, canvas=data.canvas, seed=seed, jitter=jitter),
            stem=f"{name.replace(' ', '-')}-{count}-{num_frames}-{seed}",
            shape=(count, num_frames, data.canvas),
            on_scene=lambda done: report(name, done, count, ""),
        )

    sets = LatentSets(
        cached("pictures", data.pictures, 1),
        cached("clips", data.clips, data.num_frames),
        cached("centred pictures", data.centred_pictures, 1, jitter=False),
        cached("centred clips", data.centred_clips, data.num_frames, jitter=False),
    )
    for clip in (False, True):
        sets.choose(clip=clip, centred=True)  # raises before anything is trained
    return sets


def text_parts(config: TrainConfig, scenes: list[Scene]) -> tuple[Any, Any]:
    """Tokenizer and text encoder, untrained."""
    rng = np.random.default_rng(config.data.seed + 4)
    tokenizer = make_tokenizer([caption(scene, rng).text for scene in scenes], config.text)
    return tokenizer, make_encoder(tokenizer, config.text)


def make_model(config: TrainConfig, sets: LatentSets) -> tuple[TextToVelocity, Any]:
    """The model as its training begins, and its tokenizer; the same for the same config."""
    if config.start:
        return _started_model(config)
    torch.manual_seed(config.flow.seed)
    some = [sets.choose(clip=clip, centred=True).scenes[:8000] for clip in (False, True)]
    tokenizer, encoder = text_parts(config, some[0] + some[1])
    size = config.transformer
    dit_config = WanConfig(
        num_attention_heads=size.num_heads,
        attention_head_dim=size.head_dim,
        in_channels=config.autoencoder.latent_channels,
        out_channels=config.autoencoder.latent_channels,
        text_dim=config.text.width,
        freq_dim=size.freq_dim,
        ffn_dim=size.ffn_dim,
        num_layers=size.num_layers,
    )
    dit = WanDiT(dit_config, sdpa_attention)
    # The output starts at zero: the first steps then learn the data's mean and not to undo noise of the weights.
    torch.nn.init.zeros_(dit.proj_out.weight)
    torch.nn.init.zeros_(dit.proj_out.bias)
    turn_away_from_padding(dit)
    return TextToVelocity(dit, encoder, config.text.max_tokens), tokenizer


def _started_model(config: TrainConfig) -> tuple[TextToVelocity, Any]:
    checkpoint = resolve(config.start)
    parts = layout(checkpoint)
    with torch.device("meta"):
        dit = WanDiT(parts.config, sdpa_attention)
    load_weights(dit, checkpoint, "transformer", dtype=torch.float32, device="cpu")
    encoder = load_text_encoder(checkpoint, dtype=torch.float32, device="cpu")
    model = TextToVelocity(dit, encoder.requires_grad_(requires_grad=True), spec(checkpoint).max_prompt_tokens)
    return model, load_tokenizer(checkpoint)


def restore(config: TrainConfig, folder: Path, report: Report) -> tuple[RunState, Any]:
    """A run's state and tokenizer as its folder has them, without training. Raises CheckpointError without a state."""
    path = folder / "transformer" / STATE_FILE
    if not path.exists():
        raise CheckpointError(
            f"{folder} has no training state yet: {path.name} is written every {config.optim.save_every} steps"
        )
    model, tokenizer = make_model(config, latent_sets(config, folder, autoencoder(config, folder, report), report))
    state = RunState.fresh(model, make_optimizer(model, config.optim))
    load_state(state, path, config.digest(*STATE_SECTIONS))
    return state, tokenizer


def train_transformer(
    config: TrainConfig, folder: Path, report: Report, on_sample: Callable[[RunState, Any], None]
) -> tuple[RunState, Any]:
    """The stage that trains text encoder and transformer. Returns the run's state and the tokenizer."""
    vae = autoencoder(config, folder, report)
    sets = latent_sets(config, folder, vae, report)
    model, tokenizer = make_model(config, sets)
    batches = Batches(sets, tokenizer, config.flow)

    def loss_at(train_step: int) -> tuple[Tensor, str]:
        kind = "clips" if batches.is_clip(train_step) else "pictures"
        return flow_loss(model, batches.at(train_step)), kind

    state = train(
        model,
        loss_at,
        config.optim,
        folder / "transformer",
        config.digest(*STATE_SECTIONS),
        LoopHooks(_progress("transformer", report), lambda state: on_sample(state, tokenizer)),
    )
    return state, tokenizer
