"""The architecture is a test: sizes, imports, and what must never be written in a file."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import petzval

ROOT = Path(__file__).parents[1]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
FILES = [*SOURCE, *sorted((ROOT / "src").rglob("*.pyi")), *sorted((ROOT / "tests").rglob("*.py"))]

# Raise one only in the same change that needs it, and say why there.
MAX_FILE_LINES = 500
MAX_MODEL_FILE_LINES = 800
MAX_FUNCTION_LINES = 80
MAX_ARGUMENTS = 8
MAX_FIELDS = 16

# More fields than MAX_FIELDS, each with its reason.
WIDE_DATACLASSES: dict[str, int] = {}

LIBRARIES_OF_MODELS = ("torch", "diffusers", "transformers")
STARTS_WITHOUT_THEM = ["petzval", *(f"petzval.{room}" for room in ("cli", "env", "errors", "media", "scenes", "types"))]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def nodes(paths: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            yield path, node


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def number_of_arguments(function: Function) -> int:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_there_is_something_to_check() -> None:
    assert len(SOURCE) > 10


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_files_stay_small() -> None:
    models = ROOT / "src/petzval/models"
    limits = {path: MAX_MODEL_FILE_LINES if path.is_relative_to(models) else MAX_FILE_LINES for path in FILES}
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    assert [f"{name_of(path)}: {lines[path]} lines" for path in FILES if lines[path] > limits[path]] == []


def test_functions_stay_small() -> None:
    found = [
        f"{name_of(path)}:{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, node in nodes(FILES)
        if isinstance(node, Function) and node.end_lineno and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert found == []


def test_functions_take_few_arguments() -> None:
    found = [
        f"{name_of(path)}:{node.name}: {number_of_arguments(node)} arguments"
        for path, node in nodes(FILES)
        if isinstance(node, Function) and number_of_arguments(node) > MAX_ARGUMENTS
    ]
    assert found == []


def test_dataclasses_have_few_fields() -> None:
    found = {
        f"{name_of(path)}:{node.name}": fields
        for path, node in nodes(SOURCE)
        if isinstance(node, ast.ClassDef) and is_dataclass(node)
        if (fields := sum(isinstance(line, ast.AnnAssign) for line in node.body)) > MAX_FIELDS
    }
    assert found == WIDE_DATACLASSES


# -- what is written in files -----------------------------------------------------------------------------------------


def test_files_are_ascii() -> None:
    others = [ROOT / name for name in ("README.md", "pyproject.toml", "Makefile", "constraints.txt", ".ci/run")]
    written = [*FILES, *sorted((ROOT / "docs").rglob("*.md")), *others]
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in written
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if not line.isascii()
    ]
    assert found == []


def test_modules_say_what_they_own() -> None:
    """A module opens with a docstring whose first paragraph is a sentence or two, at most two lines long."""
    found = []
    for path in SOURCE:
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        if docstring is None:
            found.append(f"{name_of(path)}: no docstring")
        elif docstring.partition("\n\n")[0].count("\n") > 1:
            found.append(f"{name_of(path)}: first paragraph over two lines")
    assert found == []


def test_no_file_knows_a_machine() -> None:
    folders = [f"/{name}/" for name in ("home", "root")]
    found = [f"{name_of(path)}: {folder}" for path in FILES for folder in folders if folder in path.read_text()]
    assert found == []


def test_only_env_reads_the_environment() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path, node in nodes(SOURCE)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"))
        or (isinstance(node, ast.alias) and node.name in ("environ", "getenv", "environb"))
    ]
    assert {place.partition(":")[0] for place in found} == {"src/petzval/env.py"}


# -- imports (the layers themselves are import-linter's: `make lint`) -------------------------------------------------


def contracts() -> dict[str, dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["id"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def exists(module: str) -> bool:
    path = ROOT / "src" / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("module", STARTS_WITHOUT_THEM)
def test_import_without_torch(module: str) -> None:
    script = f"import sys, {module}; print([name for name in {LIBRARIES_OF_MODELS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_every_family_is_in_the_independence_contract() -> None:
    families = {f"petzval.models.{path.parent.name}" for path in (ROOT / "src/petzval/models").glob("*/__init__.py")}
    assert families == set(contracts()["families"]["modules"])


def test_rooms_that_must_not_know_torch_are_in_the_contracts() -> None:
    """import-linter refuses a module that is not there yet, so these join the contracts when they appear."""
    wanted = {"petzval.engine.scheduler", "petzval.store", "petzval.server", "petzval.loops", "petzval.cli"}
    listed = {*contracts()["torch-free"]["source_modules"], *contracts()["torch-free-direct"]["source_modules"]}
    assert {module for module in wanted if exists(module)} <= listed


def test_public_names_are_where_they_are_said_to_be() -> None:
    assert {name: getattr(petzval, name).__name__ for name in petzval.__all__ if name != "__version__"} == {
        name: name for name in petzval.__all__ if name != "__version__"
    }
    assert set(petzval.__all__) <= set(dir(petzval))


def test_type_stub_lists_the_public_names() -> None:
    names = set()
    for _, node in nodes([ROOT / "src/petzval/__init__.pyi"]):
        if isinstance(node, ast.alias):
            names.add(node.asname)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    assert names == set(petzval.__all__)


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lens'"):
        _ = petzval.lens  # type: ignore[attr-defined]
