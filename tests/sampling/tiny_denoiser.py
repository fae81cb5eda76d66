"""A denoiser small enough to run thousands of times, and what the trajectory's tests do with it.

Run as a program it finishes saved trajectories in a process that never saw them begin:
`python -m tests.sampling.tiny_denoiser FILE...` prints the digest of each one's latents as JSON.

Shapes: B batch, C channels, H height, W width, L pixels, D width, R timesteps.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from petzval.sampling import trajectory_file
from petzval.sampling.noise import Noise
from petzval.sampling.schedules import make_schedule
from petzval.sampling.trajectory import Trajectory, advance, begin
from petzval.types import CheckpointId, Plan, Prediction, Request, Schedule

CHECKPOINT = CheckpointId(family="tiny", name="tiny/denoiser", fingerprint="0123456789abcdef")
CHANNELS, WIDTH = 4, 16
CPU = torch.device("cpu")
UNIPC_CONFIG = {
    "_class_name": "UniPCMultistepScheduler",
    "use_flow_sigmas": True,
    "prediction_type": "flow_prediction",
    "flow_shift": 3.0,
}


@dataclass(frozen=True)
class TinyInvariants:
    """Modulation of every timestep, by branch."""

    modulation_RD: dict[str, Tensor]
    key: Hashable

    def batch_key(self, step: int) -> Hashable:
        return self.key


class TinyDenoiser(nn.Module):
    """Two linears over channels, with the mean of all pixels mixed in. Counts its forwards."""

    prediction: Prediction = "velocity"

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(11)
            self.time_in, self.prompt_in = nn.Linear(2, WIDTH), nn.Linear(3, WIDTH)
            self.proj_in, self.proj_out = nn.Linear(CHANNELS, WIDTH), nn.Linear(WIDTH, CHANNELS)
        self.requires_grad_(requires_grad=False)
        self.batches: list[tuple[list[int], list[str]]] = []

    def invariants(self, plan: Plan, conditioning: dict[str, Tensor]) -> TinyInvariants:
        time_R = torch.tensor(plan.schedule.timesteps) / 1000
        time_RD = self.time_in(torch.stack((time_R.cos(), time_R.sin()), dim=-1))
        prompts = {"cond": conditioning["prompt_embeds"], "uncond": conditioning["negative_prompt_embeds"]}
        return TinyInvariants(
            {branch: time_RD + self.prompt_in(prompt.float()) for branch, prompt in prompts.items()},
            key=tuple(conditioning["prompt_embeds"].shape),
        )

    def predict(
        self, latents: Tensor, steps: Sequence[int], branches: Sequence[str], invariants: Sequence[TinyInvariants]
    ) -> Tensor:
        self.batches.append((list(steps), list(branches)))
        rows = zip(steps, branches, invariants, strict=True)
        modulation_BD = torch.stack([known.modulation_RD[branch][step] for step, branch, known in rows])
        x_BLD = self.proj_in(latents.flatten(2).mT)
        x_BLD = torch.tanh(x_BLD * (1 + modulation_BD[:, None]) + x_BLD.mean(1, keepdim=True))
        return latents + self.proj_out(x_BLD).mT.unflatten(2, latents.shape[2:])


def make_plan(
    *,
    sampler: str = "unipc",
    num_inference_steps: int = 6,
    guidance_scale: float = 3.0,
    seed: int = 0,
    strength: float | None = None,
    prompt: str = "a fox",
) -> Plan:
    chosen, sigmas, timesteps, first_step = make_schedule(
        UNIPC_CONFIG, num_inference_steps=num_inference_steps, sampler=sampler, strength=strength
    )
    return Plan(
        request=Request(task="text-to-image", prompt=prompt, seed=seed, sampler=sampler, strength=strength),
        checkpoint=CHECKPOINT,
        schedule=Schedule(
            sampler=chosen,
            sigmas=sigmas,
            timesteps=timesteps,
            guidance=(guidance_scale,) * len(timesteps),
            experts=("transformer",) * len(timesteps),
            first_step=first_step,
        ),
    )


def start(*, size: tuple[int, int] = (3, 5), **options: Any) -> Trajectory:
    """A trajectory at its first step. Its prompt, too, follows from its seed."""
    plan = make_plan(**options)
    words = torch.Generator().manual_seed(plan.request.seed + 1000)
    shape = (CHANNELS, *size)
    return begin(
        plan,
        conditioning={
            "prompt_embeds": torch.randn(3, generator=words).bfloat16(),
            "negative_prompt_embeds": torch.randn(3, generator=words).bfloat16(),
        },
        noise=Noise(plan.request.seed),
        shape=shape,
        device=CPU,
        image_latents=None
        if plan.request.strength is None
        else torch.linspace(-1, 1, 4 * size[0] * size[1]).view(shape),
    )


def run(trajectory: Trajectory, model: TinyDenoiser, *, num_steps: int | None = None) -> Trajectory:
    """Advance alone, to the end or by so many steps."""
    left = trajectory.plan.schedule.num_steps - trajectory.step
    for _ in range(left if num_steps is None else num_steps):
        advance([trajectory], model)
    return trajectory


def digest(trajectory: Trajectory) -> str:
    return hashlib.sha256(trajectory.latents.contiguous().numpy().tobytes()).hexdigest()


def main(paths: Sequence[str]) -> None:
    torch.set_num_threads(1)
    model = TinyDenoiser()
    finished = {path: digest(run(trajectory_file.load(path, CHECKPOINT, CPU), model)) for path in paths}
    sys.stdout.write(json.dumps(finished))


if __name__ == "__main__":
    main(sys.argv[1:])
