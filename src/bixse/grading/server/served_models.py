"""Which model a server serves, and what kind of server it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError, did_you_mean, shorten
from bixse.grading.model_names import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang", "library": "ollama"}
"""How servers call themselves in `owned_by`."""
UNKNOWN_KIND = "openai-compatible"


@dataclass(frozen=True)
class ServedModel:
    """A model as a server lists it."""

    id: str
    """What requests name."""
    name: str
    """The same without the folders of a path, for tables and keys."""
    kind: str
    """Kind of server: "vllm", "llama.cpp", "sglang", "ollama" or "openai-compatible"."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal where two servers serve the same; llama.cpp does not read the model of a request."""
        return (self.name if self.kind == "llama.cpp" else self.id, self.kind)


def models_in(content: Any) -> list[tuple[ServedModel, tuple[str, ...]]]:
    """The models that `/models` lists, each with its other names.

    Raises:
        ValueError: this is no list of models.
    """
    listed = content.get("data") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise ValueError("no list of models")
    found = []
    for entry in listed:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            aliases = entry.get("aliases")
            kind = _KINDS.get(str(entry.get("owned_by")), UNKNOWN_KIND)
            names = tuple(map(str, aliases)) if isinstance(aliases, list) else ()
            found.append((ServedModel(entry["id"], model_name(entry["id"]), kind), names))
    return found


def choose_model(
    listed: Sequence[tuple[ServedModel, tuple[str, ...]]] | None, wanted: str | None, address: str
) -> ServedModel:
    """The model to ask for: the one that is wanted, or the only one there is.

    A model that is wanted and not in a list of several is asked for all the same: hosted services have names that they
    do not list, and refuse one that is wrong.

    Args:
        listed: what the server lists; None where it has no list.
        wanted: a model's id, name or other name; None: take the only one.
        address: for messages.

    Raises:
        InputError: none is wanted and the server lists none or several; or it serves one, of another name.
    """
    models = [model for model, _ in listed or ()]
    if wanted is None:
        if len(models) == 1:
            return models[0]
        found = (
            f"{len(models)} models ({', '.join(model.name for model in models[:20])})"
            if models
            else "no list of models"
        )
        raise InputError(f"{address}: got {found}; expected the name of one; fix: say which with --model")
    for model, aliases in listed or ():
        if wanted in (model.id, model.name, *aliases):
            return model
    if len(models) == 1:
        raise InputError(
            f"{address}: got {shorten(wanted)}; expected {models[0].name}, the model it serves; fix: "
            f"{did_you_mean(wanted, [models[0].name], 'leave the name out')}"
        )
    kind = models[0].kind if models else UNKNOWN_KIND
    return ServedModel(wanted, model_name(wanted), kind)
