"""What Wan is told: UMT5's token embeddings, CLIP's tokens of a picture, and pictures as latents.

Shapes: C channels, T latent frames, H height, W width, S text tokens, D width.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ftfy
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from petzval.errors import BadRequestError, CheckpointError
from petzval.models.pixels import to_pixels
from petzval.models.wan.vae import WanVae


def clean_prompt(prompt: str) -> str:
    """Repair mis-decoded text, resolve HTML entities (twice, as published), and fold white space."""
    text = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return re.sub(r"\s+", " ", text).strip()


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """UMT5. Prompts are embedded without padding: the padding that the transformer expects is zeros, and counted."""

    module: Any
    tokenizer: Any
    max_tokens: int
    device: torch.device

    def check(self, argument: str, prompt: str) -> None:
        """Raises BadRequestError when the prompt is longer than what the transformer was trained to read."""
        count = len(self._ids(prompt))
        if count > self.max_tokens:
            raise BadRequestError(f"{argument} has {count} tokens; this checkpoint reads at most {self.max_tokens}")

    @torch.no_grad()
    def encode(self, prompt: str) -> Tensor:
        """S D, in the encoder's dtype."""
        ids = torch.tensor([self._ids(prompt)], device=self.device)
        embeds: Tensor = self.module(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        return embeds

    def _ids(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer(clean_prompt(prompt), add_special_tokens=True, verbose=False).input_ids
        return ids


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """CLIP's vision tower, read one layer before its last, with its preprocessing as the checkpoint states it."""

    module: Any
    settings: dict[str, Any]
    device: torch.device

    def __post_init__(self) -> None:
        """Raises CheckpointError for settings that this preprocessing does not follow."""
        steps = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
        if skipped := [step for step in steps if not self.settings.get(step, True)]:
            raise CheckpointError(f"image_processor: {skipped[0]} must be on")
        needed = {"size", "crop_size", "image_mean", "image_std"}
        if missing := sorted(needed - set(self.settings)):
            raise CheckpointError(f"image_processor has no {', '.join(missing)}")

    @torch.no_grad()
    def encode(self, image_HWC: np.ndarray) -> Tensor:
        """A uint8 picture -> S D."""
        pixels = self._preprocess(image_HWC).to(self.device, self.module.dtype)
        hidden: Tensor = self.module(pixels[None], output_hidden_states=True).hidden_states[-2][0]
        return hidden

    def _preprocess(self, image_HWC: np.ndarray) -> Tensor:
        """Shortest side to the trained size, centre crop, normalise. Pillow resamples, as the published processor."""
        size, crop = self.settings["size"], self.settings["crop_size"]
        image = Image.fromarray(image_HWC)
        if "shortest_edge" in size:
            shorter, longer = sorted(image.size)
            edge = int(size["shortest_edge"])
            scaled = int(edge * longer / shorter)
            target = (edge, scaled) if image.width <= image.height else (scaled, edge)
        else:
            target = (int(size["width"]), int(size["height"]))
        image = image.resize(target, Image.Resampling(int(self.settings.get("resample", 3))))
        left, top = (image.width - int(crop["width"])) // 2, (image.height - int(crop["height"])) // 2
        image = image.crop((left, top, left + int(crop["width"]), top + int(crop["height"])))
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) * self.settings.get("rescale_factor", 1 / 255))
        mean, deviation = (torch.tensor(self.settings[key]) for key in ("image_mean", "image_std"))
        return ((pixels - mean) / deviation).permute(2, 0, 1)


def condition_latents(
    vae: WanVae, images: Sequence[np.ndarray], *, width: int, height: int, num_frames: int, temporal_stride: int
) -> Tensor:
    """The channels that image-to-video checkpoints read beside the sample: a mask of which frames are given (one
    channel for each of the frames a latent frame stands for), and the latents of the given frames, grey elsewhere.

    One picture is the first frame; of two, the second is the last. (stride + C) T H W, float32.
    """
    given = [to_pixels(image, width=width, height=height) for image in images]
    pixels_CTHW = torch.zeros(3, num_frames, height, width)
    pixels_CTHW[:, 0] = given[0]
    mask_F = torch.zeros(num_frames)
    mask_F[0] = 1
    if len(given) == 2:
        pixels_CTHW[:, -1] = given[1]
        mask_F[-1] = 1
    latents = vae.encode_clip(pixels_CTHW)
    # The first frame is a latent frame of its own: it counts for as many frames as the others stand for.
    mask_F = torch.cat([mask_F[:1].repeat(temporal_stride), mask_F[1:]])
    mask = mask_F.view(-1, temporal_stride).T[:, :, None, None].expand(-1, -1, *latents.shape[-2:])
    return torch.cat([mask.to(latents), latents])
