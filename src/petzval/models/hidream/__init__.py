"""HiDream-I1, native: Full, Dev and Fast, from a folder in the diffusers layout."""

from petzval.models.hidream.generator import HiDream, load
from petzval.models.hidream.spec import spec

__all__ = ["HiDream", "load", "spec"]
