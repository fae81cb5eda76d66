"""Wan 2.1 and 2.2, native: text-to-video, TI2V, image-to-video, one and two experts."""

from petzval.models.wan.generator import Wan, load
from petzval.models.wan.spec import spec

__all__ = ["Wan", "load", "spec"]
