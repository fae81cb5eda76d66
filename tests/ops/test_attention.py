"""Attention's rows against each other, against the formula written out, and against what a bias means.

Shapes: B batch, L tokens (queries), S keys, N heads, K head width.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from petzval.errors import BadRequestError, UnavailableError
from petzval.ops.attention import (
    HALVES,
    TABLE,
    AttentionFunction,
    Need,
    build_attention,
    check_rounding,
    fold_bias,
    math_attention,
    need_of,
    sdpa_attention,
)
from petzval.ops.report import report_rows
from petzval.ops.table import Row, Table, Verdicts

CPU = torch.device("cpu")
CPU_ROWS = ("sdpa", "math")
CUDA_ROWS = tuple(TABLE.rows)
LENGTHS = (1, 7, 64, 257)
# Absolute errors of rows whose results are of the size of v, that is about 1 to 4.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def inputs(
    num_queries: int, num_keys: int, *, head_dim: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, n, 3, head_dim, generator=generator) for n in (num_queries, num_keys, num_keys))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def some_bias(num_keys: int) -> Tensor:
    return torch.randint(1, 512, (num_keys,), generator=torch.Generator().manual_seed(1)).float().log()


def assert_row_matches(name: str, need: Need, *, num_queries: int, num_keys: int) -> None:
    q, k, v = inputs(num_queries, num_keys, head_dim=need.head_dim, dtype=need.dtype)
    bias = some_bias(num_keys) if need.biased else None
    truth = math_attention(q.double(), k.double(), v.double(), bias)
    there = [None if x is None else x.to(need.device) for x in (q, k, v, bias)]
    got = TABLE.rows[name].load()(*there)  # type: ignore[arg-type]
    assert (got.dtype, got.shape) == (need.dtype, q.shape)
    torch.testing.assert_close(got.cpu().double(), truth, rtol=0, atol=TOLERANCE[need.dtype])


# -- rows against the reference ---------------------------------------------------------------------------------------


def test_reference_is_the_formula_written_out() -> None:
    q, k, v = inputs(2, 3, head_dim=4)
    bias = [0.5, -1.0, 2.0]
    got = math_attention(q, k, v, torch.tensor(bias))
    for b in range(2):
        for row in range(2):
            for n in range(3):
                weights = []
                for key in range(3):
                    product = sum(float(x) * float(y) for x, y in zip(q[b, row, n], k[b, key, n], strict=True))
                    weights.append(math.exp(product / math.sqrt(4) + bias[key]))
                wanted = [
                    sum(w * float(v[b, key, n, i]) for key, w in enumerate(weights)) / sum(weights) for i in range(4)
                ]
                assert got[b, row, n].tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("name", CPU_ROWS)
def test_cpu_row_matches_reference(name: str, head_dim: int, dtype: torch.dtype, *, biased: bool) -> None:
    need = need_of(CPU, dtype=dtype, head_dim=head_dim, biased=biased)
    for num_queries in LENGTHS:
        for num_keys in LENGTHS:
            assert_row_matches(name, need, num_queries=num_queries, num_keys=num_keys)


@pytest.mark.gpu
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("name", CUDA_ROWS)
def test_cuda_row_matches_reference(name: str, head_dim: int, dtype: torch.dtype, *, biased: bool) -> None:
    need = need_of(torch.device("cuda:0"), dtype=dtype, head_dim=head_dim, biased=biased)
    if reason := TABLE.rows[name].why_not(need):
        pytest.skip(reason)
    for num_queries in LENGTHS:
        for num_keys in LENGTHS:
            assert_row_matches(name, need, num_queries=num_queries, num_keys=num_keys)
    if name != TABLE.reference:
        assert check_rounding(TABLE.rows[name].load(), math_attention, need) is None


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_sdpa_stays_on_the_flash_kernel_of_the_cpu(*, biased: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = inputs(64, 50, head_dim=32, dtype=dtype)
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            sdpa_attention(q.requires_grad_(), k, v, some_bias(50) if biased else None)
        kernels = {event.key for event in trace.key_averages() if "attention" in event.key}
        assert kernels == {
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
        }


@pytest.mark.parametrize("kind", ["plain", "biased", "learned bias"])
def test_gradients_of_sdpa_are_those_of_math(kind: str) -> None:
    def gradients(attention: AttentionFunction) -> list[Tensor]:
        q, k, v = (x.requires_grad_() for x in inputs(33, 20, head_dim=16))
        bias = None if kind == "plain" else some_bias(20).requires_grad_(kind == "learned bias")
        weight = torch.randn(2, 33, 3, 16, generator=torch.Generator().manual_seed(2))
        (attention(q, k, v, bias) * weight).sum().backward()
        return [x.grad for x in (q, k, v, bias) if x is not None and x.grad is not None]

    got, wanted = gradients(sdpa_attention), gradients(math_attention)
    assert len(got) == len(wanted) == (4 if kind == "learned bias" else 3)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# -- what a bias means ------------------------------------------------------------------------------------------------


@given(
    name=st.sampled_from(CPU_ROWS),
    copies=st.integers(1, 600),
    num_queries=st.integers(1, 20),
    num_keys=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_key_with_bias_log_n_is_n_equal_keys(
    name: str, copies: int, num_queries: int, num_keys: int, seed: int
) -> None:
    attention = TABLE.rows[name].load()
    q, k, v = inputs(num_queries, num_keys, head_dim=16, seed=seed)
    bias = torch.zeros(num_keys)
    bias[-1] = math.log(copies)
    repeats = torch.ones(num_keys, dtype=torch.long)
    repeats[-1] = copies
    padded = attention(q, k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1))
    torch.testing.assert_close(attention(q, k, v, bias), padded, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CPU_ROWS)
def test_key_with_bias_minus_infinity_is_not_there(name: str) -> None:
    attention = TABLE.rows[name].load()
    q, k, v = inputs(5, 9, head_dim=16)
    bias = torch.zeros(9)
    bias[6:] = -torch.inf
    torch.testing.assert_close(attention(q, k, v, bias), attention(q, k[:, :6], v[:, :6]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("head_dim", [16, 128, 256])
def test_folded_bias_is_held_to_float32_precision(dtype: torch.dtype, head_dim: int) -> None:
    q, k, _ = inputs(3, 40, head_dim=head_dim, dtype=dtype)
    bias = torch.cat([some_bias(39), torch.tensor([-3.3])])
    wide_q, wide_k = fold_bias(torch.zeros_like(q), k, bias)
    assert (wide_q.shape[-1], wide_k.dtype) == (head_dim + 8, dtype)
    scores = torch.einsum("blnk,bsnk->bnls", wide_q.double(), wide_k.double()) * head_dim**-0.5
    torch.testing.assert_close(scores, bias.double().expand_as(scores), rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_attention_with_a_folded_bias_is_attention_with_a_bias(dtype: torch.dtype) -> None:
    q, k, v = inputs(20, 30, head_dim=64, dtype=dtype)
    bias = torch.cat([some_bias(25), torch.full((5,), -torch.inf)])
    wide_q, wide_k = (x.float() for x in fold_bias(q, k, bias))
    scores = torch.einsum("blnk,bsnk->bnls", wide_q, wide_k) * 64**-0.5
    got = torch.einsum("bnls,bsnk->blnk", scores.softmax(-1), v.float())
    torch.testing.assert_close(got, math_attention(q.float(), k.float(), v.float(), bias), rtol=0, atol=2e-6)


# -- exact rows are checked -------------------------------------------------------------------------------------------


def wrong_scale(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
    return sdpa_attention(q * 1.02, k, v, bias_S)


def last_query_lost(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
    mixed = sdpa_attention(q, k, v, bias_S).clone()
    mixed[:, 128:] = 0  # as a kernel that forgets a tile would
    return mixed


def rounds_bias(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
    return sdpa_attention(q, k, v, None if bias_S is None else bias_S.to(q.dtype))


def half_sums(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
    scores = torch.einsum("blnk,bsnk->bnls", q, k) * q.shape[-1] ** -0.5
    scores = scores if bias_S is None else scores + bias_S.to(q.dtype)
    return torch.einsum("bnls,bsnk->blnk", scores.softmax(-1), v)


def not_a_number(q: Tensor, k: Tensor, v: Tensor, bias_S: Tensor | None = None) -> Tensor:
    return torch.full_like(q, torch.nan)


@pytest.mark.parametrize("head_dim", [16, 40, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_sdpa_is_exact_here(dtype: torch.dtype, head_dim: int, *, biased: bool) -> None:
    need = need_of(CPU, dtype=dtype, head_dim=head_dim, biased=biased)
    assert check_rounding(sdpa_attention, math_attention, need) is None


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize(
    ("liar", "dtype", "biased"),
    [
        (wrong_scale, torch.float32, False),
        (wrong_scale, torch.bfloat16, False),
        (wrong_scale, torch.bfloat16, True),
        (last_query_lost, torch.bfloat16, False),
        (rounds_bias, torch.bfloat16, True),
        (rounds_bias, torch.float16, True),
        (half_sums, torch.bfloat16, False),
        (half_sums, torch.float16, True),
        (not_a_number, torch.float32, False),
    ],
)
def test_check_finds_a_row_that_is_not_exact(
    liar: AttentionFunction, dtype: torch.dtype, head_dim: int, *, biased: bool
) -> None:
    reason = check_rounding(liar, math_attention, need_of(CPU, dtype=dtype, head_dim=head_dim, biased=biased))
    assert reason is not None
    assert reason.startswith("not exact: its ")


def test_check_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    check_rounding(sdpa_attention, math_attention, need_of(CPU, dtype=torch.float32, head_dim=16, biased=True))
    assert torch.equal(torch.get_rng_state(), before)


def with_row_first(**rows: AttentionFunction) -> Table[Need, AttentionFunction]:
    first = {
        name: Row[Need, AttentionFunction](load=lambda f=function: f, why_not=lambda need: None, contract="exact")  # type: ignore[misc]
        for name, function in rows.items()
    }
    return dataclasses.replace(TABLE, rows={**first, **TABLE.rows})


def test_row_that_rounds_the_bias_serves_calls_without_one(caplog: pytest.LogCaptureFixture) -> None:
    table, verdicts = with_row_first(rounding=rounds_bias), Verdicts()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            built = build_attention(device=CPU, dtype=torch.bfloat16, head_dim=64, verdicts=verdicts, table=table)
            assert (built.plain.name, built.biased.name) == ("rounding", "sdpa")
    assert built.biased.refused["rounding"].startswith("not exact")
    assert len(caplog.messages) == 1
    assert "'rounding' is refused for this process, for cpu, bfloat16, head_dim 64, with a bias" in caplog.messages[0]
    with pytest.raises(UnavailableError, match="attention 'rounding' cannot run here: not exact"):
        build_attention("rounding", device=CPU, dtype=torch.bfloat16, head_dim=64, verdicts=verdicts, table=table)


# -- choosing ---------------------------------------------------------------------------------------------------------


def test_auto_on_a_cpu_is_sdpa_and_says_why_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        built = build_attention(device=CPU, dtype=torch.float32, head_dim=64, verdicts=Verdicts())
    assert (built.plain.name, built.biased.name) == ("sdpa", "sdpa")
    cuda_only = ("flash3", "flash2", "cudnn", "sdpa-flash", "sdpa-efficient")
    assert built.plain.refused == dict.fromkeys(cuda_only, "needs cuda, got cpu")
    assert caplog.messages[0].startswith(
        "attention on cpu, float32, head_dim 64, without bias: sdpa (flash3: needs cuda"
    )


def test_built_attention_computes_both_kinds_of_call() -> None:
    q, k, v = inputs(9, 5, head_dim=32)
    for wanted in ("auto", *CPU_ROWS):
        built = build_attention(wanted, device=CPU, dtype=torch.float32, head_dim=32, verdicts=Verdicts())
        for bias in (None, some_bias(5)):
            wanted_BLNK = math_attention(q, k, v, bias)
            torch.testing.assert_close(built(q, k, v, bias_S=bias), wanted_BLNK, rtol=0, atol=1e-6)


def test_built_attention_survives_pickling_and_compiles_without_a_break() -> None:
    built = build_attention(device=CPU, dtype=torch.float32, head_dim=32, verdicts=Verdicts())
    q, k, v = inputs(9, 5, head_dim=32)
    bias = some_bias(5)
    copy = pickle.loads(pickle.dumps(built))
    compiled = torch.compile(lambda q, k, v, bias: built(q, k, v, bias_S=bias), backend="eager", fullgraph=True)
    for other in (copy(q, k, v, bias_S=bias), compiled(q, k, v, bias)):
        assert torch.equal(other, built(q, k, v, bias_S=bias))


def test_named_row_that_takes_no_bias_leaves_those_calls_to_another() -> None:
    table = with_row_first(plainly=lambda q, k, v, bias_S=None: sdpa_attention(q, k, v))
    plainly = dataclasses.replace(table.rows["plainly"], why_not=lambda need: "takes no bias" if need.biased else None)
    table = dataclasses.replace(table, rows={**table.rows, "plainly": plainly})
    built = build_attention("plainly", device=CPU, dtype=torch.float32, head_dim=16, verdicts=Verdicts(), table=table)
    assert (built.plain.name, built.biased.name) == ("plainly", "sdpa")
    assert built.biased.refused["plainly"] == "takes no bias"


@pytest.mark.parametrize("name", ["flash3", "flash2", "cudnn", "sdpa-flash", "sdpa-efficient"])
def test_named_cuda_row_on_a_cpu_is_an_error(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"^attention '{name}' cannot run here: needs cuda, got cpu$"):
        build_attention(name, device=CPU, dtype=torch.float32, head_dim=64, verdicts=Verdicts())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"wanted": "flash4"}, "unknown row 'flash4'; have auto, flash3, flash2, .*, math$"),
        ({"dtype": torch.float8_e4m3fn}, "dtype must be one of bfloat16, .*, got float8_e4m3fn"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
    ],
)
def test_what_is_never_possible_is_a_bad_request(wrong: dict[str, object], message: str) -> None:
    asked = {"device": CPU, "dtype": torch.float32, "head_dim": 64, "verdicts": Verdicts(), **wrong}
    with pytest.raises(BadRequestError, match=message):
        build_attention(**asked)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="device 'cuda:1': torch finds no CUDA device"):
        need_of(torch.device("cuda:1"), dtype=torch.float32, head_dim=64, biased=False)


# -- why not: what is known of CUDA's rows, asked without a GPU -------------------------------------------------------

H200 = Need(device="cuda:0", dtype=torch.bfloat16, head_dim=128, biased=False, capability=(9, 0))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installed flash-attn packages that were built for another torch."""
    for name in ("flash_attn", "flash_attn_interface"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('undefined symbol: _ZN3c104cuda')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("flash3", {}, None),
        ("flash3", {"capability": (8, 0)}, "needs compute capability 9.0 or higher, got 8.0"),
        ("flash3", {"capability": (10, 0)}, "needs compute capability below 10.0, got 10.0"),
        ("flash3", {"biased": True}, "takes no bias"),
        ("flash2", {}, None),
        ("flash2", {"capability": (12, 0)}, None),
        ("flash2", {"capability": (7, 5)}, "needs compute capability 8.0 or higher, got 7.5"),
        ("flash2", {"head_dim": 288}, "head_dim 288 > 256"),
        ("flash2", {"dtype": torch.float32}, "takes bfloat16 or float16, got float32"),
        ("flash2", {"device": "mps", "capability": None}, "needs cuda, got mps"),
        ("cudnn", {"head_dim": 192}, "head_dim 192 > 128"),
        ("cudnn", {"head_dim": 20}, "head_dim must be a multiple of 8, got 20"),
        ("sdpa-flash", {}, None),
        ("sdpa-flash", {"biased": True}, "takes no bias"),
        ("sdpa-efficient", {"biased": True, "dtype": torch.float32, "head_dim": 512}, None),
        ("sdpa-efficient", {"head_dim": 20}, "head_dim must be a multiple of 8, got 20"),
        ("sdpa-efficient", {"dtype": torch.float64}, "takes bfloat16 or float16 or float32, got float64"),
        ("sdpa", {"biased": True}, None),
        ("math", {"biased": True}, None),
    ],
)
def test_why_not(name: str, change: dict[str, object], reason: str | None) -> None:
    assert TABLE.rows[name].why_not(dataclasses.replace(H200, **change)) == reason  # type: ignore[arg-type]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("name", ["flash3", "flash2"])
def test_package_built_for_another_torch_is_a_reason(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"'{name}' cannot run here: .*ImportError: undefined symbol"):
        TABLE.choose(H200, wanted=name, verdicts=Verdicts())


@pytest.mark.parametrize(("name", "package"), [("flash3", "flash_attn_interface"), ("flash2", "flash_attn")])
def test_missing_package_is_a_reason(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    sys.modules.pop(package, None)
    assert TABLE.rows[name].why_not(H200) == f"the package {package} is not installed"


def test_importing_ops_imports_no_optional_package(packages: Path) -> None:
    heavy = ["flash_attn", "flash_attn_interface", "diffusers", "transformers", "triton", "xformers", "scipy"]
    script = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        "import torch; before = set(sys.modules)\n"
        "import petzval.ops.attention, petzval.ops.report\n"
        f"print([name for name in {heavy} if name in sys.modules and name not in before])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    script = "import sys, petzval.ops.table; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


# -- the report -------------------------------------------------------------------------------------------------------


def test_report_lists_every_row_with_its_reason() -> None:
    reports = report_rows(CPU, dtype=torch.float32, verdicts=Verdicts())
    assert [report.row for report in reports] == 2 * list(TABLE.rows)
    assert {report.op for report in reports} == {"attention"}
    assert [report.row for report in reports if report.usable] == 2 * ["sdpa", "math"]
    assert [report.row for report in reports if report.chosen] == 2 * ["sdpa"]
    assert [report.row for report in reports if report.reference] == 2 * ["math"]
    assert {report.reason for report in reports if not report.usable} == {"needs cuda, got cpu"}
    assert {report.need for report in reports} == {
        "cpu, float32, head_dim 128, without bias",
        "cpu, float32, head_dim 128, with a bias",
    }


@pytest.mark.gpu
def test_report_of_a_gpu_has_a_usable_row_for_both_kinds_of_call() -> None:
    reports = report_rows(torch.device("cuda:0"), dtype=torch.bfloat16, verdicts=Verdicts())
    chosen = [report.row for report in reports if report.chosen]
    assert len(chosen) == 2
    assert TABLE.reference not in chosen
