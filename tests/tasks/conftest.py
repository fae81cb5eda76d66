"""Tiny checkpoints of two families, as the engine builds them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from petzval.engine.build import load
from petzval.engine.model import Model
from tests.models.flux.conftest import flux_folder as flux_folder
from tests.models.wan.conftest import wan_folder as wan_folder

Load = Callable[[str], Model]


@pytest.fixture(scope="session")
def flux(flux_folder: Callable[[str], Path]) -> Load:
    return functools.cache(lambda variant: load(str(flux_folder(variant)), device="cpu"))


@pytest.fixture(scope="session")
def wan(wan_folder: Callable[[str], Path]) -> Load:
    return functools.cache(lambda variant: load(str(wan_folder(variant)), device="cpu"))
