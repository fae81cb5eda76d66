"""From a command line to files, on tiny checkpoints: names, seeds, repeats, and what is told of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petzval.cli.generate import How, What, Where
from petzval.cli.wish import _task, slug
from petzval.media.images import read_image
from petzval.media.record import read_record
from petzval.media.videos import read_video
from petzval.tasks.table import NEEDS
from tests.cli.conftest import Petzval


def pixels(path: str) -> np.ndarray:
    return read_image(Path(path))


def test_a_picture(petzval: Petzval, schnell: str) -> None:
    ran = petzval(f"generate {schnell} --seed 7", "A large fox, on the left!")
    assert ran.exit_code == 0
    assert ran.out.startswith("a-large-fox-on-the-left-7.png  48x32, seed 7, ")
    assert len(ran.out.splitlines()) == 1
    assert ran.err.splitlines()[1:] == ["encode", "denoise", "decode", "write"]
    assert pixels("a-large-fox-on-the-left-7.png").shape == (32, 48, 3)
    record = read_record(Path("a-large-fox-on-the-left-7.png"))
    assert record["request"]["prompt"] == "A large fox, on the left!"
    assert record["request"]["num_inference_steps"] == len(record["schedule"]["timesteps"]) == 2
    assert record["runs"]["device"] == "cpu"


def test_nothing_is_overwritten_that_was_not_named(petzval: Petzval, schnell: str) -> None:
    assert petzval(f"generate fox {schnell} --seed 7 --quiet").out == "fox-7.png\n"
    ran = petzval(f"generate fox {schnell} --seed 7")
    assert ran.out.startswith("fox-7-2.png")
    assert "note: fox-7.png exists; writing fox-7-2.png" in ran.err
    assert petzval(f"generate fox {schnell} --seed 8 --out fox-7.png --quiet").out == "fox-7.png\n"
    assert sorted(path.name for path in Path().iterdir()) == ["fox-7-2.png", "fox-7.png"]
    assert (pixels("fox-7.png") != pixels("fox-7-2.png")).any()


def test_a_seed_is_drawn_and_told(petzval: Petzval, schnell: str) -> None:
    first, second = (petzval(f"generate fox {schnell} --json").json for _ in range(2))
    assert first["files"][0]["seed"] != second["files"][0]["seed"]
    assert first["files"][0]["path"] == f"fox-{first['files'][0]['seed']}.png"
    again = petzval(f"generate fox {schnell} --out x.png --seed {first['files'][0]['seed']}")
    assert again.exit_code == 0
    assert Path("x.png").read_bytes() == Path(first["files"][0]["path"]).read_bytes()


def test_many(petzval: Petzval, schnell: str) -> None:
    ran = petzval(f"generate fox {schnell} --seed 5 --num 3 --out many.png --json")
    assert [file["path"] for file in ran.json["files"]] == ["many-5.png", "many-6.png", "many-7.png"]
    assert [file["seed"] for file in ran.json["files"]] == [5, 6, 7]
    petzval(f"generate fox {schnell} --seed 6 --out one.png")
    difference = pixels("one.png").astype(int) - pixels("many-6.png")
    assert np.abs(difference).max() <= 1, "rounding of a batch may cross one level, no more"
    assert (pixels("many-5.png") != pixels("many-6.png")).any()


def test_an_empty_prompt_is_a_prompt(petzval: Petzval, schnell: str) -> None:
    assert petzval(f"generate '' {schnell} --seed 1 --quiet").out == "petzval-1.png\n"


def test_again_from_a_file(petzval: Petzval, schnell: str) -> None:
    petzval(f"generate fox {schnell} --seed 7 --guidance 2 --negative grey --out fox.png")
    ran = petzval("generate --from fox.png --out again.png")
    assert ran.exit_code == 0
    assert Path("again.png").read_bytes() == Path("fox.png").read_bytes()
    assert petzval("generate --from fox.png --quiet").out == "fox-7.png\n"


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_every_format_remembers(suffix: str, petzval: Petzval, schnell: str) -> None:
    petzval(f"generate fox {schnell} --out fox{suffix}")
    assert petzval(f"generate --from fox{suffix} --out again{suffix}").exit_code == 0
    assert Path(f"again{suffix}").read_bytes() == Path(f"fox{suffix}").read_bytes()


def test_flags_go_over_the_record(petzval: Petzval, schnell: str) -> None:
    petzval(f"generate fox {schnell} --seed 7 --guidance 2 --negative grey --out fox.png")
    ran = petzval("generate owl --from fox.png --seed 8 --guidance 1 --steps 1 --json --out owl.png")
    request = ran.json["request"]
    assert (request["prompt"], request["seed"], request["num_inference_steps"]) == ("owl", 8, 1)
    assert (request["guidance_scale"], request["negative_prompt"]) == (1, None)
    assert (request["width"], request["height"]) == (48, 32)


def test_from_a_group_says_what_rounding_may_do(petzval: Petzval, schnell: str) -> None:
    petzval(f"generate fox {schnell} --seed 1 --num 2 --out fox.png")
    ran = petzval("generate --from fox-1.png --out alone.png")
    assert "note: made in a group of 2; another number may round differently" in ran.err
    ran = petzval("generate --from fox-1.png --num 2 --out both.png")
    assert "note: made in a group" not in ran.err
    assert Path("both-2.png").read_bytes() == Path("fox-2.png").read_bytes()


def test_input_pictures_must_be_given_again(petzval: Petzval, schnell: str, dev: str) -> None:
    petzval(f"generate fox {schnell} --out in.png")
    petzval(f"generate fox {schnell} --out other.png --seed 2")
    assert petzval(f"generate snow {dev} --image in.png --strength 0.7 --seed 3 --out out.png").exit_code == 0
    record = read_record(Path("out.png"))
    assert record["request"]["task"] == "image-to-image"
    [image] = record["request"]["images"]
    assert list(image) == ["sha256"]
    missing = petzval("generate --from out.png --out x.png")
    assert (missing.exit_code, image["sha256"] in missing.err) == (2, True)
    wrong = petzval("generate --from out.png --image other.png --out x.png")
    assert (wrong.exit_code, "other.png is not the input picture of the record" in wrong.err) == (2, True)
    assert petzval("generate --from out.png --image in.png --out x.png").exit_code == 0
    assert Path("x.png").read_bytes() == Path("out.png").read_bytes()
    ran = petzval("generate --from out.png --task text-to-image --width 32 --height 32 --steps 1 --out y.png --json")
    assert (ran.exit_code, ran.json["request"]["strength"], ran.json["request"]["images"]) == (0, None, [])


def test_another_checkpoint_is_refused(petzval: Petzval, schnell: str, flux_folder: Callable[[str], Path]) -> None:
    petzval(f"generate fox {schnell} --out fox.png")
    ran = petzval(f"generate --from fox.png --out x.png --model {shlex.quote(str(flux_folder('dev')))}")
    assert ran.exit_code == 2
    assert "fox.png was made by" in ran.err
    assert "is another checkpoint (fingerprint" in ran.err
    assert not Path("x.png").exists()


def test_tiers_without_evidence_run_exact_and_say_so(petzval: Petzval, schnell: str) -> None:
    ran = petzval(f"generate fox {schnell} --tier draft --out fox.png --seed 1")
    assert "note: ran tier exact: no recipe has evidence for tier 'draft'" in ran.err
    assert read_record(Path("fox.png"))["tier"]["ran"] == "exact"
    ran = petzval(f"generate fox {schnell} --tier exact --out exact.png --seed 1 --json")
    assert ran.json["tier"] == {"asked": "exact", "ran": "exact", "why": None, "recipe": None, "evidence": None}
    assert (pixels("exact.png") == pixels("fox.png")).all()


def test_json_is_one_object_on_stdout(petzval: Petzval, schnell: str) -> None:
    told = petzval(f"generate fox {schnell} --seed 3 --json").json
    assert told["files"] == [{"path": "fox-3.png", "seed": 3, "width": 48, "height": 32, "num_frames": 1, "fps": None}]
    assert set(told["seconds"]) == {"encode", "denoise", "decode", "total"}
    assert told["runs"]["attention"] == "sdpa"


# -- clips ------------------------------------------------------------------------------------------------------------


def test_a_clip(petzval: Petzval, pocket: str) -> None:
    ran = petzval(f"generate fox {pocket} --frames 3 --out fox.mp4 --seed 2")
    assert ran.exit_code == 0, ran.err
    assert "48x32, 3 frames at 24 a second, seed 2" in ran.out
    clip = read_video(Path("fox.mp4"))
    assert (clip.frames.shape, clip.fps) == ((3, 32, 48, 3), 24)
    assert petzval("generate --from fox.mp4 --out again.mp4").exit_code == 0
    assert Path("again.mp4").read_bytes() == Path("fox.mp4").read_bytes()


def test_a_clip_from_a_picture(petzval: Petzval, pocket: str) -> None:
    petzval(f"generate fox {pocket} --seed 2 --out fox.png")
    ran = petzval(f"generate fox {pocket} --image fox.png --frames 3 --out fox.webp --task image-to-video --json")
    assert (ran.exit_code, ran.json["request"]["task"]) == (0, "image-to-video")
    assert read_video(Path("fox.webp")).frames.shape == (3, 32, 48, 3)


def test_a_clip_names_itself(petzval: Petzval, pocket: str) -> None:
    ran = petzval(f"generate fox {pocket} --frames 2 --task text-to-video --seed 4 --quiet")
    assert ran.out == "fox-4.mp4\n"


def test_a_rate_that_a_file_cannot_hold_is_refused_before_the_work(petzval: Petzval, pocket: str) -> None:
    ran = petzval(f"generate fox {pocket} --frames 3 --out fox.gif --fps 60")
    assert ran.exit_code == 2
    assert "fps must be above 0 and at most 50 in a .gif file, got 60" in ran.err
    assert "encode" not in ran.err


# -- without a model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "out", "task"),
    [
        ([], None, "text-to-image"),
        ([], "x.webp", "text-to-image"),
        ([], "x.MP4", "text-to-video"),
        ([], "x.gif", "text-to-video"),
        (["in.png"], None, "image-to-image"),
        (["in.png"], "x.jpg", "image-to-image"),
        (["in.png"], "x.mp4", "image-to-video"),
    ],
)
def test_the_task_is_inferred(image: list[str], out: str | None, task: str) -> None:
    what = What(prompt="fox", image=[Path(name) for name in image])
    assert _task(what, Path(out) if out else None, None) == task


@pytest.mark.parametrize("task", NEEDS)
def test_a_named_task_wins(task: str) -> None:
    assert _task(What(prompt="fox", task=task), Path("x.webp"), None) == task


def test_flags_default_to_none_so_that_given_ones_are_known() -> None:
    given = {**vars(What()), **vars(How()), **vars(Where())}
    assert {name: value for name, value in given.items() if value is not None} == {"image": [], "num": 1}


@given(st.text(max_size=300))
def test_a_slug_is_a_safe_name(prompt: str) -> None:
    name = slug(prompt)
    assert 0 < len(name) <= 48
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not name.startswith("-")


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A large fox, on the left!", "a-large-fox-on-the-left"),
        ("Caf\u00e9 \u00fcber all", "cafe-uber-all"),
        ("\u72d0\u72f8", "petzval"),
        ("", "petzval"),
        ("x" * 300, "x" * 48),
        ("word " * 30, "word-word-word-word-word-word-word-word-word"),
        ("../../etc/passwd", "etc-passwd"),
    ],
)
def test_slugs(prompt: str, name: str) -> None:
    assert slug(prompt) == name
