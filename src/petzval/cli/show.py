"""What a person sees: notes and progress on stderr, results on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


def print_json(value: dict[str, Any]) -> None:
    """The one object of a command with --json. ASCII, so that it is text whatever the prompt was."""
    print(json.dumps(value))


def print_line(text: str) -> None:
    """A line of the result, never wrapped, never read as markup."""
    print(text)


def print_table(table: Table) -> None:
    """A table as wide as the terminal, or as it needs to be where there is none."""
    console = Console(markup=False, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    console = Console(markup=False, highlight=False, width=200)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@dataclass
class Notes:
    """Says on stderr how far the work is: a bar in a terminal, a line a stage elsewhere, nothing when quiet."""

    quiet: bool

    def __post_init__(self) -> None:
        self.console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text)

    @contextmanager
    def progress(self) -> Iterator[Stages]:
        """A bar for the stages told to it, gone when all is done."""
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=self.quiet or not self.console.is_terminal,
        )
        with bar:
            yield Stages(self, bar)


class Stages:
    """One bar, of the stage that is running."""

    def __init__(self, notes: Notes, bar: Progress) -> None:
        self.notes, self.bar = notes, bar
        self.name: str | None = None
        self.task: TaskID | None = None

    def show(self, name: str, done: int, total: int | None, note: str = "") -> None:
        """`done` of `total` units of a stage; total None when nobody knows. A new name ends the stage before."""
        if name != self.name:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.name, self.task = name, self.bar.add_task(name, total=total, note="")
            if not self.notes.console.is_terminal:
                self.notes.say(name)
        assert self.task is not None
        count = f"{done}/{total} {note}" if total else note
        self.bar.update(self.task, completed=done, total=total, note=count)


def sized(count: float, *, unit: str = "B") -> str:
    """A number of bytes or parameters in three digits: 61.4 MB, 12.0 B."""
    steps = ["", "k", "M", "G", "T"] if unit else ["", "k", "M", "B", "T"]
    while count >= 999.5 and len(steps) > 1:
        count /= 1000
        steps.pop(0)
    return f"{count:.3g} {steps[0]}{unit}".rstrip()
