"""Task instructions as data: the prompts of queries per task, in training, encoding, evaluation and search."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bixse.errors import ConfigError, InputError, did_you_mean, shorten
from bixse.files.files import json_hash, read_text

PAPER = "paper"
"""The word for the table of the BiXSE paper, unless a file has this name."""
RESERVED = ("query", "document")
"""Prompt names of sentence-transformers for queries and documents, which no task may have."""
TEMPLATE = "Instruct: {instruction}\nQuery:\n"
"""The prompt of an instruction, unless the table has its own template."""


class TaskInstructions(BaseModel):
    """The instructions of a task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instructions: tuple[str, ...] = Field(min_length=1)
    """At least one instruction. Training picks one per batch; otherwise the first is used."""
    symmetric: bool = False
    """True if documents have the instruction too, because both sides are of one kind (duplicate questions)."""
    template: str | None = None


class Instructions(BaseModel):
    r"""A table of task instructions.

    Example:
        >>> table = Instructions(tasks={"fever": {"instructions": ["Given a claim, find its support"]}})
        >>> table.prompt("fever", "query")
        'Instruct: Given a claim, find its support\nQuery:\n'
        >>> table.prompt("fever", "document")
        ''
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str = TEMPLATE
    """Text with `{instruction}` once and a final line break: no token crosses it from prompt to text."""
    default: str | None = None
    """Instruction of all other tasks, and of rows and commands without a task; None: they are refused."""
    tasks: Mapping[str, TaskInstructions] = Field(default_factory=dict)

    @field_validator("template")
    @classmethod
    def _usable(cls, template: str) -> str:
        if template.count("{instruction}") != 1 or not template.endswith("\n"):
            raise ValueError(
                "expected {instruction} once and a line break at the end; fix: write it as "
                r'"Instruct: {instruction}\nQuery:\n"'
            )
        return template

    @field_validator("tasks")
    @classmethod
    def _named(cls, tasks: Mapping[str, TaskInstructions]) -> Mapping[str, TaskInstructions]:
        for name, task in tasks.items():
            if name in RESERVED or not name:
                raise ValueError(f"expected a task name other than {', '.join(RESERVED)}; fix: rename {name!r}")
            if task.template is not None:
                cls._usable(task.template)
        return tasks

    def of(self, task: str | None) -> TaskInstructions:
        """Return the instructions of a task; an unknown task and None have the default's."""
        if task in self.tasks:
            return self.tasks[str(task)]
        if self.default is not None:
            return TaskInstructions(instructions=(self.default,))
        if task is None and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        known = ", ".join(self.tasks) or "none"
        hint = did_you_mean(task or "", self.tasks, otherwise="name a known task, or give the table a `default`")
        raise InputError(
            f"instructions: got {f'task {task!r}' if task else 'no task'}; expected one of {known}; fix: {hint}"
        )

    def choices(self, task: str | None) -> int:
        return len(self.of(task).instructions)

    def prompt(self, task: str | None, kind: Literal["query", "document"], choice: int = 0) -> str:
        """Return the prompt of a text with instruction number `choice`; empty for documents unless symmetric."""
        entry = self.of(task)
        if kind == "document" and not entry.symmetric:
            return ""
        return (entry.template or self.template).replace("{instruction}", entry.instructions[choice])

    def prompts(self) -> dict[str, str]:
        """Return prompts by the names of sentence-transformers: query, document and each task (its first instruction).

        "query" is missing if the table has several tasks and no default.
        """
        named = {task: self.prompt(task, "query") for task in self.tasks}
        if self.default is None and len(self.tasks) != 1:
            return {**named, "document": ""}
        return {**named, **{kind: self.prompt(None, kind) for kind in ("query", "document")}}

    def check_tasks(self, where: object, tasks: Iterable[str | None]) -> None:
        """Refuse tasks without an instruction."""
        missing = []
        for task in dict.fromkeys(tasks):
            try:
                self.of(task)
            except InputError:
                missing.append("rows without a task" if task is None else repr(task))
        if missing:
            raise InputError(
                f"{where}: got tasks without an instruction ({', '.join(missing)}); expected one per task, or a "
                f"`default`; known tasks: {', '.join(self.tasks) or 'none'}; fix: add them to the table"
            )

    def content_hash(self) -> str:
        """Return the SHA-256 of the table, independent of the layout of its file."""
        return json_hash(self.model_dump())


def load_instructions(source: str | Path) -> Instructions:
    """Return a table of task instructions from a TOML file, or the table of the BiXSE paper for the word "paper"."""
    if Path(source).name == PAPER and not Path(source).exists():  # settings resolve it as a path
        text = (resources.files("bixse.data") / "paper_instructions.toml").read_text(encoding="utf-8")
    else:
        text = read_text(Path(source))
    try:
        return parse_instructions(tomllib.loads(text), str(source))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f'{source}: got no valid TOML ({error}); expected [tasks.NAME] sections with instructions = ["..."]; '
            "fix: correct that line"
        ) from error


def parse_instructions(values: Mapping[str, Any], where: str) -> Instructions:
    """Return a table from plain data."""
    try:
        return Instructions.model_validate(dict(values))
    except ValidationError as error:
        errors = [
            f"  {'.'.join(map(str, fault['loc']))}: got {shorten(fault['input'])}; "
            f"{fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        ]
        raise ConfigError("\n".join([f"{where}: got instructions that cannot be used", *errors])) from error
