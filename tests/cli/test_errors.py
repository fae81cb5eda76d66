"""Whatever is wrong, the user reads one line that names it and what is allowed, and the exit code says whose it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from petzval.cli import generate as generate_command
from petzval.cli.outcome import describe
from petzval.errors import NotFiniteError, OutOfMemoryError
from petzval.media.images import encode_image
from tests.cli.conftest import Petzval, Ran


def one_line(ran: Ran) -> str:
    assert ran.out == ""
    line = ran.err.splitlines()[-1]
    assert line.startswith("petzval: ")
    assert "Traceback" not in ran.err
    return line


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Input pictures, whole and damaged, and a file that is in the way."""
    whole = encode_image(np.full((40, 60, 3), 90, np.uint8), format="png")
    (tmp_path / "in.png").write_bytes(whole)
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "circle.png").symlink_to("circle.png")


# (what is added to a good command line, what the message says)
BAD = [
    ("--width 47", r"width must be a multiple of 16, got 47; the nearest is 48"),
    ("--height 0", r"height must be a whole number from 1 to 16384, got 0"),
    ("--frames 9", r"--frames must be 1 for a picture, got 9"),
    ("--steps 0", r"--steps must be a whole number from 1 to 1000, got 0"),
    ("--guidance 0.5", r"--guidance must be a number of at least 1, got 0\.5"),
    ("--guidance nan", r"--guidance must be a number of at least 1, got nan"),
    ("--guidance-2 2", r"--guidance-2 has no effect on text-to-image"),
    ("--embedded-guidance 2", r"--embedded-guidance has no effect on text-to-image"),
    ("--negative grey", r"--negative has no effect while --guidance is 1"),
    ("--fps 12", r"fps has no effect on text-to-image"),
    ("--strength 0.5", r"strength has no effect on text-to-image"),
    ("--image in.png --strength 0", r"strength must be above 0 and at most 1, got 0\.0"),
    ("--image in.png --strength 1.01", r"strength must be above 0 and at most 1, got 1\.01"),
    ("--image in.png --image in.png", r"--image: image-to-image takes 1, got 2"),
    ("--task image-to-image", r"--image: image-to-image takes 1, got 0"),
    ("--task text-to-image --image in.png", r"--image: text-to-image takes 0, got 1"),
    ("--image nope.png", r"nope\.png does not exist"),
    ("--image half.png", r"half\.png is (damaged|truncated)"),
    ("--image text.png", r"text\.png is a text file; a picture is PNG"),
    ("--image empty.png", r"empty\.png is empty"),
    ("--image folder.png", r"folder\.png is not a file"),
    ("--task text-to-picture", r"--task must be one of text-to-image, .*reference-to-video, got 'text-to-picture'"),
    ("--task text-to-video", r"task 'text-to-video': flux \(schnell\) can do text-to-image, image-to-image"),
    ("--task reference-to-video", r"task 'reference-to-video': flux \(schnell\) can do text-to-image, image-to-image"),
    ("--out x.mp4", r"task 'text-to-video': flux \(schnell\) can do"),
    ("--task text-to-image --out x.mp4", r"--out does not fit task text-to-image: .* a picture ends in \.png"),
    ("--task text-to-video --out x.jpg", r"--out does not fit task text-to-video: .* a clip ends in \.mp4"),
    ("--out x.tiff", r"x\.tiff ends in '\.tiff'; a picture ends in"),
    ("--out x", r"x ends in 'no suffix'"),
    ("--out nope/x.png", r"nope/x\.png cannot be written: the folder .*nope does not exist"),
    ("--out folder.png", r"folder\.png cannot be written: it is a folder"),
    ("--seed -1", r"seed must be a whole number from 0 to 9223372036854775807, got -1"),
    ("--seed 9223372036854775807 --num 2", r"seed must be a whole number .*, got 9223372036854775808"),
    ("--num 0", r"--num must be from 1 to 1000, got 0"),
    ("--sampler fast", r"sampler must be one of euler, .*, got 'fast'"),
    ("--tier best", r"--tier must be one of exact, high, balanced, draft, got 'best'"),
    ("--device cuda:99", r"device 'cuda:99' is not here; have auto, .*cpu"),
    ("--device tpu", r"device 'tpu' is not here; have auto, .*cpu"),
    ("--dtype int4", r"dtype 'int4' is not one of auto, float32, bfloat16"),
    ("--attention fast", r"unknown row 'fast'; have auto, .*sdpa, math"),
    ("--revision main", r"revision 'main' was given for .*, but only hub ids have revisions"),
    ("--from in.png", r"in\.png has no Petzval record"),
    ("--from nope.png", r"nope\.png does not exist"),
    ("--model ''", r"there is no checkpoint ''"),
    ("--model '~nobody-of-this-name/x'", r"there is no folder ~nobody"),
    (f"--model {'x' * 5000}", r"there is no checkpoint 'x"),
    (f"--out {'x' * 300}.png", r"\.png cannot be written: File name too long"),
    ("--out circle.png", r"circle\.png cannot be written: "),
    ("--model nope", r"there is no checkpoint 'nope'"),
    ("--model ./nope", r"there is no folder \./nope"),
    ("--model studio/lens", r"studio/lens is not on this machine"),
    ("--stps 4", r"[Nn]o such option.*--stps"),
    ("--steps x", r"Invalid value for '--steps'"),
    ("more words", r"unexpected extra argument"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), BAD, ids=[flags for flags, _ in BAD])
def test_bad_input(flags: str, message: str, petzval: Petzval, schnell: str, files: None, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    ran = petzval(f"generate fox {schnell} {flags}")
    assert ran.exit_code == 2
    assert re.search(message, one_line(ran))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("generate", r"PROMPT is missing: .*--from FILE"),
        ("models nope", r"there is no checkpoint 'nope'"),
        ("models studio/lens", r"studio/lens is not on this machine"),
        ("train nope.toml", r"nope\.toml: no such file"),
        ("train", r"Missing (argument|parameter)"),
        ("judge --prompts 0", r"--prompts must be at least 1, got 0"),
        ("doctor --fast", r"[Nn]o such option.*--fast"),
        ("paint", r"No such command 'paint'"),
    ],
)
def test_bad_lines(line: str, message: str, petzval: Petzval) -> None:
    ran = petzval(line)
    assert (ran.exit_code, bool(re.search(message, one_line(ran)))) == (2, True), ran.err
    told = petzval(f"{line} --json")
    assert told.exit_code == 2
    assert re.search(message, told.json["error"]["message"])
    assert told.json["error"]["code"] in ("bad_request", "bad_checkpoint")


def test_frames_name_the_nearest(petzval: Petzval, wan_folder: Callable[[str], Path]) -> None:
    ran = petzval(f"generate fox --model {shlex.quote(str(wan_folder('t2v')))} --out x.mp4 --frames 8")
    assert ran.exit_code == 2
    assert "--frames must be 1 plus a multiple of 4, got 8; the nearest is 9" in one_line(ran)


def test_a_huge_prompt(petzval: Petzval, schnell: str) -> None:
    ran = petzval(f"generate {schnell}", "fox " * 25_000)
    assert ran.exit_code == 2
    assert re.search(r"prompt has \d+ tokens; this checkpoint reads at most 256", one_line(ran))
    assert len(one_line(ran)) < 200


def test_a_prompt_that_is_not_text(petzval: Petzval, schnell: str) -> None:
    ran = petzval(f"generate {schnell}", "fox \udcff")
    assert (ran.exit_code, "prompt is not valid text" in one_line(ran)) == (2, True)


def test_no_permission(petzval: Petzval, schnell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import petzval.media.files as files

    # Whoever runs the tests as root may write anywhere, whatever the folder's mode says.
    monkeypatch.setattr(files.os, "access", lambda path, mode: Path(path) != tmp_path)
    ran = petzval(f"generate fox {schnell} --out x.png")
    assert (ran.exit_code, "no permission to write in the folder" in one_line(ran)) == (2, True)


def test_errors_are_json_where_it_was_asked_for(petzval: Petzval, schnell: str) -> None:
    ran = petzval(f"generate fox {schnell} --width 47 --json")
    assert ran.exit_code == 2
    assert ran.json == {
        "error": {"code": "bad_request", "message": "width must be a multiple of 16, got 47; the nearest is 48"}
    }
    ran = petzval("generate fox --stps 3 --json")
    assert (ran.exit_code, ran.json["error"]["code"]) == (2, "bad_request")
    ran = petzval("generate fox --model nope --json")
    assert (ran.exit_code, ran.json["error"]["code"]) == (2, "bad_checkpoint")
    ran = petzval("generate fox --device tpu --json")
    assert (ran.exit_code, ran.json["error"]["code"]) == (2, "unavailable")
    ran = petzval("generate --json")
    assert (ran.exit_code, ran.json["error"]["code"]) == (2, "bad_request")


def test_a_json_flag_after_two_dashes_is_a_word(petzval: Petzval) -> None:
    ran = petzval("generate --model nope -- --json")
    assert (ran.exit_code, ran.out) == (2, "")


def test_what_nobody_foresaw_is_one_line(petzval: Petzval, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(generate_command, "_made", broken)
    ran = petzval("generate fox")
    assert (ran.exit_code, one_line(ran)) == (1, "petzval: ZeroDivisionError: division by zero (see --debug)")
    ran = petzval("generate fox --json")
    assert (ran.exit_code, ran.json["error"]["code"]) == (1, "internal")
    ran = petzval("generate fox --debug")
    assert ran.exit_code == 1
    assert "Traceback" in ran.err


@pytest.mark.parametrize(
    ("error", "exit_code", "code"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OutOfMemoryError("too large"), 1, "out_of_memory"),
        (NotFiniteError("1 of 2 values"), 1, "not_finite"),
        (MemoryError(), 1, "out_of_memory"),
        (BrokenPipeError(), 1, "broken_pipe"),
        (OSError(28, "No space left on device", "x.png"), 1, "os_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whose_fault_it_is(error: BaseException, exit_code: int, code: str) -> None:
    failure = describe(error)
    assert (failure.exit_code, failure.code) == (exit_code, code)
    assert "\n" not in failure.message


def test_field_names_become_flags_but_words_of_the_user_do_not() -> None:
    from petzval.errors import BadMediaError, BadRequestError

    told = describe(BadRequestError("num_frames must be 1; guidance_scale_2 too, in images/num_frames.png"))
    assert told.message == "--frames must be 1; --guidance-2 too, in images/num_frames.png"
    assert describe(BadMediaError("images is damaged")).message == "images is damaged"
