"""How a command ends: one line or one JSON object, an exit code, and a traceback only where it was asked for."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from petzval.errors import BadMediaError, BadRequestError, NotFiniteError, OutOfMemoryError, PetzvalError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

# Flags that are called otherwise than the fields of a request that they fill.
FLAG_OF = {
    "num_inference_steps": "--steps",
    "guidance_scale": "--guidance",
    "guidance_scale_2": "--guidance-2",
    "embedded_guidance": "--embedded-guidance",
    "num_frames": "--frames",
    "negative_prompt": "--negative",
    "images": "--image",
}
_FIELD = re.compile(rf"(?<![\w./'-])({'|'.join(sorted(FLAG_OF, key=len, reverse=True))})(?![\w./'-])")


@dataclass(frozen=True)
class Failure:
    exit_code: int
    code: str
    message: str


class Outcome:
    """Turns whatever ends a command into its exit code, once it has told the user."""

    def __init__(self, arguments: Sequence[str]) -> None:
        flags = set(itertools.takewhile(lambda argument: argument != "--", arguments))
        self.json, self.debug = "--json" in flags, "--debug" in flags
        self.exit_code = OK
        self.abandoned = False
        """Whether standard output can take no more."""

    def __enter__(self) -> Outcome:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it was closed before we started; the next file would take its number
                setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # names of files need not be text
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, SystemExit):
            return False
        try:
            sys.stdout.flush()
        except OSError as closed:
            error = error or closed
            self.abandoned = True
            _abandon_stdout()
        if error is not None:
            self._fail(error)
        return True

    def _fail(self, error: BaseException) -> None:
        failure = describe(error)
        self.exit_code = failure.exit_code
        if self.debug:
            traceback.print_exception(error, file=sys.stderr)
        if self.json and not (self.abandoned or isinstance(error, BrokenPipeError)):
            with suppress(OSError):  # standard output may be what failed; then stderr is told
                print(json.dumps({"error": {"code": failure.code, "message": failure.message}}), flush=True)
                return
            _abandon_stdout()
        print(f"petzval: {failure.message}", file=sys.stderr)


def describe(error: BaseException) -> Failure:
    """What to tell of an error, on one line, and the exit code that it stands for."""
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted", "interrupted; nothing half-written is left")
    if isinstance(error, PetzvalError):
        not_the_users = type(error) is PetzvalError or isinstance(error, (OutOfMemoryError, NotFiniteError))
        exit_code = FAILED if not_the_users else BAD_INPUT
        return Failure(exit_code, error.code, _one_line(_with_flags(error)))
    if _is_usage(error):
        return Failure(BAD_INPUT, BadRequestError.code, _one_line(error.format_message()))  # type: ignore[attr-defined]
    if isinstance(error, BrokenPipeError):
        return Failure(FAILED, "broken_pipe", "standard output was closed before everything was written")
    if isinstance(error, MemoryError):
        return Failure(FAILED, OutOfMemoryError.code, "out of memory; ask for a smaller size or for fewer at a time")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failure(FAILED, "os_error", _one_line(f"{where}{error.strerror or error}"))
    return Failure(FAILED, PetzvalError.code, f"{type(error).__name__}: {_one_line(str(error))} (see --debug)")


def _is_usage(error: BaseException) -> bool:
    """A wrong flag or value. Typer is imported by then, if that is what happened."""
    typer = sys.modules.get("typer")
    return typer is not None and isinstance(error, typer.BadParameter.__mro__[2])  # click's base of what users see


def _with_flags(error: PetzvalError) -> str:
    """The message with flags in place of the names of a request's fields."""
    if isinstance(error, BadRequestError) and not isinstance(error, BadMediaError):
        return _FIELD.sub(lambda match: FLAG_OF[match[1]], str(error))
    return str(error)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _abandon_stdout() -> None:
    """Python flushes once more at exit and would complain on its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
