"""Open a judge by its name (a server's address, a local model, ...); the settings of the verbs that do so."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from bixse.errors import InputError, shorten
from bixse.judging.grade_settings import (
    AskSettings,
    GradeSettings,
    JudgeOptions,
    NamedRubric,
    PriceSettings,
    RankSettings,
)
from bixse.judging.rubrics import Rubric, load_rubric
from bixse.relevance import GradeScale
from bixse.scale.engines.engine_settings import EngineSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from bixse.judging.judge import Judge

CROSS_ENCODER = "cross-encoder:"
REPLAY = "replay:"
DEFAULT_RUBRIC = "trec-dl-0-3"
_BARE_ADDRESS = re.compile(r"localhost(?:/.*)?|(?:[\w.-]+|\[[\da-fA-F:]+\]):\d+(?:/.*)?")
"""A host with a port. Model names of the hub have no colon."""


class JudgeConfig(PriceSettings, JudgeOptions, AskSettings):
    """Judge, question and price: the settings of every verb that grades."""

    judge: Annotated[tuple[str, ...], Field(min_length=1), Flag(metavar="JUDGE")]
    """Address of an OpenAI-compatible server, a local model, cross-encoder:NAME or replay:qrels:FILE."""
    rubric: NamedRubric = Field(default_factory=partial(load_rubric, DEFAULT_RUBRIC))
    """trec-dl-0-3 (default), binary-0-1, relatedness-1-5, umbrela-0-3 or a TOML file."""
    strict: bool = False
    """Stop where the judge does not look trustworthy (known questions failed, answers of another model)."""

    def asked_rubric(self) -> Rubric | None:
        return self.rubric if reads_rubric(self.judge) else None

    def open(self) -> Judge:
        return open_judge(self.judge, self.rubric or load_rubric(DEFAULT_RUBRIC), self)


class GradeConfig(JudgeConfig, GradeSettings, EngineSettings):
    """Settings of `bixse grade`."""

    pairs: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Pairs with the columns query and document: .parquet, .jsonl, .csv or .tsv, as `bixse mine` writes them, or a
    folder of .parquet."""
    ledger: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Folder of answers to share between runs and machines (default: ledger in the --out folder)."""
    retry_failed: bool = False
    """Ask again those pairs, and only those, whose answer has no grade."""
    pilot: int | None = Field(default=None, ge=0)
    """Questions that --dry-run asks to see tokens and time; their answers are kept, 0 for none (default: a tenth of
    those left, at least 16, at most three times what the judge takes at once)."""
    max_pairs: int | None = Field(default=None, ge=0)
    """Stop when N pairs were asked."""

    @model_validator(mode="after")
    def _read_by_the_judge(self) -> Self:
        for flag, given in (("--ask-twice", self.ask_twice), ("--document-characters", self.document_characters)):
            if given and self.judge[0].startswith(REPLAY):
                raise ValueError(f"{flag}: got it with judgements that exist already; expected a judge that reads; "
                                 "fix: leave it out")  # fmt: skip
        return self


class RankConfig(JudgeConfig, RankSettings):
    """Settings of `bixse grade rank`."""


def reads_rubric(names: Sequence[str]) -> bool:
    """Return whether judges of these names read a rubric."""
    return not any(name.startswith((CROSS_ENCODER, REPLAY)) for name in names)


def open_judge(names: Sequence[str], rubric: Rubric, options: JudgeOptions | None = None) -> Judge:
    """Open the judge that `--judge` names.

    Args:
        names: one name.
        rubric: the question and its options, for judges that read a rubric.
        options: settings; each kind of judge reads the settings that apply to it.

    Raises:
        InputError: no such judge, several names that are not all addresses, or an extra that is not installed.
    """
    options = options or JudgeOptions()
    for name in names:
        if _BARE_ADDRESS.fullmatch(name) and not Path(name).exists():
            raise InputError(
                f"--judge: got {shorten(name)}; expected the address of a server with http:// or https:// before it; "
                f"fix: --judge http://{name}"
            )
    servers = [name for name in names if name.startswith(("http://", "https://"))]
    if servers and len(servers) == len(names):
        from bixse.judging.judges.server_judge import ServerJudge

        return ServerJudge(servers, rubric, options)
    if len(names) != 1 or not names[0].strip():
        raise InputError(
            f"--judge: got {shorten(', '.join(names))}; expected an address (http://...), a model's name or folder, "
            "cross-encoder:NAME or replay:qrels:FILE; fix: name one judge"
        )
    name = names[0]
    if name.startswith(REPLAY):
        from bixse.judging.judges.replay_judge import open_replay

        scale = None if options.scale is None else GradeScale(*options.scale)
        return open_replay(name, scale)
    if name.startswith(CROSS_ENCODER):
        from bixse.judging.judges.cross_encoder_judge import CrossEncoderJudge

        return CrossEncoderJudge(
            name.removeprefix(CROSS_ENCODER), options.score_map or "logit", options.device, options.dtype
        )
    from bixse.judging.judges.local_judge import LocalJudge

    return LocalJudge(name, rubric, options.device, options.dtype)
