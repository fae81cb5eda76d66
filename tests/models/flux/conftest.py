"""Tiny checkpoints, written once a session."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.flux import tiny


@pytest.fixture(scope="session")
def flux_folder(tmp_path_factory) -> Callable[[str], Path]:
    """Variant ("dev", "schnell", "kontext") -> a folder that diffusers and Petzval both load."""
    return functools.cache(lambda variant: tiny.write(variant, tmp_path_factory.mktemp("flux") / variant))


@pytest.fixture(scope="session")
def flux(flux_folder) -> Callable[[str], tiny.Flux]:
    """Variant -> the checkpoint, loaded by us in float32."""
    return functools.cache(lambda variant: tiny.load_ours(flux_folder(variant)))
