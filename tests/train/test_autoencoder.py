"""The PCA autoencoder: exact at the start, an ordinary AutoencoderKLWan, and only its decoder learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan

from petzval.models.wan.vae import decode_frame, encode_frame
from petzval.scenes.draw import draw
from petzval.scenes.sample import sample_scene
from petzval.train.autoencoder import decoder_loss, decoder_parts, pca_autoencoder, reconstruction_loss, to_model
from petzval.train.config import AutoencoderConfig, OptimConfig, TrainConfig
from petzval.train.loop import LoopHooks, train

CONFIG = TrainConfig(
    name="test",
    autoencoder=AutoencoderConfig(latent_channels=8, encoder_dim=24, decoder_dim=24),
    decoder_optim=OptimConfig(steps=30, decay_from=15, warmup=2, learning_rate=5e-4, weight_decay=0.0),
)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([draw(sample_scene(rng, video=False), canvas=64) for _ in range(120)])


@pytest.fixture(scope="module")
def vae(frames: np.ndarray) -> AutoencoderKLWan:
    return pca_autoencoder(frames, CONFIG.autoencoder)


def test_it_starts_as_the_principal_components(frames: np.ndarray, vae: AutoencoderKLWan) -> None:
    pixels = to_model(frames[:16])
    patches = pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2).double()
    every = to_model(frames).unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2).double()
    mean = every.mean(0)
    _, _, basis = torch.linalg.svd(every - mean, full_matrices=False)
    best = mean + (patches - mean) @ basis[:8].T @ basis[:8]
    optimum = (best - patches).square().mean()
    with torch.no_grad():
        ours = (decode_frame(vae, encode_frame(vae, pixels)) - pixels).double().square().mean()
    assert ours < 1.02 * optimum, "the carrier bends the linear map by more than it may"


def test_scaled_latents_have_unit_power_and_louder_coarse_components(frames: np.ndarray, vae: AutoencoderKLWan) -> None:
    with torch.no_grad():
        latents = encode_frame(vae, to_model(frames)) / torch.tensor(vae.config.latents_std).view(-1, 1, 1)
    power = latents.square().mean((0, 2, 3))
    assert power.mean() == pytest.approx(1, rel=0.05)
    assert torch.equal(power.argsort(descending=True), torch.arange(8))


def test_the_posterior_has_no_spread(frames: np.ndarray, vae: AutoencoderKLWan) -> None:
    posterior = vae.encode(to_model(frames[:1])[:, :, None]).latent_dist
    drawn = posterior.sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, posterior.mode(), atol=1e-3, rtol=0)


def test_training_lowers_the_loss_and_leaves_the_encoder_and_earlier_taps_alone(
    frames: np.ndarray, tmp_path: Path
) -> None:
    vae = pca_autoencoder(frames, CONFIG.autoencoder)
    encoder = {name: p.clone() for name, p in vae.encoder.named_parameters()}
    pixels = to_model(frames[:8])

    def loss() -> float:
        with torch.no_grad():
            return float(reconstruction_loss(decode_frame(vae, encode_frame(vae, pixels)), pixels, 0.5))

    before = loss()
    train(
        decoder_parts(vae),
        lambda step: (decoder_loss(vae, pixels, step, CONFIG.decoder), "frames"),
        CONFIG.decoder_optim,
        tmp_path,
        "digest",
        LoopHooks(lambda _: None, lambda _: None),
    )
    after = loss()
    with torch.no_grad():
        clip = to_model(frames[:5]).transpose(0, 1)[None]
        # AutoencoderKLWan reads clips in chunks of four frames after the first: others are cut off.
        together = vae.decode(vae.encode(clip).latent_dist.mode()).sample[0].transpose(0, 1)
        apart = decode_frame(vae, encode_frame(vae, to_model(frames[:5]))).clamp(-1, 1)
    assert after < 0.97 * before
    assert all(torch.equal(p, encoder[name]) for name, p in vae.encoder.named_parameters())
    torch.testing.assert_close(together, apart, atol=2e-5, rtol=0)
