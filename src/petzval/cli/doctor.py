"""`petzval doctor`: what this machine has, and what can run on it."""

from __future__ import annotations

from typing import Any

from petzval.cli.flags import Common
from petzval.cli.show import plain_table, print_json, print_line, print_table, sized


def doctor(output: Common) -> None:
    """Show what this machine has: versions, devices, memory, encoders, and which op rows can run and why others not."""
    from petzval.engine.doctor import examine

    report = examine()
    if output.json:
        print_json(report)
        return
    _show_machine(report)
    print_line("")
    _show_rows(report["ops"])
    for problem in report["problems"]:
        print_line(f"problem: {problem}")


def _show_machine(report: dict[str, Any]) -> None:
    table = plain_table("", "")
    table.show_header = False
    torch, font = report["torch"], report["emoji_font"]
    facts = {
        "petzval": report["petzval"],
        "python": f"{report['python']} on {report['platform']}",
        "torch": f"{torch['version']}, CUDA {torch['cuda'] or 'not built in'}, {torch['threads']} threads",
        "cpus": report["cpus"],
        "memory": _memory(report["memory"]),
        **{f"device {device['name']}": _device(device) for device in report["devices"]},
        "packages": _versions(report["packages"]),
        "optional": "; ".join(
            f"{name} {entry['version'] or 'not installed'} ({entry['for']})"
            for name, entry in report["optional"].items()
        ),
        "ffmpeg": _versions(report["ffmpeg"]),
        "encoders": "; ".join(
            f"{name} {'usable' if entry['usable'] else 'missing'} ({entry['for']})"
            for name, entry in report["encoders"].items()
        ),
        "emoji font": font["path"] or f"none, needed to train and judge: {font['reason']}",
        "bundled": ", ".join(report["checkpoints"]["bundled"]) or "none",
        "cached": ", ".join(report["checkpoints"]["cached"]) or "none",
    }
    for name, value in facts.items():
        table.add_row(name, str(value))
    print_table(table)


def _show_rows(rows: list[dict[str, Any]]) -> None:
    """A table for each need."""
    for need in dict.fromkeys(row["need"] for row in rows):
        found = [row for row in rows if row["need"] == need]
        print_line(f"{found[0]['op']} on {need}")
        table = plain_table("row", "contract", "usable")
        for row in found:
            state = "yes, taken" if row["chosen"] else "yes" if row["usable"] else f"no: {row['reason']}"
            table.add_row(row["row"], "reference" if row["reference"] else row["contract"], state)
        print_table(table)
        print_line("")


def _memory(memory: dict[str, int] | None) -> str:
    return f"{sized(memory['total'])}, {sized(memory['available'])} available" if memory else "unknown"


def _device(device: dict[str, Any]) -> str:
    parts = [device.get("model", ""), _memory(device["memory"]) if "memory" in device else "", device["dtype"]]
    return ", ".join(part for part in parts if part)


def _versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in packages.items())
