"""The doctor's report is plain data, and tells of what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from petzval.engine import doctor
from petzval.models import checkpoint


def test_a_report_is_json_and_whole() -> None:
    report = doctor.examine()
    assert json.loads(json.dumps(report)) == report
    assert report["packages"]["diffusers"]
    assert set(report["ffmpeg"]) >= {"libavcodec", "libavformat"}
    needs = {row["need"] for row in report["ops"]}
    assert {row["need"] for row in report["ops"] if row["chosen"]} == needs
    assert all(row["usable"] or row["reason"] for row in report["ops"])


def test_what_is_missing_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "BUNDLED", tmp_path)
    monkeypatch.setenv("PETZVAL_EMOJI_FONT", str(tmp_path / "nope.ttf"))
    monkeypatch.setattr(doctor, "ENCODERS", {"libx999": "MP5"})
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-package": "nothing"})
    report = doctor.examine()
    assert report["optional"]["no-such-package"]["version"] is None
    assert (report["emoji_font"]["usable"], "apt-get install" in report["emoji_font"]["reason"]) == (False, True)
    assert any("'pocket' is missing" in problem for problem in report["problems"])
    assert any("encoder libx999 is missing: no MP5" in problem for problem in report["problems"])
