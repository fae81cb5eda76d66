"""Which rows of which tables can run on a device, and why the others cannot: plain data for `petzval doctor`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from petzval.ops import attention
from petzval.ops.table import Contract, Verdicts


@dataclass(frozen=True, kw_only=True)
class RowReport:
    """One row of one table, for one need."""

    op: str
    row: str
    contract: Contract
    need: str
    """In words: device, dtype, sizes."""
    reason: str | None
    """Why it cannot run; None when it can."""
    chosen: bool
    """Whether this is the row that "auto" takes."""
    reference: bool

    @property
    def usable(self) -> bool:
        return self.reason is None


def report_rows(
    device: torch.device, *, dtype: torch.dtype, verdicts: Verdicts, head_dim: int = 128
) -> list[RowReport]:
    """Every row of every table in order of preference, for each kind of need. Rows that may run are tried.

    Raises as `attention.need_of` does.
    """
    table, reports = attention.TABLE, []
    for biased in (False, True):
        need = attention.need_of(device, dtype=dtype, head_dim=head_dim, biased=biased)
        chosen = table.choose(need, verdicts=verdicts).name
        reports += [
            RowReport(
                op=table.op,
                row=name,
                contract=row.contract,
                need=str(need),
                reason=table.why_not(name, need, verdicts=verdicts),
                chosen=name == chosen,
                reference=name == table.reference,
            )
            for name, row in table.rows.items()
        ]
    return reports
