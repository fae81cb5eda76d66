"""Runs a config: `petzval train CONFIG`. Its folder holds log, loss plot, sample grids, checkpoints and the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from petzval.media.images import write_image
from petzval.media.sheet import contact_sheet
from petzval.train.config import TrainConfig
from petzval.train.export import export
from petzval.train.loop import plot_log, read_log
from petzval.train.pocket import Report, autoencoder, restore, train_decoder, train_transformer
from petzval.train.preview import CLIP_PROMPTS, PICTURE_PROMPTS, averaged, sample
from petzval.train.state import RunState

STAGES = ("transformer", "decoder", "export")
"""In the order they run: the transformer needs the encoder alone, which starts as it ends."""


def run(config: TrainConfig, folder: Path, report: Report, *, stages: tuple[str, ...] = STAGES) -> None:
    """Run the named stages, each from where it was left."""
    folder.mkdir(parents=True, exist_ok=True)
    if "transformer" in stages:

        def on_sample(state: RunState, tokenizer: Any) -> None:
            _draw_samples(config, folder, autoencoder(config, folder, report), state, tokenizer)

        train_transformer(config, folder, report, on_sample)
    if "decoder" in stages:
        train_decoder(config, folder, report)
    if "export" in stages:
        state, tokenizer = restore(config, folder, report)
        export(config, folder / "checkpoint", state, tokenizer, autoencoder(config, folder, report))


def _draw_samples(config: TrainConfig, folder: Path, vae: Any, state: RunState, tokenizer: Any) -> None:
    model: Any = state.model
    with averaged(state):
        pictures = sample(model, tokenizer, vae, PICTURE_PROMPTS, num_frames=1, size=config.data.canvas)[:, 0]
        rows = list(pictures)
        captions = list(PICTURE_PROMPTS)
        if state.train_step > config.flow.clips_from:
            clips = sample(
                model, tokenizer, vae, CLIP_PROMPTS, num_frames=config.data.num_frames, size=config.data.canvas
            )
            shown = (0, config.data.num_frames // 3, 2 * config.data.num_frames // 3, config.data.num_frames - 1)
            rows += [clip[frame] for clip in clips for frame in shown]
            captions += [prompt for prompt in CLIP_PROMPTS for _ in shown]
    sheet = contact_sheet(rows, columns=4, captions=captions)
    stage = folder / "transformer"
    write_image(sheet, stage / f"samples-{state.train_step:06d}.png", record=None)
    plot_log(read_log(stage / "log.jsonl"), stage / "loss.png")
