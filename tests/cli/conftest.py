"""Command lines, run in this process in an empty folder, on tiny checkpoints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from petzval.cli import main
from tests.models.flux.conftest import flux_folder as flux_folder
from tests.models.wan.conftest import wan_folder as wan_folder


@dataclass(frozen=True)
class Ran:
    """What a command line left."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Its one object on stdout."""
        [line] = self.out.splitlines()
        value = json.loads(line)
        assert isinstance(value, dict)
        return value


Petzval = Callable[..., Ran]


@pytest.fixture
def petzval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Petzval:
    """Run `petzval LINE MORE...` in this process, in an empty folder. MORE are arguments that are not to be split."""
    monkeypatch.chdir(tmp_path)

    def run(line: str, *more: str) -> Ran:
        capsys.readouterr()
        exit_code = main([*shlex.split(line), *more])
        captured = capsys.readouterr()
        return Ran(exit_code, captured.out, captured.err)

    return run


@pytest.fixture
def schnell(flux_folder: Callable[[str], Path]) -> str:
    """Flags for quick pictures: FLUX.1 schnell, tiny."""
    return f"--model {shlex.quote(str(flux_folder('schnell')))} --width 48 --height 32 --steps 2"


@pytest.fixture
def dev(flux_folder: Callable[[str], Path]) -> str:
    """FLUX.1 dev, tiny."""
    return f"--model {shlex.quote(str(flux_folder('dev')))} --width 48 --height 32 --steps 3"


@pytest.fixture
def pocket(wan_folder: Callable[[str], Path]) -> str:
    """Flags for quick clips: a tiny Wan in the pocket checkpoint's layout."""
    return f"--model {shlex.quote(str(wan_folder('pocket')))} --width 48 --height 32 --steps 2"
