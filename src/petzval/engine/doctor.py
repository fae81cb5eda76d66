"""What this machine has, and what of Petzval can run on it: plain data for `petzval doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import av
import torch

import petzval
from petzval.engine import build
from petzval.errors import UnavailableError
from petzval.models.checkpoint import bundled_names, cached_names
from petzval.ops.report import report_rows
from petzval.scenes.sprites import load_font

PACKAGES = ("diffusers", "transformers", "safetensors", "huggingface_hub", "numpy", "pillow", "av", "scipy")
OPTIONAL = {"matplotlib": "loss plots of petzval train", "flash-attn": "attention row flash2 on CUDA"}
ENCODERS = {"libx264": "MP4 (H.264)"}


def examine() -> dict[str, Any]:
    """Everything that decides whether and how Petzval runs here. `problems` are what a user would run into."""
    report = {
        "petzval": petzval.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
        },
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "devices": [_device(name) for name in build.available_devices()],
        "packages": {name: _version(name) for name in PACKAGES},
        "optional": {name: {"version": _version(name), "for": use} for name, use in OPTIONAL.items()},
        "ffmpeg": {name: ".".join(map(str, version)) for name, version in av.library_versions.items()},
        "encoders": {name: {"usable": _encodes(name), "for": use} for name, use in ENCODERS.items()},
        "emoji_font": _font(),
        "checkpoints": {"bundled": list(bundled_names()), "cached": list(cached_names())},
        "ops": [row for name in build.available_devices() for row in _rows(name)],
    }
    return {**report, "problems": _problems(report)}


def _problems(report: dict[str, Any]) -> list[str]:
    found = []
    if "pocket" not in report["checkpoints"]["bundled"]:
        found.append("the bundled checkpoint 'pocket' is missing: name one with --model")
    found += [
        f"encoder {name} is missing: no {encoder['for']} can be written; .webp and .gif still can"
        for name, encoder in report["encoders"].items()
        if not encoder["usable"]
    ]
    return found


def _memory() -> dict[str, int] | None:
    """Bytes of the machine's memory, total and free for use, where Linux tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return {"total": sizes["MemTotal"], "available": sizes["MemAvailable"]}


def _device(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name, "dtype": str(_auto_dtype(name)).removeprefix("torch.")}
    if name.startswith("cuda"):
        properties = torch.cuda.get_device_properties(name)
        free, total = torch.cuda.mem_get_info(name)
        facts |= {"model": properties.name, "memory": {"total": total, "available": free}}
        facts["capability"] = f"{properties.major}.{properties.minor}"
    return facts


def _auto_dtype(name: str) -> torch.dtype:
    return build.pick_dtype("auto", torch.device(name))


def _rows(name: str) -> list[dict[str, Any]]:
    reports = report_rows(torch.device(name), dtype=_auto_dtype(name), verdicts=build.VERDICTS)
    return [{**asdict(report), "usable": report.usable} for report in reports]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _encodes(name: str) -> bool:
    return name in av.codecs_available and av.Codec(name, "w").is_encoder


def _font() -> dict[str, Any]:
    """The font that scenes are drawn with: only training and judging need it."""
    try:
        return {"usable": True, "path": str(load_font().path), "reason": None}
    except UnavailableError as error:
        return {"usable": False, "path": None, "reason": str(error)}
