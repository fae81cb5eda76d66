"""The harness keeps its promises: no network, fixed seeds, and one parity table whatever worker a test ran in."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py")
TEST_NET = "192.0.2.1"  # reserved for documentation: nobody has it


def test_connections_that_leave_the_machine_are_refused() -> None:
    with pytest.raises(RuntimeError, match="must not use the network"):
        socket.create_connection((TEST_NET, 9), timeout=1)
    with socket.socket() as client, pytest.raises(RuntimeError, match="must not use the network"):
        client.connect_ex(("localhost.example", 9))
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
        pytest.raises(RuntimeError, match="must not use the network"),
    ):
        client.sendto(b"hello", (TEST_NET, 9))


def test_connections_within_the_machine_work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.sendall(b"hello")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(5) == b"hello"


@pytest.mark.parametrize("attempt", [1, 2])
def test_global_generators_start_at_the_same_place(attempt: int) -> None:
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
    assert drawn == pytest.approx((0.8444218515, 0.5488135039, 0.4962565899))


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1


def test_model_hubs_are_offline() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"  # noqa: TID251


seen: list[int] = []


def test_property_examples_are_the_same_every_time() -> None:
    def examples() -> list[int]:
        seen.clear()
        record()
        return list(seen)

    @hypothesis.given(st.integers())
    def record(number: int) -> None:
        seen.append(number)

    assert examples() == examples()


@pytest.mark.parametrize("workers", [0, 2])
def test_parity_rows_are_printed_as_one_table(pytester: pytest.Pytester, workers: int) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("variant", ["t2v", "ti2v"])
        def test_wan(parity_row, variant):
            parity_row("wan", variant, "forward", "1.0e-06")

        def test_flux(parity_row):
            parity_row("flux", "dev", "pipeline", "71.3 dB")
        """
    )
    result = pytester.runpytest_subprocess("-n", str(workers))
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*= parity =*",
            "family  variant  what      value",
            "flux    dev      pipeline  71.3 dB",
            "wan     t2v      forward   1.0e-06",
            "wan     ti2v     forward   1.0e-06",
        ],
        consecutive=True,
    )


def test_gpu_tests_are_skipped_without_a_gpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers = gpu")
    pytester.makepyfile("import pytest\n\n@pytest.mark.gpu\ndef test_gpu():\n    raise AssertionError")
    pytester.runpytest_subprocess().assert_outcomes(skipped=1)
