"""What a training run is between two steps, and its checkpoint files: weights, averaged weights, optimizer, step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from petzval.durable import replacing
from petzval.errors import CheckpointError, UnavailableError

META = "petzval.train"
STATE_FILE = "state.safetensors"


@dataclass
class RunState:
    """Model, optimizer and exponential moving average of the weights, after `train_step` steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: dict[str, Tensor]
    train_step: int = 0

    @classmethod
    def fresh(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> RunState:
        return cls(model, optimizer, {name: p.detach().clone() for name, p in model.named_parameters()})

    @torch.no_grad()
    def average(self, decay: float) -> None:
        """Move the averaged weights towards the weights; faster while the run is young."""
        # A constant decay would remember the random start for 1 / (1 - decay) steps.
        decay = min(decay, (1 + self.train_step) / (10 + self.train_step))
        weights = [p.detach() for p in self.model.parameters()]
        torch._foreach_lerp_(list(self.ema.values()), weights, 1 - decay)


def save_state(state: RunState, path: Path, digest: str) -> None:
    """Write atomically: a kill leaves the last complete file. Raises UnavailableError when the disk refuses."""
    tensors = {f"weights.{k}": v.detach() for k, v in state.model.state_dict().items()}
    tensors |= {f"ema.{k}": v for k, v in state.ema.items()}
    names = {id(p): name for name, p in state.model.named_parameters()}
    for parameter, slots in state.optimizer.state.items():
        tensors |= {f"optimizer.{key}.{names[id(parameter)]}": value.contiguous() for key, value in slots.items()}
    # Tied parameters share storage, which safetensors refuses.
    tensors = {name: t.clone() for name, t in tensors.items()}
    try:
        with replacing(path) as part:
            save_file(tensors, part, {META: json.dumps({"train_step": state.train_step, "digest": digest})})
    except (SafetensorError, OSError) as error:
        raise UnavailableError(f"training state {path} cannot be written: {error}") from error


def load_state(state: RunState, path: Path, digest: str) -> None:
    """Continue from a file of `save_state`. Raises CheckpointError when it is damaged or of another config."""
    try:
        with safe_open(path, "pt") as file:
            meta = json.loads((file.metadata() or {}).get(META, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"training state {path} cannot be read: {error}") from None
    if meta.get("digest") != digest:
        raise CheckpointError(
            f"training state {path} is of another config; start in a new folder or restore the config"
        )
    state.model.load_state_dict({k.removeprefix("weights."): v for k, v in tensors.items() if k.startswith("weights.")})
    for name, average in state.ema.items():
        average.copy_(tensors[f"ema.{name}"])
    for name, parameter in state.model.named_parameters():
        slots = {key: f"optimizer.{key}.{name}" for key in ("step", "exp_avg", "exp_avg_sq")}
        if slots["step"] in tensors:
            state.optimizer.state[parameter] = {key: tensors[stored].clone() for key, stored in slots.items()}
    state.train_step = meta["train_step"]
