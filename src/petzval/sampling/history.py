"""What a trajectory remembers of its past steps: bounded series of tensors, each with the step it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class History:
    """Named series ("denoised", "latents": what multistep samplers read; "computed/BRANCH": what reuse forecasts from).

    Entries are never changed in place, so a copy shares its tensors.
    """

    series: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    """What is counted and added up on the way, such as a reuse budget."""

    def push(self, name: str, step: int, value: Tensor, *, keep: int) -> None:
        """Append, and forget all but the newest `keep` entries."""
        assert keep > 0, "a series that keeps nothing should not be pushed"
        self.series[name] = [*self.series.get(name, []), (step, value)][-keep:]

    def last(self, name: str, back: int = 1) -> Tensor:
        """The entry `back` places from the end; 1 is the newest. Raises IndexError when there is none."""
        entries = self.series.get(name, [])
        if not 1 <= back <= len(entries):
            raise IndexError(f"history has {len(entries)} entries of {name!r}, asked for number {back} from the end")
        return entries[-back][1]

    def length(self, name: str) -> int:
        """How many entries the series holds; 0 for one that was never pushed."""
        return len(self.series.get(name, []))

    def copy(self) -> History:
        """A history that can grow on its own; the tensors are shared."""
        return History({name: list(entries) for name, entries in self.series.items()}, dict(self.numbers))
