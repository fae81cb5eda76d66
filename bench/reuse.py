"""What skipping steps costs in fidelity on the pocket model: `python bench/reuse.py [--clips] --out FILE`.

For each way to skip: the share of model evaluations that is left, and how far the final latents are from those of all
50 steps (relative L2, median and worst over held-back prompts; schedules and weights are found on other prompts). Fewer
solver steps is the baseline that every forecast must beat at an equal share. This measures no seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from petzval.accel.reuse.planning import with_steps
from petzval.accel.reuse.skip import Skipping
from petzval.autotune import calibrate
from petzval.engine.build import load
from petzval.engine.model import Model
from petzval.sampling.trajectory import Trajectory, advance, fork
from petzval.scenes.sample import judge_prompts
from petzval.tasks.generate import begin
from petzval.types import GuidancePlan, Request, ReusePlan, StepPlan, to_json

COUNTS = (20, 14, 10)
"""Steps computed of 50."""


def plans(model: Model, traces: list[calibrate.Trace]) -> Iterator[tuple[str, StepPlan]]:
    for count in (25, *COUNTS):
        yield f"{count} solver steps", StepPlan(num_inference_steps=count)
    weight = calibrate.influence(model, traces[:2], every=3)
    for forecast, order in (("hold", 0), ("taylor", 1), ("hermite", 1), ("foca", 1), ("least-squares", 1)):
        for count in COUNTS:
            base = ReusePlan(forecast="taylor" if forecast == "least-squares" else forecast, order=order, first_full=2)
            base = dataclasses.replace(base, max_consecutive=8)
            chosen = dataclasses.replace(
                base, computed=calibrate.choose_steps(traces, weight, base, num_computed=count)
            )
            if forecast == "least-squares":
                fitted = calibrate.fit(traces, chosen.computed or (), chosen)
                chosen = dataclasses.replace(chosen, forecast=forecast, weights=fitted)
            yield f"{forecast}, {count} steps chosen offline", StepPlan(reuse=chosen)
    for signal in ("latent-rate", "filtered-latents", "modulated-input", "first-block"):
        for budget in (0.05, 0.1, 0.2):
            gate = ReusePlan(forecast="taylor", order=1, first_full=2, max_consecutive=8, signal=signal, budget=budget)
            yield f"taylor, gate {signal}, budget {budget}", StepPlan(reuse=gate)
    for every in (2, 4):
        delta = GuidancePlan(forecast_from=0.2, forecast_every=every)
        yield f"guidance difference every {every} steps from 20 %", StepPlan(guidance=delta)
        fewer = StepPlan(num_inference_steps=20, guidance=delta)
        yield f"20 solver steps, guidance difference every {every} from 20 %", fewer


def measure(model: Model, references: list[calibrate.Trace], steps: StepPlan) -> dict[str, float]:
    group: list[Trajectory] = []
    for reference in references:
        t = fork(reference.states[0])
        if steps.num_inference_steps is None:
            t.plan = with_steps(t.plan, steps)
        else:
            t.plan, t.invariants = model.plan_as(t.plan.request, steps), None
        group.append(t)
    while not group[0].done:
        advance(group, model, Skipping())
    done = sum(len(t.plan.schedule.branches(s)) for t in group for s in range(t.plan.schedule.num_steps))
    done -= sum(int(t.history.numbers.get("reuse/saved", 0)) for t in group)
    full = sum(len(r.schedule.branches(s)) for r in references for s in range(r.schedule.num_steps))
    off = [float((t.latents - r.final).norm() / r.final.norm()) for t, r in zip(group, references, strict=True)]
    return {"evaluations": done / full, "median": statistics.median(off), "worst": max(off)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", action="store_true")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model = load("pocket", device="cpu")
    prompts = judge_prompts(2 * given.samples, seed=5, video=given.clips)
    task = "text-to-video" if given.clips else "text-to-image"
    starts = [
        begin(model, Request(task=task, prompt=caption.text, seed=100 + index))  # type: ignore[arg-type]
        for index, (_, caption) in enumerate(prompts)
    ]
    traces = calibrate.record(model, starts[: given.samples])
    references = calibrate.record(model, starts[given.samples :])
    rows = []
    for name, steps in plans(model, traces):
        rows.append({"name": name, **measure(model, references, steps)})
        sys.stderr.write("{name:60s} {evaluations:.2f} {median:.4f} {worst:.4f}\n".format(**rows[-1]))
    result = {
        "what": __doc__,
        "task": task,
        "samples": given.samples,
        "checkpoint": to_json(model.checkpoint),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": {"cpu": model.kind, "cores": torch.get_num_threads(), "system": platform.system()},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
