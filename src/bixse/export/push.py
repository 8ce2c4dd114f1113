"""`push`: a model folder becomes a repository of the hub, with a card made from what the folder says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bixse.data.run import read_record
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import STATIC
from bixse.encoders.loading.hub import HUB_NAME
from bixse.encoders.loading.kinds import kind_of
from bixse.errors import InputError, ModelError, first_fault
from bixse.files.files import HASHES_FILE, damage
from bixse.files.run_folder import RUN_FILE, in_run
from bixse.rendering.wording import format_verdict
from bixse.results import Difference

if TYPE_CHECKING:
    from bixse.export.export_settings import PushSettings

PICKLE_SUFFIXES = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".bin"}
PICKLE_STARTS = (b"PK\x03\x04", *(bytes([0x80, version]) for version in range(2, 6)))
"""First bytes of torch's archives, and of pickles of protocol 2 to 5."""
REFUSALS = {
    401: ("a token of the hub that may write", "log in with `hf auth login`, or set HF_TOKEN"),
    403: ("a token that may write to this owner", "use a token with write access, or your own name as the owner"),
    409: ("a name that is free", "choose another name, or add a commit to the repository with --update"),
}
"""Status of the hub -> what it expects, and the fix."""
UNREACHED = ("a hub that takes the files", "check the network; if the repository exists by now, add --update")


@dataclass(frozen=True)
class Pushed:
    """The files and the card that were sent, or that a dry run would send."""

    files: tuple[str, ...]
    """Paths within the repository."""
    card: str
    """Model card in Markdown, which replaces the README.md of the folder."""
    url: str | None
    """Address of the commit; None for a dry run."""


def push(settings: PushSettings, dry_run: bool = False) -> Pushed:
    """Send the files of a model and a card in one commit, with the token of `hf auth login` or HF_TOKEN.

    Raises:
        InputError: the name has no owner or is taken, or the hub refuses or cannot be reached.
        ModelError: the folder is no model, was damaged, or holds a pickle, which could run code.

    Example:
        ::

            push(PushSettings(model="runs/mine", name="owner/name"), dry_run=True).card
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    name, folder = settings.name, settings.model
    folder = in_run(folder, "model")
    try:
        validate_repo_id(name)
        owner = "/" in name
    except HFValidationError:
        owner = False
    if not owner:
        raise InputError(f"name: got {name!r}; expected OWNER/NAME; fix: for example my-name/my-model")
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {part: path for part, path in files.items() if not any(word.startswith(".") for word in part.parts)}
    pickles = [str(part) for part, path in files.items() if _is_pickle(path)]
    fault = f"a pickle, {pickles[0]}" if pickles else damage(folder)
    if fault is None and Path("modules.json") not in files:
        fault = "no modules.json"
    if fault:
        raise ModelError(
            f"{folder}: got {fault}; expected the files of a model as they were saved (safetensors, {HASHES_FILE}); "
            "fix: save the model again"
        )
    if (kind := kind_of(folder)) != "encoder":
        raise ModelError(
            f"{folder}: got the kind {kind}; expected an encoder, as the card says; fix: `hf upload {name} {folder}`"
        )
    card = model_card(folder, name)
    contents = {part.as_posix(): path for part, path in files.items()} | {"README.md": card.encode()}
    if dry_run:
        return Pushed(tuple(contents), card, None)
    if get_token() is None:
        raise InputError(f"{name}: got no token; expected {REFUSALS[401][0]}; fix: {REFUSALS[401][1]}")
    try:
        HfApi().create_repo(name, private=settings.private or None, exist_ok=settings.update)
        operations = [CommitOperationAdd(part, content) for part, content in contents.items()]
        commit = HfApi().create_commit(name, operations, commit_message="Add the model, with bixse")
    except Exception as error:  # which HTTP library the hub uses depends on its version
        status = getattr(getattr(error, "response", None), "status_code", 0)
        expected, fix = REFUSALS.get(status, UNREACHED)
        raise InputError(f"{name}: got {first_fault(error)}; expected {expected}; fix: {fix}") from error
    return Pushed(tuple(contents), card, commit.commit_url)


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix in PICKLE_SUFFIXES or file.read(4).startswith(PICKLE_STARTS)


def model_card(folder: Path, name: str) -> str:
    """Return the card of a model folder, from its head and from the run.json next to it, without local paths."""
    from huggingface_hub import ModelCard, ModelCardData

    path = folder.parent / RUN_FILE
    run: dict[str, Any] = read_record(path) if path.is_file() else {}
    settings: dict[str, Any] = run.get("config", {})
    base = str(settings.get("model")).removeprefix(STATIC)
    of_a_folder = any(name.startswith("model/") for name in run.get("inputs", {}))
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "bixse"],
        base_model=base if base.count("/") == 1 and HUB_NAME.fullmatch(base) and not of_a_folder else None,
    )
    changes = (run.get("results", {}).get("merge") or {}).get("changes", ())
    card = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_name("card.j2")),
        name=name,
        head=RelevanceHead.load(folder),
        changes=[(change, _verdict(change)) for change in changes],
        run=run,
        settings=yaml.safe_dump(_public(settings), sort_keys=False),
    )
    return str(card)


def _verdict(change: Mapping[str, Any]) -> str:
    """Return the verdict on a stored change; older records have no p-value or reason."""
    p_value = change.get("p_value", None if change["mean"] else 1.0)
    gap = Difference(change["mean"], change["low"], change["high"], p_value, change["queries"])
    return format_verdict(gap, change.get("few"))


def _public(settings: Any) -> Any:
    """Return settings without unset values; of a path, only its last part."""
    if isinstance(settings, dict):
        return {name: _public(value) for name, value in settings.items() if value not in (None, {}, [], "")}
    if isinstance(settings, list):
        return [_public(value) for value in settings]
    return Path(settings).name if isinstance(settings, str) else settings
