"""Tiny checkpoints, written once a session."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from petzval.models.wan import Wan
from tests.models.wan import tiny


@pytest.fixture(scope="session")
def wan_folder(tmp_path_factory) -> Callable[[str], Path]:
    """Variant (a key of `tiny.VARIANTS`) -> a folder that diffusers and Petzval both load."""
    return functools.cache(lambda variant: tiny.write(variant, tmp_path_factory.mktemp("wan") / "checkpoint"))


@pytest.fixture(scope="session")
def wan(wan_folder) -> Callable[[str], Wan]:
    """Variant -> the checkpoint, loaded by us in float32."""
    return functools.cache(lambda variant: tiny.load_ours(wan_folder(variant)))
