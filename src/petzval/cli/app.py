"""The commands, and parsing a command line into one of them."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

import petzval
from petzval.cli.doctor import doctor
from petzval.cli.flags import expanded
from petzval.cli.generate import generate
from petzval.cli.judge import judge
from petzval.cli.models import models
from petzval.cli.train import train

app = typer.Typer(
    name="petzval",
    help="Pictures and clips from words, with undistilled diffusion models.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    no_args_is_help=False,
)

for command in (generate, models, doctor, train, judge):
    app.command(command.__name__)(expanded(command))


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Pictures and clips from words, with undistilled diffusion models."""
    if version:
        print(petzval.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


def run(arguments: Sequence[str]) -> None:
    """Parse and run. Raises typer's usage errors, and whatever the command raises."""
    try:
        parsed = typer.main.get_command(app).main(list(arguments), prog_name="petzval", standalone_mode=False)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer leaves in silence; every other error has its line
            raise ended.__context__ from None
        raise
    if not callable(parsed):  # help, or the version
        return
    with warnings.catch_warnings():
        if "--debug" in arguments:
            logging.basicConfig(level=logging.INFO)
        elif not sys.warnoptions:
            warnings.simplefilter("ignore")  # of libraries, to their developers
        parsed()
