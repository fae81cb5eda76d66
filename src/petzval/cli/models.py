"""`petzval models`: what is here, what each can do, its licence, size and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from typer import Argument

from petzval.cli.flags import Common, model_names
from petzval.cli.show import plain_table, print_json, print_line, print_table, sized


@dataclass(frozen=True, kw_only=True)
class Which:
    PANEL: ClassVar[str] = "Which"

    name: Annotated[
        str | None,
        Argument(help="A bundled name, a folder, or a hub id that is on this machine.",
                 autocompletion=model_names, show_default=False),
    ] = None  # fmt: skip


def models(which: Which, output: Common) -> None:
    """List the checkpoints that are here, or everything about one."""
    from petzval.engine import catalogue

    if which.name is not None:
        entry = catalogue.entry(which.name)
        print_json(entry) if output.json else _show_one(entry)
        return
    entries = catalogue.entries()
    if output.json:
        print_json({"models": entries})
    elif not entries:
        print_line("no checkpoints are bundled or cached; name a folder or a hub id with --model")
    else:
        _show_all(entries)


def _show_all(entries: list[dict[str, Any]]) -> None:
    table = plain_table("name", "family", "tasks", "parameters", "size", "licence")
    for entry in entries:
        if "error" in entry:
            table.add_row(entry["name"], "-", f"cannot be used: {entry['error']['message']}", "", "", "")
            continue
        table.add_row(
            entry["name"],
            f"{entry['family']} ({entry['variant']})",
            ", ".join(entry["tasks"]),
            sized(sum(entry["parameters"].values()), unit=""),
            sized(entry["bytes"]),
            entry["licence"],
        )
    print_table(table)


def _show_one(entry: dict[str, Any]) -> None:
    facts = plain_table("", "")
    facts.show_header = False
    clips = any(task.endswith("-to-video") for task in entry["tasks"])
    parameters = ", ".join(f"{name} {sized(count, unit='')}" for name, count in entry["parameters"].items())
    for name, value in {
        "name": f"{entry['name']} ({entry['source']})",
        "family": f"{entry['family']} ({entry['variant']})",
        "licence": entry["licence"],
        "parameters": f"{sized(sum(entry['parameters'].values()), unit='')} ({parameters})",
        "size": sized(entry["bytes"]),
        "samplers": ", ".join(entry["samplers"]),
        "width, height": f"multiples of {entry['size_multiple']}",
        "frames of a clip": f"1 + a multiple of {entry['frame_stride']}" if clips else "makes none",
        "fingerprint": entry["fingerprint"],
    }.items():
        facts.add_row(name, str(value))
    print_table(facts)
    print_line("")
    table = plain_table("task", "size", "frames", "steps", "guidance", "other")
    for task, defaults in entry["tasks"].items():
        table.add_row(task, *_defaults(defaults))
    print_table(table)


def _defaults(defaults: dict[str, Any]) -> list[str]:
    frames, fps = defaults["num_frames"], defaults["fps"]
    others = ("guidance_scale_2", "embedded_guidance", "strength", "max_images")
    return [
        f"{defaults['width']}x{defaults['height']}",
        f"{frames} at {fps}/s" if fps else str(frames),
        str(defaults["num_inference_steps"]),
        f"{defaults['guidance_scale']:g}",
        ", ".join(f"{name} {defaults[name]:g}" for name in others if defaults[name]),
    ]
