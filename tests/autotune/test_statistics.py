"""Intervals and the test of quality, against cases with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from petzval.autotune.statistics import interval, mean, not_below


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        low, high = interval(list(rng.normal(3.0, 1.0, 40)), mean)
        covered += low <= 3.0 <= high
    assert 86 <= covered <= 100


def test_equal_values_have_a_point_and_equal_samples_equal_intervals() -> None:
    assert interval([2.0] * 5) == (2.0, 2.0)
    values = list(np.random.default_rng(0).random(20))
    assert interval(values) == interval(values)
    with pytest.raises(ValueError, match="at least one"):
        interval([])


def test_quality_is_not_below_when_nothing_got_worse() -> None:
    assert not_below([True, False], [True, True], margin=0.0)
    assert not_below([], [], margin=0.0)


def test_a_loss_beyond_the_margin_is_found_and_few_samples_are_not_trusted() -> None:
    right = [True] * 200
    assert not not_below(right, [False] * 20 + [True] * 180, margin=0.02)
    assert not_below(right, [False] * 1 + [True] * 199, margin=0.02)
    assert not not_below([True] * 10, [False] + [True] * 9, margin=0.05)
