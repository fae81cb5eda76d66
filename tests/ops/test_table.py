"""The table's rules: order, refusal with reasons, contracts, and a memory that somebody owns."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from petzval.errors import BadRequestError, UnavailableError
from petzval.ops.table import Contract, Row, Table, Verdicts

Function = Callable[[int], int]


def double(x: int) -> int:
    return x + x


def shift(x: int) -> int:
    return x << 1


def square(x: int) -> int:
    return x * x


def check(row: Function, reference: Function, need: int) -> str | None:
    return None if row(need) == reference(need) else f"{row(need)} is not {reference(need)}"


class Counted:
    """A loader that knows how often it was asked."""

    def __init__(self, function: Function | Exception) -> None:
        self.function, self.loads = function, 0

    def __call__(self) -> Function:
        self.loads += 1
        if isinstance(self.function, Exception):
            raise self.function
        return self.function


def row(
    function: Function | Exception, *, reason: str | None = None, contract: Contract = "exact"
) -> Row[int, Function]:
    return Row(load=Counted(function), why_not=lambda need: reason, contract=contract)


def table(**rows: Row[int, Function]) -> Table[int, Function]:
    return Table(op="doubling", rows=rows, check=check)


# -- order and names --------------------------------------------------------------------------------------------------


def test_auto_takes_the_first_row_that_can_and_says_why_not_the_others() -> None:
    rows = table(gpu=row(double, reason="needs a gpu"), shift=row(shift), double=row(double))
    choice = rows.choose(3, verdicts=Verdicts())
    assert (choice.name, choice.function(5), choice.contract) == ("shift", 10, "exact")
    assert choice.refused == {"gpu": "needs a gpu"}


def test_named_row_is_taken_though_others_come_first() -> None:
    choice = table(shift=row(shift), double=row(double)).choose(3, wanted="double", verdicts=Verdicts())
    assert (choice.name, choice.refused) == ("double", {})


def test_named_row_that_cannot_run_is_an_error_with_the_reason() -> None:
    rows = table(gpu=row(double, reason="needs a gpu"), double=row(double))
    with pytest.raises(UnavailableError, match=r"^doubling 'gpu' cannot run here: needs a gpu$"):
        rows.choose(3, wanted="gpu", verdicts=Verdicts())


def test_unknown_name_is_an_error_that_lists_the_names() -> None:
    rows = table(shift=row(shift), double=row(double))
    with pytest.raises(BadRequestError, match=r"^doubling: unknown row 'shfit'; have auto, shift, double$"):
        rows.choose(3, wanted="shfit", verdicts=Verdicts())


def test_rows_that_are_not_used_are_not_loaded() -> None:
    rows = table(gpu=row(double, reason="needs a gpu"), shift=row(shift), other=row(double), double=row(double))
    rows.choose(3, verdicts=Verdicts())
    assert [name for name, entry in rows.rows.items() if entry.load.loads] == ["shift", "double"]  # type: ignore[attr-defined]


def test_no_row_at_all_is_an_error_with_every_reason() -> None:
    rows = table(gpu=row(double, reason="needs a gpu"), double=row(ImportError("no doubles")))
    with pytest.raises(UnavailableError, match=r"gpu: needs a gpu; double: failed at its first use: .*no doubles"):
        rows.choose(3, verdicts=Verdicts())


# -- contracts --------------------------------------------------------------------------------------------------------


def test_close_row_is_taken_only_when_named_or_allowed() -> None:
    rows = table(rough=row(square, contract="close"), double=row(double))
    choice = rows.choose(3, verdicts=Verdicts())
    assert choice.name == "double"
    assert "close" in choice.refused["rough"]
    assert rows.choose(3, wanted="rough", verdicts=Verdicts()).name == "rough"
    allowed = rows.choose(3, allow_close=True, verdicts=Verdicts())
    assert (allowed.name, allowed.contract) == ("rough", "close")


def test_reference_is_exact_by_definition() -> None:
    with pytest.raises(AssertionError):
        table(rough=row(square, contract="close"))


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_exact_row_that_lies_is_refused_and_the_next_is_used(caplog: pytest.LogCaptureFixture) -> None:
    rows, verdicts = table(square=row(square), shift=row(shift), double=row(double)), Verdicts()
    with caplog.at_level(logging.WARNING):
        choice = rows.choose(3, verdicts=verdicts)
    assert (choice.name, choice.refused) == ("shift", {"square": "9 is not 6"})
    assert caplog.messages == ["doubling row 'square' is refused for this process, for 3: 9 is not 6"]
    with pytest.raises(UnavailableError, match="9 is not 6"):
        rows.choose(3, wanted="square", verdicts=verdicts)


def test_refused_row_is_never_asked_again() -> None:
    answers = iter([7, 6, 6, 6])

    def unsteady(x: int) -> int:
        return next(answers)

    rows, verdicts = table(unsteady=row(unsteady), double=row(double)), Verdicts()
    names = [rows.choose(3, verdicts=verdicts).name for _ in range(3)]
    assert names == ["double"] * 3
    assert next(answers) == 6  # asked once (and once more for the message)
    # The memory is an object: another owner starts with none.
    assert rows.choose(3, verdicts=Verdicts()).name == "unsteady"


def test_row_is_checked_for_each_need_apart() -> None:
    rows, verdicts = table(square=row(square), double=row(double)), Verdicts()
    # 2 * 2 is 2 + 2.
    assert [rows.choose(need, verdicts=verdicts).name for need in (2, 3, 2)] == ["square", "double", "square"]


@pytest.mark.parametrize("error", [ImportError("undefined symbol"), OSError("libx.so"), RuntimeError("no kernel")])
def test_row_that_breaks_at_its_first_use_is_refused(error: Exception) -> None:
    rows, verdicts = table(broken=row(error), double=row(double)), Verdicts()
    choice = rows.choose(3, verdicts=verdicts)
    assert choice.name == "double"
    assert choice.refused == {"broken": f"failed at its first use: {type(error).__name__}: {error}"}
    with pytest.raises(UnavailableError, match=str(error)):
        rows.choose(3, wanted="broken", verdicts=verdicts)


def test_fault_of_ours_is_not_taken_for_a_refusal() -> None:
    rows = table(broken=row(TypeError("our mistake")), double=row(double))
    with pytest.raises(TypeError, match="our mistake"):
        rows.choose(3, verdicts=Verdicts())
