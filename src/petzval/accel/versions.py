"""Versions of the rows that a recipe names: raised when a row computes something else, so that evidence goes stale."""

from __future__ import annotations

from petzval.types import Recipe

ROWS: dict[str, int] = {
    "forecast/hold": 1,
    "forecast/hold-clean": 1,
    "forecast/residual": 1,
    "forecast/taylor": 1,
    "forecast/hermite": 1,
    "forecast/adams-bashforth": 1,
    "forecast/foca": 1,
    "forecast/least-squares": 1,
    "signal/latent-rate": 1,
    "signal/filtered-latents": 1,
    "signal/modulated-input": 1,
    "signal/first-block": 1,
    "gate": 1,
    "guidance": 1,
    "linear/int8-dynamic": 1,
    "linear/fp8-rowwise": 1,
    "sparse-attention": 1,
}


def versions_of(recipe: Recipe) -> dict[str, str]:
    """The present versions of the rows that a recipe names; "missing" for one that is no more."""
    names = [f"linear/{rule.row}" for rule in recipe.build.precision]
    if recipe.build.sparsity is not None:
        names.append("sparse-attention")
    if recipe.steps.guidance is not None:
        names.append("guidance")
    if reuse := recipe.steps.reuse:
        names += ["gate", f"forecast/{reuse.forecast}"]
        names += [f"signal/{reuse.signal}"] if reuse.signal else []
    return {name: str(ROWS.get(name, "missing")) for name in sorted(set(names))}
