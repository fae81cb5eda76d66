"""Which recipe computes a request's tier here. No torch.

Recipes are JSON files: those shipped with the package, and those that `petzval tune` wrote for this machine, which come
first. One that no longer describes what would run is refused with a reason, and tier exact runs instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from petzval import env
from petzval.accel.versions import versions_of
from petzval.errors import CheckpointError
from petzval.types import CheckpointId, Recipe, Request, Tier, TierRun, digest, from_json, to_json

SHIPPED = Path(__file__).parent.parent / "recipes"
BOUNDS: dict[Tier, float] = {"exact": 0.0, "high": 0.15, "balanced": 0.30, "draft": 0.60}
"""Median fidelity loss that a tier allows; no sample may be above twice that."""
LEAST_SAMPLES = 32


@dataclass(frozen=True)
class Shelf:
    """Recipes by where they came from."""

    recipes: tuple[tuple[str, Recipe], ...]
    """(file name, recipe), the first that fits is taken."""

    def find(self, request: Request, checkpoint: CheckpointId, device: str) -> tuple[Recipe | None, str | None]:
        """The recipe for a request whose defaults are filled in, or None and why there is none."""
        if request.tier == "exact":
            return None, None
        refusals = []
        for name, recipe in self.recipes:
            if not _meant_for(recipe, request, checkpoint):
                continue
            reason = why_not(recipe, request, checkpoint, device)
            if reason is None:
                return recipe, None
            refusals.append(f"recipe {name}: {reason}")
        size = f"{request.width}x{request.height}"
        shape = size if request.num_frames == 1 else f"{size}, {request.num_frames} frames"
        nothing = f"no recipe has evidence for tier {request.tier!r} of {checkpoint.name} at {shape} on {device}"
        return None, "; ".join(refusals) or nothing


def shelf(folders: Sequence[Path] | None = None) -> Shelf:
    """All recipes in `folders`; by default the user's, then the shipped ones.

    Raises CheckpointError naming a file that is not a recipe.
    """
    return Shelf(tuple(_read_all([env.recipes_folder(), SHIPPED] if folders is None else folders)))


def _read_all(folders: Sequence[Path]) -> Iterator[tuple[str, Recipe]]:
    for folder in folders:
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            yield path.name, read(path)


def read(path: Path) -> Recipe:
    """Raises CheckpointError naming the file and what is wrong with it."""
    try:
        return from_json(Recipe, json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"recipe {path} cannot be read: {error}") from error


def write(recipe: Recipe, path: Path) -> None:
    """As JSON, one recipe a file."""
    from petzval.durable import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(json.dumps(to_json(recipe), indent=1) + "\n")


def _meant_for(recipe: Recipe, request: Request, checkpoint: CheckpointId) -> bool:
    return (
        recipe.tier == request.tier
        and (recipe.checkpoint.family, recipe.checkpoint.name) == (checkpoint.family, checkpoint.name)
        and (recipe.width, recipe.height, recipe.num_frames) == (request.width, request.height, request.num_frames)
    )


def why_not(recipe: Recipe, request: Request, checkpoint: CheckpointId, device: str) -> str | None:
    """Why a recipe's evidence says nothing of this request here; None when it does."""
    if recipe.checkpoint.fingerprint != checkpoint.fingerprint:
        return "measured on other weights"
    if recipe.device != device:
        return f"measured on {recipe.device}, this is {device}"
    for name in ("num_inference_steps", "sampler"):
        measured, asked = getattr(recipe, name), getattr(request, name)
        if measured != asked:
            return f"measured with {name} {measured}, asked for {asked}"
    if request.strength is not None:
        return "measured from noise, and this request starts from a picture"
    found = recipe.evidence
    if found is None:
        return "it has no evidence"
    bound = BOUNDS[recipe.tier]
    if found.samples < LEAST_SAMPLES or found.loss_median > bound or found.loss_worst > 2 * bound:
        return f"its evidence does not reach the tier: {found.loss_median:.2f} / {found.loss_worst:.2f}"
    now = versions_of(recipe)
    if changed := sorted(name for name in now | found.versions if now.get(name) != found.versions.get(name)):
        return f"{', '.join(changed)} changed since it was measured"
    return None


def tier_run(request: Request, recipe: Recipe | None, why: str | None) -> TierRun:
    """What a result says of its tier."""
    if recipe is None:
        return TierRun(asked=request.tier, ran="exact", why=why)
    return TierRun(asked=request.tier, ran=recipe.tier, recipe=digest(to_json(recipe)), evidence=recipe.evidence)
