"""The flags are a promise: adding, renaming or removing one has to be done here too."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import typer

from petzval.cli.app import app
from petzval.cli.flags import expanded, option

WHERE = {"--model", "--revision", "--device", "--dtype", "--attention"}
COMMON = {"--json", "--debug"}
FLAGS = {
    "generate": {
        "prompt", "--task", "--image", "--strength", "--negative", "--seed", "--num", "--width", "--height", "--frames",
        "--fps", "--steps", "--guidance", "--guidance-2", "--embedded-guidance", "--sampler", "--tier", "--out",
        "--from", "--quiet", *WHERE, *COMMON,
    },
    "models": {"name", *COMMON},
    "doctor": {*COMMON},
    "train": {"config", "--folder", "--stage", "--threads", *COMMON},
    "judge": {"--prompts", "--pictures", "--video", "--seed", "--steps", "--guidance", "--batch", *WHERE, *COMMON},
}  # fmt: skip


def flags_of(command: object) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts} - {"--help", "-h"}  # type: ignore[attr-defined]


def test_commands_and_flags_are_frozen() -> None:
    group = typer.main.get_command(app)
    assert {name: flags_of(command) for name, command in group.commands.items()} == FLAGS  # type: ignore[attr-defined]
    assert flags_of(group) == {"--version", "--install-completion", "--show-completion"}


def test_every_flag_has_help() -> None:
    group = typer.main.get_command(app)
    commands = group.commands.items()  # type: ignore[attr-defined]
    assert [(name, p.name) for name, command in commands for p in command.params if not p.help] == []


def test_the_script_is_main() -> None:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"petzval": "petzval.cli:main"}


@dataclass(frozen=True, kw_only=True)
class Colour:
    PANEL: ClassVar[str] = "Colour"

    name: Annotated[str, typer.Argument(help="Which.")]
    shade: Annotated[int, option("--shade", "How dark.")] = 3


@dataclass(frozen=True, kw_only=True)
class Count:
    PANEL: ClassVar[str] = "Count"

    num: Annotated[list[int] | None, option("--num", "How many.")] = None


def test_groups_are_filled_and_nothing_runs_while_parsing() -> None:
    ran: list[tuple[Colour, Count]] = []

    def paint(colour: Colour, count: Count) -> None:
        """Paint."""
        ran.append((colour, count))

    app = typer.Typer()
    app.command("paint")(expanded(paint))
    call = typer.main.get_command(app).main(["red", "--num", "1", "--num", "2"], standalone_mode=False)
    assert ran == []
    call()
    assert ran == [(Colour(name="red", shade=3), Count(num=[1, 2]))]
    with pytest.raises(typer.BadParameter.__mro__[2]):
        typer.main.get_command(app).main(["--shade", "4"], standalone_mode=False)
