"""Perceptual distances between two results, on float pixels: what the fidelity ruler reads.

Pixels are float32 in [0, 1] and stay so: a difference of uint8 wraps around, and rounding to uint8 first hides whatever
is smaller than half a level.

Shapes: T frames, H height, W width, C channels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from petzval.errors import BadRequestError, UnavailableError

Pixels = npt.NDArray[np.float32]
Distance = Callable[[Pixels, Pixels], float]

BETAS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Weight of each scale, finest first (Wang, Simoncelli and Bovik 2003)."""
WINDOW = 11
"""Side in pixels of the Gaussian window of SSIM."""
DARK = 1.0 / 255.0
"""Movement under which a clip counts as standing still."""


def ms_ssim(a_THWC: Pixels, b_THWC: Pixels) -> float:
    """1 - multi-scale structural similarity (Wang et al. 2003), mean over frames: 0 for equal pictures.

    Pictures too small for all five scales are compared at those that fit, their weights made to sum to one.
    """
    from torchmetrics.functional.image import multiscale_structural_similarity_index_measure

    a, b = (torch.from_numpy(np.ascontiguousarray(x)).movedim(-1, 1).double() for x in (a_THWC, b_THWC))
    side = min(a.shape[-2:])
    if side < WINDOW:
        raise BadRequestError(f"pictures must have at least {WINDOW} pixels a side to be compared, got {side}")
    scales = max(n for n in range(1, len(BETAS) + 1) if side // max((n - 1) ** 2, 2 ** (n - 1)) >= WINDOW)
    betas = tuple(beta / sum(BETAS[:scales]) for beta in BETAS[:scales])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's imports; what it computes is tested
        alike = multiscale_structural_similarity_index_measure(
            a, b, data_range=1.0, betas=betas, normalize="relu", kernel_size=WINDOW, sigma=1.5
        )
    return 1.0 - float(alike)


def flip(a_THWC: Pixels, b_THWC: Pixels) -> float:
    """Mean FLIP error (Andersson et al. 2020) over frames, at the library's default viewing distance: 0 to 1.

    Raises UnavailableError when the package is not installed.
    """
    try:
        import flip_evaluator
    except ImportError:
        raise UnavailableError("distance 'flip' needs a package: pip install 'petzval[bench]'") from None
    errors = []
    for a_HWC, b_HWC in zip(a_THWC, b_THWC, strict=True):
        _, mean, _ = flip_evaluator.evaluate(
            np.ascontiguousarray(a_HWC, np.float32), np.ascontiguousarray(b_HWC, np.float32), "LDR", applyMagma=False
        )
        errors.append(float(mean))
    return float(np.mean(errors))


def lpips(a_THWC: Pixels, b_THWC: Pixels) -> float:
    """LPIPS (Zhang et al. 2018, AlexNet), mean over frames. Raises UnavailableError without the package or its weights,
    which come with torchvision."""
    try:
        import lpips as package

        network = package.LPIPS(net="alex", verbose=False)
    except Exception as error:  # noqa: BLE001 - the package fails in as many ways as torchvision does
        raise UnavailableError(f"distance 'lpips' is not usable here: {str(error).splitlines()[0]}") from None
    a, b = (torch.from_numpy(np.ascontiguousarray(x)).movedim(-1, 1).mul(2).sub(1) for x in (a_THWC, b_THWC))
    with torch.inference_mode():
        return float(network(a, b).mean())


DISTANCES: Final[Mapping[str, Distance]] = {"ms-ssim": ms_ssim, "flip": flip, "lpips": lpips}
"""Each on pairs of frames; `distance` adds what moves."""


def distance(a_THWC: Pixels, b_THWC: Pixels, name: str = "ms-ssim") -> float:
    """How different two results look: of pictures the named distance, of clips half of it and half `flicker`.

    Raises BadRequestError for an unknown name, results of different shapes or that are not float pixels.
    """
    if name not in DISTANCES:
        raise BadRequestError(f"distance must be one of {', '.join(DISTANCES)}, got {name!r}")
    for pixels in (a_THWC, b_THWC):
        if pixels.dtype.kind != "f":
            raise BadRequestError(f"distances are of float pixels in 0 to 1, got {pixels.dtype}: uint8 wraps around")
        if pixels.ndim != 4:
            raise BadRequestError(f"distances are of frames, T H W C, got the shape {pixels.shape}")
    if a_THWC.shape != b_THWC.shape:
        raise BadRequestError(f"results must have one shape to be compared, got {a_THWC.shape} and {b_THWC.shape}")
    still = DISTANCES[name](a_THWC, b_THWC)
    return still if len(a_THWC) == 1 else (still + flicker(a_THWC, b_THWC)) / 2


def flicker(a_THWC: Pixels, b_THWC: Pixels) -> float:
    """How differently two clips move: the difference of their differences between frames, over what both move, 0 to 1.

    Frames that are each close to the reference's, but now a little lighter and now a little darker, look right one by
    one and wrong in motion.
    """
    a, b = (np.diff(x.astype(np.float64), axis=0) for x in (a_THWC, b_THWC))
    moved = np.abs(a).mean() + np.abs(b).mean() + DARK
    return float(np.abs(a - b).mean() / moved)
