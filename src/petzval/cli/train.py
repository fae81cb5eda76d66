"""`petzval train`: run a training config, from where it was left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument

from petzval.cli.flags import Common, option
from petzval.cli.show import Notes, print_json, print_line
from petzval.errors import BadRequestError


@dataclass(frozen=True, kw_only=True)
class Run:
    PANEL: ClassVar[str] = "Run"

    config: Annotated[Path, Argument(help="A TOML file; see configs/.")]
    folder: Annotated[
        Path | None, option("--folder", "Where log, samples and checkpoints go.", default="runs/NAME")
    ] = None
    stage: Annotated[list[str] | None, option("--stage", "One of its stages; may be repeated.", default="all")] = None
    threads: Annotated[int | None, option("--threads", "CPU threads.", default="all")] = None


def train(run: Run, output: Common) -> None:
    """Train what a config says, going on from where its folder was left."""
    from petzval.engine.build import use_threads
    from petzval.train.config import read_config
    from petzval.train.run import STAGES
    from petzval.train.run import run as run_stages

    config = read_config(run.config)
    stages = tuple(run.stage) if run.stage else STAGES
    for stage in stages:
        if stage not in STAGES:
            raise BadRequestError(f"--stage must be one of {', '.join(STAGES)}, got {stage!r}")
    if run.threads is not None:
        use_threads(run.threads)
    folder = run.folder or Path("runs") / config.name
    started = time.monotonic()
    with Notes(quiet=False).progress() as progress:
        run_stages(config, folder, progress.show, stages=stages)
    seconds = time.monotonic() - started
    if output.json:
        print_json({"name": config.name, "folder": str(folder), "stages": list(stages), "seconds": seconds})
    else:
        print_line(f"{folder}  {', '.join(stages)}, {seconds:.0f} s")
