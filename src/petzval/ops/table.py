"""Tables of rows: several ways to compute one operation, chosen once when a model is built. No torch.

The last row of a table is its reference. An *exact* row computes what the reference computes, within rounding, and that
is checked, not believed: at first use for each need. A *close* row computes something else on purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from petzval.errors import BadRequestError, UnavailableError

Contract = Literal["exact", "close"]
NeedT = TypeVar("NeedT", bound=Hashable)
FunctionT = TypeVar("FunctionT")

AUTO = "auto"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Row(Generic[NeedT, FunctionT]):
    """One way to compute an operation."""

    load: Callable[[], FunctionT]
    """Imports what the row needs. Called only for a row that is about to be used."""
    why_not: Callable[[NeedT], str | None]
    """Why the row cannot serve this need, in a few words; None when nothing is known against it."""
    contract: Contract


@dataclass(frozen=True, kw_only=True)
class Choice(Generic[FunctionT]):
    """The row that serves a need."""

    name: str
    contract: Contract
    function: FunctionT
    refused: Mapping[str, str]
    """Why each row before it was not taken; empty for a row that was named."""


class Verdicts:
    """What first uses showed. Whoever builds models keeps one for the process, and passes it to every choice.

    A refusal holds for as long as this object lives: a row that was wrong once is not asked again.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str, Hashable], str | None] = {}

    def judge(self, op: str, row: str, need: Hashable, *, trial: Callable[[], str | None]) -> str | None:
        """The reason against this row for this need, or None. `trial` finds it, and is called the first time only."""
        key = (op, row, need)
        if key not in self._reasons:
            self._reasons[key] = reason = trial()
            if reason is not None:
                logger.warning("%s row %r is refused for this process, for %s: %s", op, row, need, reason)
        return self._reasons[key]


@dataclass(frozen=True, kw_only=True)
class Table(Generic[NeedT, FunctionT]):
    """All rows of one operation, in order of preference; the last one is the reference, which serves every need."""

    op: str
    rows: Mapping[str, Row[NeedT, FunctionT]]
    check: Callable[[FunctionT, FunctionT, NeedT], str | None]
    """(row, reference, need): why the row's answers are not the reference's, or None when they are, within rounding."""

    def __post_init__(self) -> None:
        assert AUTO not in self.rows
        assert self.rows[self.reference].contract == "exact"

    @property
    def reference(self) -> str:
        return list(self.rows)[-1]

    def why_not(self, name: str, need: NeedT, *, verdicts: Verdicts) -> str | None:
        """Why this row cannot serve the need, or None. Puts the row to the test if that has not been done yet."""
        known = self.rows[name].why_not(need)
        return known or verdicts.judge(self.op, name, need, trial=lambda: self._try(name, need))

    def choose(
        self, need: NeedT, *, verdicts: Verdicts, wanted: str = AUTO, allow_close: bool = False
    ) -> Choice[FunctionT]:
        """The row named `wanted`, or with "auto" the first one that can serve the need: an exact one, unless a recipe
        says `allow_close`.

        Raises BadRequestError for a name that is not in the table and UnavailableError, with the reason, for a named
        row that cannot serve the need. There is no silent fallback.
        """
        if wanted != AUTO:
            return self._named(wanted, need, verdicts=verdicts)
        refused: dict[str, str] = {}
        for name, row in self.rows.items():
            reason = self.why_not(name, need, verdicts=verdicts) if allow_close or row.contract == "exact" else CLOSE
            if reason is None:
                return Choice(name=name, contract=row.contract, function=row.load(), refused=refused)
            refused[name] = reason
        raise UnavailableError(f"no row of {self.op} can run here: {listed(refused)}")

    def _named(self, wanted: str, need: NeedT, *, verdicts: Verdicts) -> Choice[FunctionT]:
        self.must_have(wanted)
        if reason := self.why_not(wanted, need, verdicts=verdicts):
            raise UnavailableError(f"{self.op} {wanted!r} cannot run here: {reason}")
        row = self.rows[wanted]
        return Choice(name=wanted, contract=row.contract, function=row.load(), refused={})

    def must_have(self, wanted: str) -> None:
        """Raises BadRequestError for a name that is neither "auto" nor a row's."""
        if wanted not in (AUTO, *self.rows):
            raise BadRequestError(f"{self.op}: unknown row {wanted!r}; have {', '.join((AUTO, *self.rows))}")

    def _try(self, name: str, need: NeedT) -> str | None:
        row, reference = self.rows[name], self.rows[self.reference]
        # What a package built for another torch, a missing shared library and a kernel that is not there raise.
        try:
            function = row.load()
            if name == self.reference or row.contract == "close":
                return None
            return self.check(function, reference.load(), need)
        except (ImportError, OSError, RuntimeError) as error:
            return f"failed at its first use: {type(error).__name__}: {error}"


CLOSE = "close, not exact: only when it is named or a recipe allows it"
"""The reason against a close row that nobody asked for."""


def listed(refused: Mapping[str, str]) -> str:
    """Reasons on one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in refused.items())
