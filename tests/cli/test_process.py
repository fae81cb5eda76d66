"""The command as a shell starts it: what it imports, how it ends, and what its streams do to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import petzval
from petzval.media.record import read_record

# What the installed script does.
SCRIPT = "import sys; from petzval.cli import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inherited by what the tests start: this package, wherever it was imported from, and no terminal's habits."""
    monkeypatch.setenv("PYTHONPATH", str(Path(petzval.__file__).parents[1]))
    monkeypatch.setenv("TERM", "dumb")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT, *arguments]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, cwd=cwd)


def test_a_picture_from_a_shell(flux_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = str(flux_folder("schnell"))
    size = ("--width", "48", "--height", "32")
    done = run("generate", "a fox", "--model", model, *size, "--seed", "7", "--json", "--out", "x.png", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["files"][0]["path"]) == (0, "x.png")
    assert done.stderr.splitlines() == [f"load {model}", "encode", "denoise", "decode", "write"], (
        "and no library's noise"
    )
    assert read_record(tmp_path / "x.png")["request"]["seed"] == 7


def test_ctrl_c_leaves_nothing_half_written(flux_folder: Callable[[str], Path], tmp_path: Path) -> None:
    size = ("--width", "256", "--height", "256", "--steps", "1000")
    started = subprocess.Popen(
        command("generate", "a fox", "--model", str(flux_folder("schnell")), *size, "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stderr is not None
    for line in started.stderr:
        if line.strip() == "denoise":
            break
    started.send_signal(signal.SIGINT)
    out, err = started.communicate()
    assert started.returncode == 130
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("--version"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        shown = subprocess.run(command("doctor", "--json"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "petzval: No space left on device\n")
    assert (shown.returncode, shown.stderr) == (1, "petzval: No space left on device\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(("line", "exit_code"), [("models --json", 0), ("models nope", 2)])
def test_closed_streams_change_no_exit_code(closed: str, line: str, exit_code: int) -> None:
    shell = ["bash", "-c", f'"$@" {line} {closed}', "bash", *command()]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (exit_code, False)


def test_a_closed_pipe_is_one_line() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command("--version"), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "petzval: standard output was closed before everything was written\n")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from petzval.cli import main; main(['generate', '--help'])\n"
        "print([name for name in ('torch', 'numpy', 'av', 'PIL', 'diffusers', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")
    assert "--embedded-guidance" in done.stdout


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("petzval gen", 1, ["generate"]),
        ("petzval generate --task image", 3, ["image-to-image", "image-to-video"]),
        ("petzval generate --embedded", 2, ["--embedded-guidance"]),
        ("petzval generate --tier ", 3, ["exact", "high", "balanced", "draft"]),
    ],
)
def test_a_shell_completes(words: str, position: int, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PETZVAL_COMPLETE", "complete_bash"), ("COMP_WORDS", words), ("COMP_CWORD", str(position))):
        monkeypatch.setenv(name, value)
    done = run()
    assert (done.stdout.split(), done.stderr) == (expected, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_completion_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PETZVAL_COMPLETE", "source_bash")
    source = run().stdout
    asked = f"{source}\ncomplete -p petzval"
    done = subprocess.run(["bash", "--norc"], input=asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_petzval_completion" in done.stdout
