"""Training batches: which scenes, captions and noise a step sees, decided by the seed and the step alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from petzval.scenes.captions import caption, telling_caption
from petzval.train.config import FlowConfig
from petzval.train.flow import FlowBatch, draw_sigmas
from petzval.train.latents import LatentSets


class Batches:
    """Makes the batch of any step, so that a resumed run goes on exactly as if it had never stopped."""

    def __init__(self, sets: LatentSets, tokenizer: Any, config: FlowConfig) -> None:
        self.sets, self.tokenizer, self.config = sets, tokenizer, config

    def is_clip(self, train_step: int) -> bool:
        late, share = train_step - self.config.clips_from, self.config.clips_share
        return late >= 0 and math.ceil((late + 1) * share) > math.ceil(late * share)

    def at(self, train_step: int) -> FlowBatch:
        config = self.config
        rng = np.random.default_rng((config.seed, train_step))
        generator = torch.Generator().manual_seed((config.seed << 32) + train_step)
        clip = self.is_clip(train_step)
        data = self.sets.choose(clip=clip, centred=train_step >= config.centred_from)
        size = config.batch_clips if clip else config.batch_pictures
        rows = np.sort(rng.choice(len(data), size, replace=False))
        latents = torch.from_numpy(data.latents[rows].astype(np.float32)).transpose(1, 2).contiguous()
        weight = 1 + config.subject_weight * torch.from_numpy(data.coverage[rows].astype(np.float32))
        tell = telling_caption if train_step >= config.telling_from else caption
        texts = [tell(data.scenes[row], rng).text if rng.random() >= config.drop_prompt else "" for row in rows]
        tokens = self.tokenizer(texts, padding="longest", return_tensors="pt")
        sigma = draw_sigmas(self._means(train_step, size, generator, clip=clip), generator)[:, None].repeat(
            1, latents.shape[2]
        )
        if latents.shape[2] > 1:
            given = torch.from_numpy(rng.random(size) < config.first_frame_given)
            sigma[given, 0] = 0.0
        noise = torch.randn(latents.shape, generator=generator)
        return FlowBatch(latents, weight, tokens["input_ids"], tokens["attention_mask"], sigma, noise)

    def _means(self, train_step: int, size: int, generator: torch.Generator, *, clip: bool) -> torch.Tensor:
        """The mean of each sample's logit-normal noise level."""
        config = self.config
        share = config.high_noise_share if train_step >= config.high_noise_from else 0.0
        high = torch.rand(size, generator=generator) < share
        high_mean = config.high_noise_mean_clips if clip else config.high_noise_mean
        return torch.where(high, high_mean, config.timestep_mean)
