"""The training loop: steps, averaging, learning rate, checkpoints, log and plot. What is learned is handed in."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from petzval.durable import alone_in, clear_parts
from petzval.errors import NotFiniteError, UnavailableError
from petzval.train.config import OptimConfig
from petzval.train.state import STATE_FILE, RunState, load_state, save_state

LossAt = Callable[[int], tuple[Tensor, str]]
"""The loss of a step's batch, with its graph, and what kind of batch it was. Decided by the step alone, so that a
resumed run goes on exactly as if it had never stopped."""


@dataclass(frozen=True)
class Progress:
    """What the loop tells after a step."""

    train_step: int
    num_steps: int
    loss: float
    kind: str
    """Of batch: their losses are logged and drawn apart."""
    learning_rate: float
    seconds: float
    """Wall time of this step."""


@dataclass(frozen=True)
class LoopHooks:
    """What happens beside the steps."""

    on_progress: Callable[[Progress], None]
    on_sample: Callable[[RunState], None]


def learning_rate_factor(train_step: int, config: OptimConfig) -> float:
    """Warm-up, then constant, then linear decay to zero."""
    warm = min(1.0, (train_step + 1) / config.warmup)
    left = (config.steps - train_step) / max(1, config.steps - config.decay_from)
    return warm * min(1.0, max(0.0, left))


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW; decay on matrices alone."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def train(
    model: nn.Module,
    loss_at: LossAt,
    config: OptimConfig,
    folder: Path,
    digest: str,
    hooks: LoopHooks,
) -> RunState:
    """Train every parameter of `model` to `config.steps`, going on from the folder's checkpoint if it has one.

    Raises NotFiniteError when the loss is no longer finite (the last checkpoint is from before), UnavailableError when
    another process trains into the same folder: each would overwrite what the other has learned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with alone_in(folder):
            return _train(model, loss_at, config, folder, digest, hooks)
    except BlockingIOError:
        raise UnavailableError(f"another process trains into {folder}: wait for it, or give another folder") from None


def _train(
    model: nn.Module, loss_at: LossAt, config: OptimConfig, folder: Path, digest: str, hooks: LoopHooks
) -> RunState:
    clear_parts(folder)
    state = RunState.fresh(model, make_optimizer(model, config))
    path = folder / STATE_FILE
    if path.exists():
        load_state(state, path, digest)
    _drop_cut_line(folder / "log.jsonl")
    with (folder / "log.jsonl").open("a") as log:
        while state.train_step < config.steps:
            progress = _one_step(state, loss_at, config)
            log.write(
                json.dumps({"step": progress.train_step, "kind": progress.kind, "loss": round(progress.loss, 5)}) + "\n"
            )
            hooks.on_progress(progress)
            if state.train_step % config.save_every == 0 or state.train_step == config.steps:
                log.flush()
                save_state(state, path, digest)
            if state.train_step % config.sample_every == 0 or state.train_step == config.steps:
                hooks.on_sample(state)
    return state


def _one_step(state: RunState, loss_at: LossAt, config: OptimConfig) -> Progress:
    started = time.perf_counter()
    rate = config.learning_rate * learning_rate_factor(state.train_step, config)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    loss, kind = loss_at(state.train_step)
    value = take_step(state, loss, config)
    return Progress(state.train_step, config.steps, value, kind, rate, time.perf_counter() - started)


def take_step(state: RunState, loss: Tensor, config: OptimConfig) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise NotFiniteError(f"the loss is {value} at step {state.train_step}: lower learning_rate or clip_norm")
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), config.clip_norm)
    state.optimizer.step()
    state.train_step += 1
    state.average(config.ema)
    return value


def _drop_cut_line(path: Path) -> None:
    """The step whose line a kill cut in two comes again; what is written after half a line could not be read."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def read_log(path: Path) -> list[dict[str, float | str]]:
    """Every step once: after a resume, steps since the last checkpoint are there twice; the later ones count."""
    by_step: dict[int, dict[str, float | str]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        by_step[int(record["step"])] = record
    return [by_step[step] for step in sorted(by_step)]


def plot_log(records: list[dict[str, float | str]], path: Path) -> None:
    """Loss over steps, each kind of batch apart, smoothed over 50."""
    import matplotlib  # an extra: only who trains needs it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for kind in dict.fromkeys(r["kind"] for r in records):
        rows = [(r["step"], float(r["loss"])) for r in records if r["kind"] == kind]
        if len(rows) < 2:
            continue
        steps, losses = zip(*rows, strict=True)
        window = min(50, len(losses))
        smooth = torch.tensor(losses).unfold(0, window, 1).mean(1)
        axes.plot(steps[window - 1 :], smooth, label=str(kind))
    axes.set(xlabel="train step", ylabel="loss", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
