"""Petzval: undistilled image and video diffusion models, served and fine-tuned."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = ["InputImage", "Plan", "Request", "Result", "__version__", "generate", "load", "save"]

# Imported when first asked for, so that `import petzval` costs nothing and needs no torch (PEP 562).
# __init__.pyi says the same to type checkers.
_HOMES = {
    "InputImage": "petzval.types",
    "Plan": "petzval.types",
    "Request": "petzval.types",
    "Result": "petzval.tasks.result",
    "generate": "petzval.tasks.generate",
    "load": "petzval.engine.build",
    "save": "petzval.tasks.record",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'petzval' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
