"""Checkpoints: finds a diffusers-layout folder by path, bundled name or hub id, and reads its facts. No weights."""

from __future__ import annotations

import difflib
import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from petzval import env
from petzval.errors import CheckpointError
from petzval.models import shards
from petzval.types import CheckpointId

BUNDLED = Path(__file__).parents[1] / "checkpoints"
"""Checkpoints that ship inside the package, a folder each."""

# Of a component's folder only: the root often holds the same weights again in the source project's own format.
_DOWNLOAD = ("model_index.json", "*/*.json", "*/*.safetensors", "*/*.model", "*/*.txt")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A diffusers-layout folder on this machine: model_index.json and a folder per component."""

    name: str
    """As it was asked for: a folder, a bundled name, or a hub id with its revision."""
    folder: Path

    @property
    def class_name(self) -> str:
        """The pipeline class that published it, model_index.json's `_class_name`. Raises CheckpointError."""
        name = self.model_index().get("_class_name")
        if not isinstance(name, str):
            raise CheckpointError(f"{self.folder / 'model_index.json'} has no _class_name")
        return name

    def model_index(self) -> dict[str, Any]:
        """All of model_index.json. Raises CheckpointError naming the file when it is missing or damaged."""
        return shards.read_json(self.folder / "model_index.json")

    def components(self) -> dict[str, tuple[str, str]]:
        """Component -> (library, class), for those the checkpoint has: absent optional ones are left out."""
        return {
            name: (str(entry[0]), str(entry[1]))
            for name, entry in self.model_index().items()
            if isinstance(entry, list) and len(entry) == 2 and None not in entry
        }

    def settings(self) -> dict[str, Any]:
        """Pipeline facts that model_index.json states beside its components: boundary_ratio, expand_timesteps, ..."""
        return {
            name: value
            for name, value in self.model_index().items()
            if not name.startswith("_") and not isinstance(value, list)
        }

    def extra(self, file_name: str) -> dict[str, Any]:
        """A JSON object beside model_index.json that not every checkpoint has; empty without it. Raises CheckpointError
        naming the file when it is damaged."""
        file = self.folder / file_name
        return shards.read_json(file) if file.exists() else {}

    def component_folder(self, component: str) -> Path:
        """Where a component's files are. Raises CheckpointError when the checkpoint has no such component."""
        if component not in self.components():
            raise CheckpointError(
                f"checkpoint {self.name} has no component {component!r}; it has {', '.join(sorted(self.components()))}"
            )
        return self.folder / component

    def config(self, component: str, *, file_name: str = "config.json") -> dict[str, Any]:
        """A component's config.json, or another JSON object beside it (preprocessor_config.json, ...). Raises
        CheckpointError naming the file when it is missing or damaged."""
        return shards.read_json(self.component_folder(component) / file_name)

    def scheduler_config(self) -> dict[str, Any]:
        """The published sampler's settings, scheduler/scheduler_config.json. Raises CheckpointError as `config`."""
        return self.config("scheduler", file_name="scheduler_config.json")

    def parameters(self) -> dict[str, int]:
        """Component -> number of its parameters, counted from the weight files' headers (integer tensors are not
        parameters). Components without weights are left out. Raises CheckpointError for a damaged weight file."""
        counts = {}
        for component in self.components():
            entries = shards.read_headers(self.folder / component)
            if entries:
                counts[component] = sum(entry.numel for entry in entries.values() if entry.is_float)
        return counts

    @property
    def bytes(self) -> int:
        """Size of all weights as stored. Raises CheckpointError for a missing shard."""
        return sum(
            file.stat().st_size
            for component in self.components()
            for file in shards.weight_files(self.folder / component)
        )

    def fingerprint(self) -> str:
        """A digest of the configuration files, of what the weights' headers say, and of a few bytes of every tensor.

        Equal for copies of a folder, wherever they are and however they are sharded; does not read all the weights.
        Raises CheckpointError for a damaged weight file.
        """
        hasher = hashlib.sha256()
        _hash_file(hasher, self.folder, "model_index.json")
        for component in sorted(self.components()):
            folder = self.folder / component
            for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
                name = file.relative_to(self.folder).as_posix()
                if file.suffix in {".json", ".txt", ".model"} and ".safetensors.index." not in name:
                    _hash_file(hasher, self.folder, name)
            hasher.update(f"weights {component}\n".encode())
            shards.hash_weights(folder, hasher)
        return hasher.hexdigest()[:16]

    def id(self, family: str) -> CheckpointId:
        """What plans and records say of this checkpoint when `family` runs it."""
        return CheckpointId(family=family, name=self.name, fingerprint=self.fingerprint())


def _hash_file(hasher: hashlib._Hash, folder: Path, name: str) -> None:
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / name}: {error.strerror or error}") from error
    hasher.update(f"file {name} {len(data)}\n".encode())
    hasher.update(data)


# -- finding one -------------------------------------------------------------------------------------------------------


def resolve(name: str, *, revision: str | None = None, download: bool = True) -> Checkpoint:
    """The checkpoint that `name` means: a bundled one ("pocket"), a local folder in the diffusers layout, or a hub id
    ("owner/name", also "owner/name@revision"), which is downloaded unless it is cached; never where `download` is off.

    A bare bundled name is the bundled checkpoint even beside a folder of that name ("./pocket" is the folder). Only
    JSON, safetensors and tokenizer files are ever downloaded. Raises CheckpointError, one line, when there is no such
    checkpoint, when it may not be had (gated, offline) or when the folder has another layout.
    """
    folder = _as_folder(name)
    if name in bundled_names():
        _no_revision(name, revision)
        return _checked(Checkpoint(name=name, folder=BUNDLED / name))
    if folder is not None:
        _no_revision(name, revision)
        return _checked(Checkpoint(name=name, folder=folder.resolve()))
    repo_id, _, suffix = name.partition("@")
    if name.startswith(("/", ".", "~")) or repo_id.count("/") > 1:
        raise CheckpointError(f"there is no folder {name}")
    if "/" not in repo_id:
        raise CheckpointError(f"there is no checkpoint {name!r}: {_hint(name)}")
    if suffix and revision and suffix != revision:
        raise CheckpointError(f"revision given twice: {name} and {revision}")
    revision = suffix or revision
    found = _fetch(repo_id, revision, download=download and not env.hub_offline())
    return _checked(Checkpoint(name=f"{repo_id}@{revision}" if revision else repo_id, folder=found))


def _as_folder(name: str) -> Path | None:
    """The file or folder of this name, if there is one."""
    try:
        folder = Path(name).expanduser()
        return folder if name and folder.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, closed to us, another user's home that is not, a NUL
        return None


def bundled_names() -> tuple[str, ...]:
    """Names of the checkpoints that ship with the package."""
    return tuple(sorted(path.parent.name for path in BUNDLED.glob("*/model_index.json")))


def cached_names() -> tuple[str, ...]:
    """Hub ids that the local hub cache holds in the diffusers layout."""
    from huggingface_hub import constants

    found = {
        path.parents[2].name for path in Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/model_index.json")
    }
    return tuple(sorted(name.removeprefix("models--").replace("--", "/", 1) for name in found))


def _no_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise CheckpointError(f"revision {revision!r} was given for {name}, but only hub ids have revisions")


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """The same, once its folder has the diffusers layout."""
    folder = checkpoint.folder
    if not folder.is_dir():
        raise CheckpointError(
            f"{checkpoint.name} is a file; a checkpoint is a folder in the diffusers layout, with a model_index.json"
        )
    if not (folder / "model_index.json").is_file():
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise CheckpointError(
            f"{checkpoint.name} has no model_index.json, so it is not in the diffusers layout; it holds {held}"
        )
    checkpoint.model_index()
    return checkpoint


def _hint(name: str) -> str:
    """What could be meant, and what is here."""
    bundled, cached = bundled_names(), cached_names()
    near = difflib.get_close_matches(name, [*bundled, *cached], n=1)
    parts = [f"did you mean {near[0]}?"] if near else []
    parts.append(f"bundled: {', '.join(bundled) or 'none'}; on this machine: {', '.join(cached) or 'none'};")
    parts.append("else name a folder in the diffusers layout or a hub id (owner/name)")
    return " ".join(parts)


def _fetch(repo_id: str, revision: str | None, *, download: bool) -> Path:
    """The local snapshot of a hub repository, downloaded where it is not cached."""
    from huggingface_hub import errors, snapshot_download

    asked = f"{repo_id}@{revision}" if revision else repo_id
    get = f"hf download {shlex.quote(repo_id)}" + (f" --revision {shlex.quote(revision)}" if revision else "")
    try:
        path = snapshot_download(
            repo_id, revision=revision, allow_patterns=list(_DOWNLOAD), local_files_only=not download
        )
    except errors.GatedRepoError as error:
        where = f"https://huggingface.co/{repo_id}"
        raise CheckpointError(
            f"{repo_id} is gated: accept its licence at {where}, then log in with 'hf auth login'"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no repository {repo_id}, or it is private: check the name, or log in with 'hf auth login'"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{repo_id} has no revision {revision or 'main'!r}") from error
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise CheckpointError(_refusal(asked, error.__cause__)) from error
        why = "and the hub cannot be reached" if download else "and nothing is downloaded here"
        why = "and downloads are off (HF_HUB_OFFLINE)" if env.hub_offline() else why
        raise CheckpointError(
            f"{asked} is not on this machine, or not all of it, {why}: run '{get}' where there is a network, "
            f"or name a folder; bundled: {', '.join(bundled_names()) or 'none'}; "
            f"on this machine: {', '.join(cached_names()) or 'none'}"
        ) from error
    except errors.HfHubHTTPError as error:
        raise CheckpointError(_refusal(asked, error)) from error
    except (OSError, ValueError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        raise CheckpointError(f"{asked} could not be downloaded: {_first_line(error)}") from error
    return Path(path)


def _refusal(asked: str, error: Any) -> str:
    status = error.response.status_code
    if status in (401, 403):
        return f"the hub refused {asked} (status {status}): log in with 'hf auth login' and check that you have access"
    return f"the hub answered with status {status} for {asked}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
