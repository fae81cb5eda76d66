"""Flow matching: the loss is the published one, padding is counted exactly, and batches depend on the step alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from petzval.errors import BadRequestError
from petzval.train.batches import Batches
from petzval.train.config import OptimConfig, TrainConfig
from petzval.train.flow import FlowBatch, TextToVelocity, draw_sigmas, flow_loss
from petzval.train.loop import learning_rate_factor
from petzval.train.pocket import autoencoder, latent_sets, make_model


def quiet(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def parts(tiny_config: TrainConfig, tiny_run: Path) -> tuple[TextToVelocity, Batches]:
    sets = latent_sets(tiny_config, tiny_run, autoencoder(tiny_config, tiny_run, quiet), quiet)
    model, tokenizer = make_model(tiny_config, sets)
    for parameter in model.parameters():  # the output starts at zero, where nothing would show
        torch.nn.init.normal_(parameter, std=0.2)
    return model, Batches(sets, tokenizer, dataclasses.replace(tiny_config.flow, first_frame_given=0.5))


def test_batches_of_a_step_are_always_the_same_and_differ_between_steps(parts: tuple[TextToVelocity, Batches]) -> None:
    _, batches = parts
    for name in ("latents_BCTHW", "sigma_BT", "noise_BCTHW", "token_ids_BS"):
        again = (getattr(batches.at(4), name), getattr(batches.at(4), name))
        torch.testing.assert_close(*again, atol=0, rtol=0)
    assert not torch.equal(batches.at(3).noise_BCTHW, batches.at(5).noise_BCTHW)
    assert batches.at(4).latents_BCTHW.shape[2] == 3, "step 4 is a batch of clips"
    assert batches.at(3).latents_BCTHW.shape[2] == 1


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_clips_come_as_often_as_they_should(parts: tuple[TextToVelocity, Batches], share: float) -> None:
    _, batches = parts
    config = dataclasses.replace(batches.config, clips_from=10, clips_share=share)
    kinds = [Batches(batches.sets, batches.tokenizer, config).is_clip(step) for step in range(50)]
    assert not any(kinds[:10])
    assert sum(kinds[10:]) == round(40 * share)


def test_data_without_pictures_or_clips_is_refused_before_training(parts: tuple[TextToVelocity, Batches]) -> None:
    sets = dataclasses.replace(parts[1].sets, clips=None, centred_clips=None)
    with pytest.raises(BadRequestError, match="data has no clips, centred or not"):
        sets.choose(clip=True, centred=True)


def test_from_a_step_on_only_centred_scenes_are_learned(parts: tuple[TextToVelocity, Batches]) -> None:
    _, batches = parts
    sets, start = batches.sets, batches.config.centred_from
    assert sets.pictures is not None
    assert any(scene.jitter_x for scene in sets.pictures.scenes)
    assert sets.centred_pictures is not None
    assert not any(scene.jitter_x or scene.jitter_y for scene in sets.centred_pictures.scenes)
    assert sets.choose(clip=False, centred=True) is sets.centred_pictures
    assert sets.choose(clip=True, centred=True) is sets.clips, "there are no centred clips here"
    centred = {float(latents.astype("float32").sum()) for latents in sets.centred_pictures.latents}
    pictures = [step for step in range(start + 4) if not batches.is_clip(step)]
    for step in pictures:
        seen = {float(latents.numpy().sum()) for latents in batches.at(step).latents_BCTHW}
        assert (seen <= centred) == (step >= start), step


def test_the_loss_of_the_true_velocity_is_zero_and_given_frames_do_not_count() -> None:
    generator = torch.Generator().manual_seed(1)
    latents, noise = (torch.randn(2, 8, 3, 4, 4, generator=generator) for _ in range(2))
    sigma = draw_sigmas(torch.full((2,), 0.3), generator)[:, None].repeat(1, 3)
    sigma[0, 0] = 0
    ids = torch.ones(2, 4, dtype=torch.long)
    batch = FlowBatch(latents, torch.ones(2, 3, 2, 2), ids, ids, sigma, noise)

    class Oracle(torch.nn.Module):
        wrong = 0.0

        def prompt_embeds(self, *_: object) -> tuple[None, None]:
            return None, None

        def forward(self, noisy: torch.Tensor, *_: object) -> torch.Tensor:
            torch.testing.assert_close(noisy[0, :, 0], latents[0, :, 0], atol=0, rtol=0)
            velocity = noise - latents
            velocity[0, :, 0] += 100  # the given frame: whatever is said there is not asked
            return velocity + self.wrong

    oracle = Oracle()
    assert float(flow_loss(oracle, batch)) == 0  # type: ignore[arg-type]
    oracle.wrong = 0.5
    assert float(flow_loss(oracle, batch)) == pytest.approx(0.25)  # type: ignore[arg-type]


def test_one_counted_token_stands_for_all_padding(parts: tuple[TextToVelocity, Batches]) -> None:
    model, batches = parts
    batch = batches.at(4)
    with torch.no_grad():
        embeds, bias = model.prompt_embeds(batch.token_ids_BS, batch.token_mask_BS)
        counted = model(batch.latents_BCTHW, batch.sigma_BT, embeds, bias)
        padded = F.pad(embeds, (0, 0, 0, 64 - embeds.shape[1]))
        plain = model(batch.latents_BCTHW, batch.sigma_BT, padded, torch.zeros(64))
    torch.testing.assert_close(counted, plain, atol=2e-5, rtol=2e-5)


def test_a_shared_noise_level_is_the_same_as_one_a_frame(parts: tuple[TextToVelocity, Batches]) -> None:
    model, batches = parts
    batch = batches.at(4)
    sigma = torch.full_like(batch.sigma_BT, 0.4)
    with torch.no_grad():
        embeds, bias = model.prompt_embeds(batch.token_ids_BS, batch.token_mask_BS)
        one = model(batch.latents_BCTHW, sigma[:, :1], embeds, bias)
        each = model(batch.latents_BCTHW, sigma, embeds, bias)
    torch.testing.assert_close(one, each, atol=1e-5, rtol=1e-5)


def test_sigmas_are_logit_normal() -> None:
    sigma = draw_sigmas(torch.full((20_000,), 0.3), torch.Generator().manual_seed(0))
    logits = torch.logit(sigma.double())
    assert float(logits.mean()) == pytest.approx(0.3, abs=0.03)
    assert float(logits.std()) == pytest.approx(1.0, abs=0.03)


def test_learning_rate_warms_up_holds_and_falls_to_zero() -> None:
    config = OptimConfig(steps=100, warmup=10, decay_from=60)
    factors = [learning_rate_factor(step, config) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:60] == [1.0] * 51
    assert factors[80] == pytest.approx(0.5)
    assert 0 < factors[99] <= 0.025


def test_the_share_of_high_noise_begins_at_its_step(parts: tuple[TextToVelocity, Batches]) -> None:
    _, batches = parts
    config = dataclasses.replace(
        batches.config, high_noise_share=0.5, high_noise_mean=2.0, high_noise_from=2, batch_pictures=12, clips_from=99
    )
    late = Batches(batches.sets, batches.tokenizer, config)

    def share(steps: range) -> float:
        return float(torch.cat([late.at(step).sigma_BT for step in steps]).gt(0.9).float().mean())

    assert share(range(2)) < 0.15
    assert 0.1 < share(range(2, 40)) < 0.4
