"""The test harness: one thread, fixed seeds, no network, no GPU tests without a GPU, and the parity table."""

from __future__ import annotations

import os

# Before anything imports torch or huggingface_hub, which read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import ipaddress
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

ParityRow = Callable[[str, str, str, str], None]

PARITY = "parity_row"
"""Name of the user property that carries a row from the test's process to the one that prints."""

_current_item = pytest.StashKey[pytest.Item]()
_rows = pytest.StashKey[list[tuple[str, ...]]]()

# Examples derive from the test's source alone, and nothing is judged by how long it took.
hypothesis.settings.register_profile("petzval", derandomize=True, deadline=None, database=None, print_blob=False)
hypothesis.settings.load_profile("petzval")


# -- determinism and devices ------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    _seed_everything()


def _seed_everything() -> None:
    """Seed the global generators that a library may read. Torch and numpy only when something has imported them."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
        torch.set_num_threads(1)


# -- network ----------------------------------------------------------------------------------------------------------


class NetworkBlockedError(RuntimeError):
    """A test tried to leave this machine. Not an OSError, so that no retry or fallback hides it."""


def _stays_here(family: int, address: Any) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True
    host = str(address[0]).partition("%")[0]
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name that would have to be looked up


def _guarded(name: str) -> Callable[..., Any]:
    original = getattr(socket.socket, name)

    def guarded(self: socket.socket, *args: Any) -> Any:
        address = args[-1]
        if not _stays_here(self.family, address):
            self.close()
            raise NetworkBlockedError(f"tests must not use the network: {name} to {address!r}")
        return original(self, *args)

    return guarded


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, _guarded(name))
        yield


# -- the parity table -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def parity_row(request: pytest.FixtureRequest) -> ParityRow:
    """Record one row of the table that is printed at the end: (family, variant, what was compared, measured value).

    `pytest -k parity` prints the whole table.
    """
    stash = request.config.stash

    def record(family: str, variant: str, what: str, value: str) -> None:
        stash[_current_item].user_properties.append((PARITY, [family, variant, what, value]))

    return record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.config.stash[_current_item] = item
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job ignores Ctrl-C and so would every process that a test starts to interrupt it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_rows] = []
    config.pluginmanager.register(_ParityTable(config), "petzval-parity-table")


class _ParityTable:
    """Collects the rows from the tests' reports: under xdist these come from the workers to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.config.stash[_rows] += [tuple(row) for name, row in report.user_properties if name == PARITY]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if rows := sorted(set(self.config.stash[_rows])):
            terminalreporter.ensure_newline()
            terminalreporter.section("parity")
            for line in _table([("family", "variant", "what", "value"), *rows]):
                terminalreporter.write_line(line)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
