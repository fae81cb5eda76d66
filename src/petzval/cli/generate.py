"""`petzval generate`: words and pictures in, files out."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from typer import Argument, Option

from petzval.cli.flags import Common, model_names, option
from petzval.cli.show import Notes, print_json, print_line
from petzval.types import TASKS, TIERS

if TYPE_CHECKING:
    from petzval.cli.wish import Wish
    from petzval.tasks.result import Event, Result


@dataclass(frozen=True, kw_only=True)
class What:
    PANEL: ClassVar[str] = "What"

    prompt: Annotated[str | None, Argument(help='What to show. "" is allowed: whatever comes.')] = None
    task: Annotated[
        str | None, option("--task", f"{', '.join(TASKS)}.", default="from --image and --out", words=TASKS)
    ] = None
    image: Annotated[list[Path], option("--image", "A picture to start from; may be repeated.")] = field(
        default_factory=list
    )
    strength: Annotated[float | None, option("--strength", "How much of --image is made new, up to 1.")] = None
    negative: Annotated[str | None, option("--negative", "What not to show.")] = None
    seed: Annotated[int | None, option("--seed", "Same seed, same picture.", default="random, and told")] = None
    num: Annotated[int, option("--num", "How many, of as many seeds in a row.")] = 1


@dataclass(frozen=True, kw_only=True)
class How:
    PANEL: ClassVar[str] = "How (by default as the checkpoint's authors published)"

    width: Annotated[int | None, option("--width", "Pixels.")] = None
    height: Annotated[int | None, option("--height", "Pixels.")] = None
    frames: Annotated[int | None, option("--frames", "Of a clip.")] = None
    fps: Annotated[int | None, option("--fps", "Frames a second of a clip.")] = None
    steps: Annotated[int | None, option("--steps", "Denoising steps.")] = None
    guidance: Annotated[float | None, option("--guidance", "Classifier-free guidance; 1 is off.")] = None
    guidance_2: Annotated[float | None, option("--guidance-2", "The second expert's, where there are two.")] = None
    embedded_guidance: Annotated[
        float | None, option("--embedded-guidance", "What guidance-distilled models are told (FLUX.1 dev).")
    ] = None
    sampler: Annotated[str | None, option("--sampler", "One that petzval models NAME lists.")] = None
    tier: Annotated[
        str | None, option("--tier", f"Fidelity that speed may cost: {', '.join(TIERS)}.", default="exact", words=TIERS)
    ] = None


@dataclass(frozen=True, kw_only=True)
class Where:
    PANEL: ClassVar[str] = "Which model, and where it runs"

    model: Annotated[
        str | None,
        Option(
            "--model",
            help="A bundled name, a folder in the diffusers layout, or a hub id.",
            autocompletion=model_names,
            show_default="pocket",
        ),
    ] = None
    revision: Annotated[str | None, option("--revision", "Of a hub id.")] = None
    device: Annotated[
        str | None, option("--device", "cpu, cuda, cuda:1, mps.", default="the best", words=("cpu", "cuda", "mps"))
    ] = None
    dtype: Annotated[
        str | None,
        option("--dtype", "float32, bfloat16.", default="by device", words=("float32", "bfloat16")),
    ] = None
    attention: Annotated[
        str | None, option("--attention", "A row that petzval doctor lists.", default="the first exact one")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Output(Common):
    out: Annotated[
        Path | None, option("--out", "The file; its suffix says what it is.", default="from prompt and seed")
    ] = None
    from_: Annotated[Path | None, option("--from", "A file of Petzval's to make again; other flags change it.")] = None
    quiet: Annotated[bool, option("--quiet", "No progress, no notes: only the files' names.")] = False


def generate(what: What, how: How, where: Where, output: Output) -> None:
    """Make pictures or clips from words, from a picture, or again from a file."""
    from petzval.cli import wish as wishes

    notes = Notes(quiet=output.quiet)
    with ExitStack() as stack:
        stages = stack.enter_context(notes.progress())
        wish = wishes.gather(what, how, where, output, notes)
        stages.show(f"load {wish.model}", 0, None)
        results = _made(wish, stages)
        stages.show("write", 0, len(results))
        from petzval.tasks.record import save

        for index, (result, path) in enumerate(zip(results, wish.paths, strict=True)):
            save(result, path)
            stages.show("write", index + 1, len(results))
    _tell(results, wish, output, notes)


def _made(wish: Wish, stages: Any) -> list[Result]:
    """Checked before any weights are loaded, then generated as one group."""
    from petzval.cli.wish import check_checkpoint
    from petzval.engine import build
    from petzval.media.videos import check_rate
    from petzval.tasks.generate import generate as generate_all
    from petzval.tasks.table import NEEDS

    build.pick_dtype(wish.settings.get("dtype", "auto"), build.pick_device(wish.settings.get("device", "auto")))
    check_checkpoint(wish)
    for request, path in zip(
        build.check(wish.requests, name=wish.model, revision=wish.revision), wish.paths, strict=True
    ):
        if NEEDS[request.task].makes == "video" and request.fps:
            check_rate(path.suffix.lower(), fps=request.fps)
    model = build.load(wish.model, revision=wish.revision, **wish.settings)

    def on_event(event: Event) -> None:
        if event.kind == "started":
            stages.show(event.stage, 0, None)
        elif event.kind == "step":
            note = f"{event.seconds:.2f} s each" if event.stage == "denoise" else ""
            stages.show(event.stage, event.step, event.num_steps, note)

    return generate_all(model, wish.requests, on_event)


def _tell(results: list[Result], wish: Wish, output: Output, notes: Notes) -> None:
    """One line a file, or one object for all."""
    tier = results[0].plan.tier
    if tier.why and not output.json:
        notes.say(f"note: ran tier exact: {tier.why}")
    if output.json:
        print_json(_summary(results, wish))
        return
    for result, path in zip(results, wish.paths, strict=True):
        print_line(str(path) if output.quiet else f"{path}  {_description(result)}")


def _description(result: Result) -> str:
    request = result.plan.request
    frames, height, width, _ = result.pixels_THWC.shape
    clip = f", {frames} frames at {request.fps} a second" if request.fps else ""
    together = f" for all {result.group}" if result.group > 1 else ""
    return f"{width}x{height}{clip}, seed {request.seed}, {sum(result.seconds.values()):.1f} s{together}"


def _summary(results: list[Result], wish: Wish) -> dict[str, Any]:
    files = []
    for result, path in zip(results, wish.paths, strict=True):
        frames, height, width, _ = result.pixels_THWC.shape
        files.append({"path": str(path), "seed": result.plan.request.seed, "width": width, "height": height})
        files[-1] |= {"num_frames": frames, "fps": result.plan.request.fps}
    from petzval.tasks.record import record

    facts = record(results[0])
    shared = {key: facts[key] for key in ("version", "checkpoint", "request", "tier", "runs")}
    return {"files": files, **shared, "seconds": {**results[0].seconds, "total": sum(results[0].seconds.values())}}
