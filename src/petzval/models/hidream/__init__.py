"""HiDream-I1, native: the transformer as plain math."""

from petzval.models.hidream.dit import HiDreamConfig, HiDreamDiT

__all__ = ["HiDreamConfig", "HiDreamDiT"]
