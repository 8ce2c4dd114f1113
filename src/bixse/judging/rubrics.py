"""Rubrics as data: the prompt of a judge, and the option tokens of its answer."""

from __future__ import annotations

import json
import math
import re
import tomllib
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bixse.errors import ConfigError, InputError, did_you_mean, shorten
from bixse.files.files import json_hash, read_text
from bixse.relevance import GradeScale

_FIELDS = re.compile(r"\{(query|document)\}")


def field_fault(user: str) -> str | None:
    """Return the field that a user message lacks or repeats, in words; None if each occurs once."""
    for field in ("{query}", "{document}"):
        if (count := user.count(field)) != 1:
            return f"{field} occurs {count} times" if count else f"{field} is missing"
    return None


class PromptVariant(BaseModel):
    """A prompt: its system text, and its user text with `{query}` and `{document}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    system: str = ""
    """System message; empty for none."""
    user: str
    """User message with `{query}` and `{document}`, each once."""

    @model_validator(mode="after")
    def _whole(self) -> PromptVariant:
        if fault := field_fault(self.user):
            raise ValueError(f"user: got a message in which {fault}; expected {{query}} and {{document}} once each")
        return self

    def messages(self, query: str, document: str) -> tuple[dict[str, str], ...]:
        """Return the chat messages of a pair; texts that contain `{query}` or `{document}` stay as they are."""
        texts = {"query": query, "document": document}
        user = _FIELDS.sub(lambda match: texts[match[1]], self.user)  # in one pass: a document may hold "{query}"
        system = ({"role": "system", "content": self.system.strip()},) if self.system.strip() else ()
        return (*system, {"role": "user", "content": user})


class Rubric(BaseModel):
    """A question with ordered options, each a token of the judge (BiXSE paper, section 3).

    Example:
        >>> rubric = load_rubric("trec-dl-0-3")
        >>> rubric.labels, rubric.scale.to_relevance(1.5)
        (('0', '1', '2', '3'), 0.5)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    labels: tuple[str, ...] = Field(min_length=2)
    """Answers of the judge, from irrelevant to perfectly relevant; distinct, without spaces around them."""
    values: tuple[float, ...] = ()
    """Grade of each label, rising; the default is the number that the label spells."""
    meanings: tuple[str, ...] = ()
    """A few words per label for people who label, on the buttons of `bixse ui`; the judge does not read them."""
    variants: tuple[PromptVariant, ...] = Field(min_length=1, validation_alias=AliasChoices("variants", "orders"))
    """Prompts that are all asked; their relevances are averaged. Files of earlier versions name them `orders`."""
    summary: str = ""
    source: str = ""
    """Source of the wording."""

    @model_validator(mode="before")
    @classmethod
    def _values_from_labels(cls, table: Any) -> Any:
        if isinstance(table, dict) and not table.get("values") and isinstance(table.get("labels"), (list, tuple)):
            try:
                return {**table, "values": [float(label) for label in table["labels"]]}
            except (TypeError, ValueError):
                raise ValueError("labels: got words; expected `values` too, a number for each label") from None
        return table

    @model_validator(mode="after")
    def _ordered(self) -> Rubric:
        if any(not label.strip() or label != label.strip() for label in self.labels):
            raise ValueError(f"labels: got {list(self.labels)}; expected texts without spaces around them")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels: got {list(self.labels)}; expected each once")
        rising = all(low < high for low, high in pairwise(self.values))
        if len(self.values) != len(self.labels) or not rising or not all(map(math.isfinite, self.values)):
            raise ValueError(
                f"values: got {list(self.values)}; expected a finite number per label, rising from irrelevant to "
                "perfectly relevant"
            )
        if len(self.meanings) not in (0, len(self.labels)):
            raise ValueError(f"meanings: got {len(self.meanings)}; expected one per label, {len(self.labels)}, or none")
        if len({variant.name for variant in self.variants}) != len(self.variants):
            raise ValueError("variants: got two with one name; expected different names")
        return self

    @property
    def scale(self) -> GradeScale:
        return GradeScale(self.values[0], self.values[-1])

    @property
    def content_hash(self) -> str:
        """SHA-256 of all prompts, labels and values; a changed word changes it."""
        asked = self.model_dump(mode="json", exclude={"name", "summary", "source", "meanings"})
        asked["orders"] = asked.pop("variants")  # hashes of the first version have this name, and must stay equal
        return json_hash(asked)


def load_rubric(name: str | Path) -> Rubric:
    """Load a rubric by its name, or from a TOML file.

    Raises:
        InputError: no rubric of that name, no such file, or a file with several rubrics.
        ConfigError: the file is no rubric. The message has the key and the expected value.
    """
    text = str(name)
    shipped = shipped_rubrics()
    if text in shipped:
        return shipped[text]
    if Path(text).suffix != ".toml":
        raise InputError(
            f"rubric: got {shorten(text)}; expected {', '.join(shipped)} or a TOML file; "
            f"fix: {did_you_mean(text, shipped)}"
        )
    rubrics = _read(read_text(Path(text)), text)
    if len(rubrics) > 1:
        raise InputError(
            f"{text}: got the rubrics {', '.join(rubrics)}; expected one; fix: give each a file of its own"
        )
    return next(iter(rubrics.values()))


def rubric_toml(rubric: Rubric) -> str:
    """Return a rubric as the text of a TOML file; `load_rubric` reads an equal rubric from it."""
    name, lines = _toml(rubric.name), []
    for key in ("summary", "source", "labels", "values", "meanings"):
        lines += [f"{key} = {_toml(value)}"] if (value := getattr(rubric, key)) else []
    for variant in rubric.variants:
        lines += ["", f"[[{name}.variants]]"]
        for key, text in variant.model_dump().items():
            lines += [f"{key} = {_toml(text, blocks=key != 'name')}"] if text else []
    return "\n".join([f"[{name}]", *lines]) + "\n"


def _toml(value: Any, blocks: bool = False) -> str:
    """Return a value as TOML; with `blocks`, a text of several lines keeps them in triple quotes."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    lines = [json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f") for line in value.split("\n")]
    return '"""\n' + "\n".join(lines) + '"""' if blocks and len(lines) > 1 else '"' + "\\n".join(lines) + '"'


@cache
def shipped_rubrics() -> dict[str, Rubric]:
    """Return name -> rubric of those that come with the package."""
    text = (resources.files("bixse.judging") / "rubrics.toml").read_text(encoding="utf-8")
    return _read(text, "rubrics.toml")


def _read(text: str, where: str) -> dict[str, Rubric]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: got no valid TOML ({error}); expected rubrics; fix: correct that line") from error
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(
            f"{where}: got {shorten(tables)}; expected one table per rubric; fix: begin with a line [my-rubric]"
        )
    rubrics = {}
    for name, table in tables.items():
        try:
            rubrics[name] = Rubric(name=name, **{key: value for key, value in table.items() if key != "name"})
        except ValidationError as error:
            first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
            key_path = ".".join(str(part) for part in (name, *first["loc"]))
            raise ConfigError(
                f"{where}: {key_path}: {first['msg'].removeprefix('Value error, ')}; "
                "fix: see the rubrics in docs/reference/grading.md"
            ) from error
    return rubrics
