"""Probes are what the forward itself computes on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from petzval.engine.model import Model
from petzval.tasks.generate import begin
from petzval.types import Request
from tests.tasks.conftest import flux as flux
from tests.tasks.conftest import flux_folder as flux_folder
from tests.tasks.conftest import wan as wan
from tests.tasks.conftest import wan_folder as wan_folder


def seen_on_the_way(model: Model, dit: Any, block: Any, to_q: Any, ask: Callable[[], Tensor]) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    def of_block(module: Any, given: tuple[Tensor, ...], gave: Any) -> None:
        after = gave[0] if isinstance(gave, tuple) else gave
        seen["first-block"] = after - given[0]

    def of_to_q(module: Any, given: tuple[Tensor, ...], gave: Tensor) -> None:
        seen["modulated-input"] = given[0]

    hooks = [block.register_forward_hook(of_block), to_q.register_forward_hook(of_to_q)]
    try:
        ask()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@pytest.mark.parametrize("name", ["modulated-input", "first-block"])
@pytest.mark.parametrize("family", ["flux dev", "wan t2v", "wan ti2v", "wan t2v-a14b"])
def test_a_probe_is_what_the_forward_computes(
    flux: Callable[[str], Model], wan: Callable[[str], Model], family: str, name: Any
) -> None:
    kind, variant = family.split()
    model = (flux if kind == "flux" else wan)(variant)
    task: Any = "text-to-image" if kind == "flux" else "text-to-video"
    group = [
        begin(model, Request(task=task, prompt=prompt, seed=seed, width=64, height=64, num_inference_steps=4))
        for seed, prompt in enumerate(("a fox", "a small rocket flies up"))
    ]
    known = [model.invariants(t.plan, t.conditioning) for t in group]
    arguments: Any = (torch.stack([t.latents for t in group]), [1, 1], ["cond", "cond"], known)
    owner: Any = model.family
    dit = owner.dit if kind == "flux" else owner.experts[group[0].plan.schedule.experts[1]]
    block = dit.transformer_blocks[0] if kind == "flux" else dit.blocks[0]
    attention = block.attn if kind == "flux" else block.attn1
    seen = seen_on_the_way(model, dit, block, attention.to_q, lambda: model.predict(*arguments))
    found = model.probe(name, *arguments)
    torch.testing.assert_close(found, seen[name][:, : found.shape[1]], rtol=1e-6, atol=1e-6)
