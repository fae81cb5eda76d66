"""`petzval judge`: how often a checkpoint shows what was asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from petzval.cli.flags import Common, option
from petzval.cli.generate import Where
from petzval.cli.show import Notes, Stages, plain_table, print_json, print_line, print_table
from petzval.errors import BadRequestError

if TYPE_CHECKING:
    from petzval.scenes.evaluate import Accuracy, Tally
    from petzval.tasks.generate import Model
    from petzval.tasks.judge import JudgeConfig


@dataclass(frozen=True, kw_only=True)
class Amount:
    PANEL: ClassVar[str] = "How much, and how it is generated"

    prompts: Annotated[int, option("--prompts", "How many of each kind.")] = 256
    pictures: Annotated[bool, option("--pictures", "Pictures alone.")] = False
    video: Annotated[bool, option("--video", "Clips alone.")] = False
    seed: Annotated[int, option("--seed", "Decides prompts and pictures.")] = 0
    steps: Annotated[int | None, option("--steps", "Denoising steps.", default="as published")] = None
    guidance: Annotated[float | None, option("--guidance", "Classifier-free guidance.", default="as published")] = None
    batch: Annotated[int, option("--batch", "How many are generated at a time.")] = 8


def judge(amount: Amount, where: Where, output: Common) -> None:
    """Generate scenes from words, read them back, and count what is right: needs the emoji font."""
    from petzval.engine import build
    from petzval.scenes.sprites import load_font
    from petzval.tasks.judge import JudgeConfig

    if amount.prompts < 1:
        raise BadRequestError(f"--prompts must be at least 1, got {amount.prompts}")
    load_font()  # says what to install, before minutes of work
    config = JudgeConfig(
        prompts=amount.prompts,
        seed=amount.seed,
        batch=amount.batch,
        num_inference_steps=amount.steps,
        guidance_scale=amount.guidance,
    )
    kinds = [video for video, alone in ((False, amount.pictures), (True, amount.video)) if alone] or [False, True]
    name = where.model or "pocket"
    started = time.monotonic()
    with Notes(quiet=False).progress() as stages:
        stages.show(f"load {name}", 0, None)
        settings = {"device": where.device, "dtype": where.dtype, "attention": where.attention}
        model = build.load(name, revision=where.revision, **{k: v for k, v in settings.items() if v is not None})
        found = {video: _judged(model, config, video=video, stages=stages) for video in kinds}
    seconds = time.monotonic() - started
    if output.json:
        facts = {_name(video): accuracy.to_json() for video, accuracy in found.items()}
        print_json({"model": name, "fingerprint": model.checkpoint.fingerprint, **facts, "seconds": seconds})
        return
    for video, accuracy in found.items():
        _show(_name(video), accuracy)
    print_line(f"{name}, {seconds:.0f} s")


def _name(video: bool) -> str:  # noqa: FBT001 - a row of a table, not a switch
    return "clips" if video else "pictures"


def _judged(model: Model, config: JudgeConfig, *, video: bool, stages: Stages) -> Accuracy:
    from petzval.tasks.judge import judge as judge_all

    stages.show(f"judge {_name(video)}", 0, config.prompts)
    return judge_all(
        model, config, video=video, on_judged=lambda done, total: stages.show(f"judge {_name(video)}", done, total)
    )


def _show(name: str, accuracy: Accuracy) -> None:
    groups = {"trained pairs": accuracy.trained, "held-out pairs": accuracy.held_out, "all": accuracy.overall()}
    print_line(f"{accuracy.count} {name}, seed {accuracy.seed}")
    table = plain_table("attribute", *groups)
    for attribute in accuracy.overall():
        table.add_row(attribute, *(_share(tallies.get(attribute)) for tallies in groups.values()))
    print_table(table)
    print_line("")


def _share(tally: Tally | None) -> str:
    return "-" if tally is None or not tally.asked else f"{tally.share:6.1%} of {tally.asked}"
