"""What a few samples say, and how sure: bootstrap intervals, and the test that quality is not below. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
SEED = 0
"""Equal samples give equal intervals."""

Statistic = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Of each row."""


def median(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.median(rows, axis=1)


def mean(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return rows.mean(axis=1)


def interval(values: Sequence[float], statistic: Statistic = median, *, level: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval (Efron 1979) of a statistic. Raises ValueError without values."""
    if not len(values):
        raise ValueError("an interval needs at least one value")
    drawn = np.random.default_rng(SEED).integers(0, len(values), (RESAMPLES, len(values)))
    found = statistic(np.asarray(values, np.float64)[drawn])
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def not_below(reference: Sequence[bool], fast: Sequence[bool], *, margin: float, level: float = 0.95) -> bool:
    """Whether `fast` is right about as often as `reference` on the same samples: the one-sided paired bootstrap bound
    of the difference of their shares lies above -`margin`, or nothing at all got worse.

    Few samples make a wide bound, so that absence of evidence is not taken for evidence.
    """
    change = np.asarray(fast, np.float64) - np.asarray(reference, np.float64)
    if not len(change) or change.min() >= 0:
        return True
    low, _ = interval(list(change), mean, level=2 * level - 1)
    return low >= -margin
