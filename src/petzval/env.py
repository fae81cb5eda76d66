"""Every environment variable that Petzval reads, and nothing else reads the environment."""

import os
from pathlib import Path


def emoji_font() -> Path | None:
    """PETZVAL_EMOJI_FONT: the colour emoji font that scenes are drawn with, when it is not Debian's."""
    value = os.environ.get("PETZVAL_EMOJI_FONT")
    return Path(value) if value else None


def hub_offline() -> bool:
    """HF_HUB_OFFLINE: true when nothing may be downloaded from a model hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}


def recipes_folder() -> Path:
    """PETZVAL_RECIPES: where `petzval tune` keeps its recipes; else beside the user's other data."""
    value = os.environ.get("PETZVAL_RECIPES")
    if value:
        return Path(value)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "petzval" / "recipes"
