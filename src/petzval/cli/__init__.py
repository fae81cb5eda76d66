"""The command line: flags to one call. The only package that prints. Its start imports nothing heavy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from petzval.cli.outcome import Outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (that of this process by default). Returns its exit code.

    0 is done, 2 is what the user can fix, 130 is Ctrl-C, 1 is everything else.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    with Outcome(given) as outcome:
        from petzval.cli.app import run  # here, so that Ctrl-C while it is imported is one line too

        run(given)
    return outcome.exit_code
