"""One tiny training run that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from petzval.train.config import TrainConfig, read_config
from petzval.train.run import run

TINY = """
name = "tiny"
[data]
pictures = 40
clips = 10
centred_pictures = 12
centred_clips = 0
num_frames = 3
canvas = 64
[autoencoder]
latent_channels = 8
encoder_dim = 24
decoder_dim = 24
pca_frames = 60
[decoder]
batch = 4
[decoder_optim]
steps = 4
decay_from = 2
[text]
vocabulary = 400
width = 16
num_layers = 1
num_heads = 2
max_tokens = 64
[transformer]
num_heads = 2
head_dim = 16
ffn_dim = 48
num_layers = 2
freq_dim = 16
[flow]
batch_pictures = 4
batch_clips = 2
clips_from = 2
centred_from = 4
[optim]
steps = 6
decay_from = 4
warmup = 2
save_every = 2
sample_every = 6
"""


def write_config(folder: Path, text: str = TINY) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    return read_config(write_config(tmp_path_factory.mktemp("config")))


@pytest.fixture(scope="session")
def tiny_run(tiny_config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run, every stage done."""
    folder = tmp_path_factory.mktemp("run")
    run(tiny_config, folder, lambda *_: None)
    return folder
