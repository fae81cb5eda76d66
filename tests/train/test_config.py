"""Configs: what is read is what is written, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from petzval.errors import BadRequestError
from petzval.train.config import TrainConfig, read_config
from tests.train.conftest import TINY, write_config


def test_values_of_the_file_stand_in_the_config(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path))
    assert (config.name, config.data.canvas, config.flow.clips_from) == ("tiny", 64, 2)
    assert config.optim.learning_rate == TrainConfig(name="x").optim.learning_rate


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name = 'x'\n[optim]\nsteps = 'many'", "optim.steps must be int, got 'many'"),
        ("name = 'x'\n[optim]\nsteps = true", "optim.steps must be int"),
        ("name = 'x'\n[optim]\nlr = 1.0", "unknown optim.lr; allowed: steps"),
        ("name = 'x'\n[flows]\nsteps = 1", "unknown flows; allowed: name, start, data"),
        ("[flow]\nsteps = 1", "name must be a string"),
        ("name = ", "not TOML"),
        ("name = 'x'\n[optim]\nbetas = [0.9]", "optim.betas must be tuple"),
        ("name = 'x'\n[optim]\nbetas = [0.9, 'x']", "optim.betas must be at least 0"),
        ("name = 'x'\noptim = 5", "optim must be a table"),
        ("name = 'x'\n[optim]\nsave_every = 0", "optim.save_every must be at least 1, got 0"),
        ("name = 'x'\n[optim]\nlearning_rate = nan", "optim.learning_rate must be at least 0, got nan"),
        ("name = 'x'\n[optim]\nlearning_rate = -1", "optim.learning_rate must be at least 0, got -1.0"),
        ("name = 'x'\n[flow]\ntimestep_mean = inf", "flow.timestep_mean must be finite, got inf"),
        ("name = '../x'", "name must be the name of a folder, got '../x'"),
        ("name = ''", "name must be the name of a folder"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadRequestError, match=named.replace("[", r"\[")):
        read_config(write_config(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="no such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(BadRequestError, match="directory"):
        read_config(tmp_path)


def test_integers_serve_as_floats_and_digests_depend_on_their_sections_alone(tmp_path: Path) -> None:
    plain = read_config(write_config(tmp_path))
    changed = read_config(write_config(tmp_path, TINY.replace("steps = 6", "steps = 6\nlearning_rate = 1")))
    assert changed.optim.learning_rate == 1.0
    assert plain.digest("data", "text") == changed.digest("data", "text")
    assert plain.digest("optim") != changed.digest("optim")
