"""Random numbers of a trajectory: decided by its seed, drawn on the CPU, so equal on every device, in every batch."""

from __future__ import annotations

import torch
from torch import Tensor


class Noise:
    """One CPU generator. A picture depends on its seed, never on its batch, rank or device."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Standard normal numbers, float32, on `device`."""
        return torch.randn(shape, generator=self.generator).to(device)

    def state(self) -> Tensor:
        """All that decides the numbers to come: uint8, one axis."""
        return self.generator.get_state()

    def copy(self) -> Noise:
        """An independent source that will give the same numbers from here on."""
        return Noise.from_state(self.state())

    @classmethod
    def from_state(cls, state: Tensor) -> Noise:
        """The source whose `state()` this was. Raises RuntimeError when it is not one."""
        noise = cls(0)
        noise.generator.set_state(state)
        return noise
