"""FLUX.1, native: dev, schnell and Kontext, from a folder in the diffusers layout."""

from petzval.models.flux.generator import Flux, load
from petzval.models.flux.spec import spec

__all__ = ["Flux", "load", "spec"]
