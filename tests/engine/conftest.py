"""Tiny checkpoints of two families."""

from tests.models.flux.conftest import flux_folder as flux_folder
from tests.models.wan.conftest import wan_folder as wan_folder
