"""Flags from dataclasses: a command takes a few groups of settings, and each field of a group is a flag."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer
from typer.models import ParameterInfo

Command = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    PANEL: ClassVar[str] = "Output"

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, errors too.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, log and library warnings.")] = False


def expanded(command: Command) -> Callable[..., Callable[[], None]]:
    """The command as typer sees it: every field of its dataclass parameters is a parameter.

    Parsing gives back a call that is still to be made, so that what fails in it is not taken for a parsing error.
    """
    groups: dict[str, Any] = typing.get_type_hints(command)
    groups.pop("return", None)
    parameters = [parameter for group in groups.values() for parameter in _parameters(group)]

    def parse(**values: Any) -> Callable[[], None]:
        filled = {
            name: group(**{field.name: values[field.name] for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        return functools.partial(command, **filled)

    parse.__name__, parse.__doc__ = command.__name__, command.__doc__
    parse.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    parse.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return parse


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    made = []
    for field in dataclasses.fields(group):
        base, *extras = typing.get_args(hints[field.name])
        [info] = [copy.copy(extra) for extra in extras if isinstance(extra, ParameterInfo)]
        info.rich_help_panel = group.PANEL
        made.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(field),
                annotation=Annotated[base, info],
            )
        )
    return made


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def option(flag: str, help: str, *, default: str | None = None, words: Sequence[str] = ()) -> Any:
    """A flag; `default` is what its help says of leaving it out, `words` is what a shell completes it with."""
    complete = (lambda: list(words)) if words else None
    return typer.Option(flag, help=help, show_default=default or True, autocompletion=complete)


def model_names() -> list[str]:
    """Shell completion: what is bundled; read from the folder, since importing models would take seconds."""
    from pathlib import Path

    import petzval

    bundled = Path(petzval.__file__).parent / "checkpoints"
    return sorted(path.parent.name for path in bundled.glob("*/model_index.json"))
