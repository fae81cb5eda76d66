"""Tier exact against diffusers, eager and compiled, on the pocket model: `python bench/exact.py --out FILE`.

Same weights, prompt, seeds, steps, guidance and threads, in one process; after a warm-up (compilation is in it) they
take turns, the first of a round in turn, too. Whole pipelines, from prompt to pixels; beside each ratio the PSNR
between results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import diffusers
import numpy as np
import torch

from petzval.engine.build import load
from petzval.models.checkpoint import BUNDLED
from petzval.tasks.generate import generate
from petzval.types import Request, Task

CASES: tuple[tuple[Task, str, int], ...] = (
    ("text-to-image", "a large fox on the left, a beach", 1),
    ("text-to-video", "a small rocket flies up, the night sky", 9),
)
Make = Callable[[int], np.ndarray]


def ours(task: Task, prompt: str) -> Make:
    model = load("pocket", device="cpu")
    return lambda seed: generate(model, Request(task=task, prompt=prompt, seed=seed)).pixels_THWC


def theirs(prompt: str, num_frames: int, *, compiled: bool) -> Make:
    pipeline = diffusers.WanPipeline.from_pretrained(BUNDLED / "pocket")
    pipeline.set_progress_bar_config(disable=True)
    if compiled:
        pipeline.transformer.compile()

    def make(seed: int) -> np.ndarray:
        # It makes n frames into n + 1 where the autoencoder does not compress time.
        given = {"width": 128, "height": 128, "num_frames": num_frames - 1, "num_inference_steps": 50}
        generator = torch.Generator().manual_seed(seed)
        return np.asarray(pipeline(prompt, guidance_scale=3.0, generator=generator, **given).frames[0])

    return make


def compare(task: Task, prompt: str, num_frames: int, rounds: int) -> dict[str, object]:
    contenders = {
        "petzval exact": ours(task, prompt),
        "diffusers eager": theirs(prompt, num_frames, compiled=False),
        "diffusers compiled": theirs(prompt, num_frames, compiled=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    likeness: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        pictures = {}
        names = list(contenders)
        order = names[number % 3 :] + names[: number % 3]
        for name in order:
            started = time.perf_counter()
            pictures[name] = contenders[name](number)
            if number:  # the first round is the warm-up
                seconds[name].append(time.perf_counter() - started)
        for name in names[1:]:
            error = np.square(pictures["petzval exact"].astype(np.float64) - pictures[name]).mean()
            likeness[name].append(float(10 * np.log10(1 / error)))
    against = {
        name: {
            "speedup": statistics.median(b / a for a, b in zip(seconds["petzval exact"], seconds[name], strict=True)),
            "psnr_least": min(likeness[name]),
        }
        for name in names[1:]
    }
    medians = {name: statistics.median(spent) for name, spent in seconds.items()}
    sys.stderr.write(f"{task}: {against}, medians {medians}\n")
    return {"task": task, "num_frames": num_frames, "seconds": seconds, "medians": medians, "against": against}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    result = {
        "what": __doc__,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": {"cpu": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()},
        "versions": {
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
            "python": platform.python_version(),
        },
        "rows": [compare(*case, given.rounds) for case in CASES],
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
