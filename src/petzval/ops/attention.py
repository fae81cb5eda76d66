"""Attention: softmax(q k^T / sqrt(K) + bias) v over whole sequences, by the fastest row that computes exactly that.

A bias belongs to keys alone: one number a key, shared by all samples, heads and queries. With log n it lets one key
stand for n equal ones; with -inf it drops a key. Give it in float32 whatever the tensors' dtype: rounded to bfloat16,
log 400 changes its key's weight by up to 1.6 percent.

Shapes: B batch, L tokens (queries), S keys, N heads, K head width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from petzval.errors import BadRequestError, OutOfMemoryError, UnavailableError
from petzval.ops.table import AUTO, Choice, Row, Table, Verdicts, listed

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (*HALVES, torch.float32, torch.float64)

logger = logging.getLogger(__name__)


class AttentionFunction(Protocol):
    """(q_BLNK, k_BSNK, v_BSNK) -> BLNK, with an optional bias for each key."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, /, bias_S: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a model, on a device, asks of attention. Rows are checked once for each."""

    device: str
    """As torch writes it: "cpu", "cuda:0"."""
    dtype: torch.dtype
    head_dim: int
    biased: bool
    capability: tuple[int, int] | None = None
    """Compute capability of a CUDA device."""

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    def __str__(self) -> str:
        kind = "with a bias" if self.biased else "without bias"
        return f"{self.device}, {name_of(self.dtype)}, head_dim {self.head_dim}, {kind}"


def need_of(device: torch.device, *, dtype: torch.dtype, head_dim: int, biased: bool) -> Need:
    """Raises BadRequestError for a dtype or head_dim that attention is not computed in, UnavailableError for a CUDA
    device that is not there."""
    if dtype not in DTYPES:
        raise BadRequestError(f"dtype must be one of {', '.join(map(name_of, DTYPES))}, got {name_of(dtype)}")
    if head_dim < 1:
        raise BadRequestError(f"head_dim must be at least 1, got {head_dim}")
    capability = None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UnavailableError(f"device {str(device)!r}: torch finds no CUDA device")
        capability = torch.cuda.get_device_capability(device)
    return Need(device=str(device), dtype=dtype, head_dim=head_dim, biased=biased, capability=capability)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- the rows' functions ----------------------------------------------------------------------------------------------


def math_attention(q_BLNK: Tensor, k_BSNK: Tensor, v_BSNK: Tensor, bias_S: Tensor | None = None) -> Tensor:
    """The reference: the formula as it is written, in float32 or wider, rounded once at the end."""
    wide = torch.promote_types(q_BLNK.dtype, torch.float32)
    scores = torch.einsum("blnk,bsnk->bnls", q_BLNK.to(wide), k_BSNK.to(wide)) * q_BLNK.shape[-1] ** -0.5
    if bias_S is not None:
        scores = scores + bias_S.to(wide)
    return torch.einsum("bnls,bsnk->blnk", scores.softmax(dim=-1), v_BSNK.to(wide)).to(q_BLNK.dtype)


def sdpa_attention(q_BLNK: Tensor, k_BSNK: Tensor, v_BSNK: Tensor, bias_S: Tensor | None = None) -> Tensor:
    """torch's scaled dot-product attention, by the kernel that torch picks."""
    scale, mask = q_BLNK.shape[-1] ** -0.5, None
    if bias_S is not None and q_BLNK.device.type == "cpu":
        # One row of numbers for every query: a view, which the CPU's flash kernel reads in float32 at every dtype.
        wide = torch.promote_types(q_BLNK.dtype, torch.float32)
        mask = bias_S.to(wide).expand(1, 1, q_BLNK.shape[1], k_BSNK.shape[1])
    elif bias_S is not None:
        q_BLNK, k_BSNK = fold_bias(q_BLNK, k_BSNK, bias_S)
    q, k, v = (x.transpose(1, 2) for x in (q_BLNK, k_BSNK, v_BSNK))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)


def fold_bias(q_BLNK: Tensor, k_BSNK: Tensor, bias_S: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, 8 wider, whose products hold the bias; to be scaled by the old width.

    A kernel that wants its mask in q's dtype would round the bias. Three numbers of that dtype, each the rest that the
    one before left, hold what float32 holds, and kernels add products up in float32.
    """
    # -inf - -inf is nan. This far down a weight is 0 in any dtype, and float16 still holds the number.
    rest_S = (bias_S.float() * q_BLNK.shape[-1] ** 0.5).clamp(-30000, 30000)
    parts = []
    for _ in range(3):
        parts.append(rest_S.to(q_BLNK.dtype))
        rest_S = rest_S - parts[-1].float()
    # Kernels want widths that are multiples of 8.
    columns_S8 = F.pad(torch.stack(parts, dim=-1), (0, 5))
    ones_8 = F.pad(q_BLNK.new_ones(3), (0, 5))
    q = torch.cat([q_BLNK, ones_8.expand(*q_BLNK.shape[:-1], -1)], dim=-1)
    k = torch.cat([k_BSNK, columns_S8[:, None].expand(*k_BSNK.shape[:-1], -1)], dim=-1)
    return q, k


def _pinned(
    backend: SDPBackend, q_BLNK: Tensor, k_BSNK: Tensor, v_BSNK: Tensor, bias_S: Tensor | None = None
) -> Tensor:
    # A switch of the whole process while it is held: attention is computed by one thread of a process.
    with sdpa_kernel(backend):
        return sdpa_attention(q_BLNK, k_BSNK, v_BSNK, bias_S)


def _load_flash(package: str) -> AttentionFunction:
    return partial(_flash, import_module(package).flash_attn_func)


def _flash(
    kernel: Callable[..., Tensor | tuple[Tensor, ...]],
    q_BLNK: Tensor,
    k_BSNK: Tensor,
    v_BSNK: Tensor,
    bias_S: Tensor | None = None,
) -> Tensor:
    assert bias_S is None, "flash-attn takes no bias"
    mixed = kernel(q_BLNK, k_BSNK, v_BSNK)
    # Some releases of flash-attn 3 return the log-sum-exp as well.
    return mixed[0] if isinstance(mixed, tuple) else mixed


# -- why not ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CudaLimits:
    """Where a CUDA kernel runs."""

    dtypes: tuple[torch.dtype, ...] = HALVES
    capability: tuple[int, int] = (8, 0)
    """The lowest."""
    capability_below: tuple[int, int] | None = None
    max_head_dim: int | None = 256
    head_dim_multiple: int = 1
    takes_bias: bool = False
    package: str | None = None
    """The module it is imported from."""

    def why_not(self, need: Need) -> str | None:
        if need.device_type != "cuda":
            return f"needs cuda, got {need.device_type}"
        if self.package is not None and find_spec(self.package) is None:
            return f"the package {self.package} is not installed"
        if need.dtype not in self.dtypes:
            return f"takes {' or '.join(map(name_of, self.dtypes))}, got {name_of(need.dtype)}"
        if need.biased and not self.takes_bias:
            return "takes no bias"
        return self._why_not_capability(need) or self._why_not_head_dim(need)

    def _why_not_capability(self, need: Need) -> str | None:
        assert need.capability is not None
        got = "got {}.{}".format(*need.capability)
        if need.capability < self.capability:
            return "needs compute capability {}.{} or higher, {}".format(*self.capability, got)
        if self.capability_below is not None and need.capability >= self.capability_below:
            return "needs compute capability below {}.{}, {}".format(*self.capability_below, got)
        return None

    def _why_not_head_dim(self, need: Need) -> str | None:
        if self.max_head_dim is not None and need.head_dim > self.max_head_dim:
            return f"head_dim {need.head_dim} > {self.max_head_dim}"
        if need.head_dim % self.head_dim_multiple:
            return f"head_dim must be a multiple of {self.head_dim_multiple}, got {need.head_dim}"
        return None


def _cudnn_why_not(need: Need) -> str | None:
    limits = CudaLimits(max_head_dim=128, head_dim_multiple=8)
    missing = None if torch.backends.cudnn.is_available() else "torch was built without cuDNN"
    return limits.why_not(need) or missing


# -- an exact row is one whose rounding is no worse than the reference's ----------------------------------------------

ROUNDING: dict[torch.dtype, tuple[float, float]] = {
    torch.bfloat16: (4, 2),
    torch.float16: (4, 2),
    torch.float32: (8, 4),
    # Here the reference is the truth itself, so the measure is one rounding of the result.
    torch.float64: (256, 256),
}
"""How many times further from a float64 computation than the reference an exact row may be: (largest, root mean square)
error. A reference that is nearer than one rounding of the result is taken to be that far. Measured on a CPU over head
widths 16 to 256, torch's own kernels are within (1.0, 1.4) in the halves, (3.1, 2.0) in float32, (33, 72) in float64;
rounding the bias to a half's precision gives up to (3.0, 5.7)."""

TRIAL_LENGTHS = ((1, 7), (7, 1), (64, 64), (50, 129), (130, 77))
"""Queries and keys of the inputs that rows are checked with."""


def check_rounding(row: AttentionFunction, reference: AttentionFunction, need: Need) -> str | None:
    """Why a row is not exact, or None. Draws its own inputs, the same ones every time; leaves global generators alone.

    Raises OutOfMemoryError where the device is too full to try.
    """
    generator = torch.Generator().manual_seed(0)
    for num_queries, num_keys in TRIAL_LENGTHS:
        inputs = _trial_inputs(need, num_queries, num_keys, generator=generator)
        truth = math_attention(*(None if x is None else x.double() for x in inputs))  # type: ignore[arg-type]
        try:
            with torch.no_grad():
                there = tuple(None if x is None else x.to(need.device) for x in inputs)
                errors = [
                    function(*there).double().cpu() - truth  # type: ignore[arg-type]
                    for function in (row, reference)
                ]
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(f"{need.device} has no memory left to check an attention row: {error}") from error
        if reason := _compare(*errors, truth=truth, dtype=need.dtype):
            return f"{reason}, at {num_queries} queries and {num_keys} keys"
    return None


def _trial_inputs(
    need: Need, num_queries: int, num_keys: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    lengths = (num_queries, num_keys, num_keys)
    q, k, v = (torch.randn(2, length, 2, need.head_dim, generator=generator) for length in lengths)
    # Trained models attend sharper than unit normal queries do.
    q, k, v = (x.to(need.dtype) for x in (2 * q, k, v))
    bias = torch.randint(1, 512, (num_keys,), generator=generator).float().log() if need.biased else None
    return q, k, v, bias


def _compare(row_error: Tensor, reference_error: Tensor, *, truth: Tensor, dtype: torch.dtype) -> str | None:
    def largest(x: Tensor) -> float:
        return x.abs().max().item()

    def rms(x: Tensor) -> float:
        return x.square().mean().sqrt().item()

    rounding = torch.finfo(dtype).eps
    # One rounding is off by half a unit at most, and by about an eighth of one on average.
    for factor, measure, what, floor in zip(
        ROUNDING[dtype], (largest, rms), ("largest", "root mean square"), (rounding / 2, rounding / 8), strict=True
    ):
        allowed = factor * max(measure(reference_error), floor * measure(truth))
        if not measure(row_error) <= allowed:  # so that nan is wrong
            return f"not exact: its {what} error is {measure(row_error):.2g}, and {allowed:.2g} is rounding"
    return None


# -- the table --------------------------------------------------------------------------------------------------------

TABLE: Table[Need, AttentionFunction] = Table(
    op="attention",
    check=check_rounding,
    rows={
        "flash3": Row(
            load=partial(_load_flash, "flash_attn_interface"),
            why_not=CudaLimits(capability=(9, 0), capability_below=(10, 0), package="flash_attn_interface").why_not,
            contract="exact",
        ),
        "flash2": Row(
            load=partial(_load_flash, "flash_attn"), why_not=CudaLimits(package="flash_attn").why_not, contract="exact"
        ),
        "cudnn": Row(
            load=lambda: partial(_pinned, SDPBackend.CUDNN_ATTENTION), why_not=_cudnn_why_not, contract="exact"
        ),
        "sdpa-flash": Row(
            load=lambda: partial(_pinned, SDPBackend.FLASH_ATTENTION), why_not=CudaLimits().why_not, contract="exact"
        ),
        "sdpa-efficient": Row(
            load=lambda: partial(_pinned, SDPBackend.EFFICIENT_ATTENTION),
            why_not=CudaLimits(
                dtypes=(*HALVES, torch.float32), max_head_dim=None, head_dim_multiple=8, takes_bias=True
            ).why_not,
            contract="exact",
        ),
        "sdpa": Row(load=lambda: sdpa_attention, why_not=lambda need: None, contract="exact"),
        "math": Row(load=lambda: math_attention, why_not=lambda need: None, contract="exact"),
    },
)


# -- for a model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChosenAttention:
    """The attention that a model is built with: a row for calls without a bias, and one for calls with a bias."""

    plain: Choice[AttentionFunction]
    biased: Choice[AttentionFunction]

    def __call__(self, q_BLNK: Tensor, k_BSNK: Tensor, v_BSNK: Tensor, bias_S: Tensor | None = None) -> Tensor:
        if bias_S is None:
            return self.plain.function(q_BLNK, k_BSNK, v_BSNK)
        return self.biased.function(q_BLNK, k_BSNK, v_BSNK, bias_S)


def build_attention(
    wanted: str = AUTO,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    verdicts: Verdicts,
    allow_close: bool = False,
    table: Table[Need, AttentionFunction] = TABLE,
) -> ChosenAttention:
    """Choose the rows for a model with tensors of this dtype and head width on this device.

    A row named in `wanted` that takes no bias serves the calls without one; those with a bias then take the row that
    "auto" finds. Both names are in the result and in the log.

    Raises BadRequestError for an unknown row, dtype or head_dim, and UnavailableError where the named row cannot run.
    """
    table.must_have(wanted)
    plain_need, biased_need = (
        need_of(device, dtype=dtype, head_dim=head_dim, biased=biased) for biased in (False, True)
    )
    plain = table.choose(plain_need, wanted=wanted, allow_close=allow_close, verdicts=verdicts)
    takes_bias = wanted == AUTO or table.rows[wanted].why_not(biased_need) is None
    biased = table.choose(
        biased_need, wanted=wanted if takes_bias else AUTO, allow_close=allow_close, verdicts=verdicts
    )
    for need, choice in ((plain_need, plain), (biased_need, biased)):
        logger.info("attention on %s: %s (%s)", need, choice.name, listed(choice.refused) or "as named")
    return ChosenAttention(plain, biased)
