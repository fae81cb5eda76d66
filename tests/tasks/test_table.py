"""The one table of how tasks differ."""

from petzval.tasks.table import NEEDS, infer_task
from petzval.types import TASKS


def test_every_task_has_its_needs() -> None:
    assert tuple(NEEDS) == TASKS
    for task, needs in NEEDS.items():
        source, _, made = task.partition("-to-")
        assert (needs.makes, needs.takes_images) == (made, source != "text")


def test_inferred_tasks_are_the_plain_ones() -> None:
    found = {infer_task(has_images=images, makes=makes) for images in (False, True) for makes in ("image", "video")}
    assert found == set(TASKS) - {"reference-to-video"}
