"""Settings of `bixse ui`: the shown folder, the access to it, and the judge that edited rubrics are tried on."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from bixse.judging.grade_settings import NamedRubric
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from typing import Self

SEED = 0  # seed of all draws; that of `bixse calibrate` and `bixse grade audit`, so that figures are equal


class UiSettings(Settings):
    """Settings of `bixse ui`."""

    run: Annotated[Path, Flag(metavar="RUN_FOLDER", positional=True)]
    """Output folder of `bixse grade` (or any folder, with pairs)."""
    pairs: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Pairs with their texts: what was graded; null: pairs.parquet in the folder, which lacks those without a grade."""
    labels: Annotated[Path | None, Flag(metavar="FILE")] = None
    """People's labels, one line per event, only ever added to; null: labels.jsonl in the folder."""
    judge: Annotated[str | None, Flag(metavar="JUDGE")] = None
    """Judge that an edited rubric is tried on: as for `bixse grade`, or a YAML file of its settings."""
    rubric: NamedRubric = None
    """Rubric that people label by; null: the one the folder was graded with, else trec-dl-0-3."""
    planned: int = Field(default=400, ge=1)
    """Pairs to label in all: that many are drawn, with known probabilities."""
    overlap: Annotated[float, Field(ge=0, le=1), Flag(metavar="SHARE")] = 0.1
    """Share of the pairs that everybody labels; the others are labelled by one person each."""
    systems: Annotated[tuple[str, ...], Flag(metavar="SYSTEM")] = ()
    """Two systems to compare: each a model, an index folder, bm25, a TREC run, or an output folder of `bixse evaluate`;
    the second is held against the first."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder with corpus.jsonl, queries.jsonl and qrels, on which they answer."""
    split: str = "test"
    """Split of the collection whose queries and judgements are used."""
    held_out: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs as of `bixse calibrate --pairs`: precision, recall and calibration of the systems are measured on
    them."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8765, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    yes_expose: bool = False
    """Listen on an address that other machines reach, though texts, labels and cookies then go over the network
    unencrypted."""

    @model_validator(mode="after")
    def _two_systems(self) -> Self:
        if len(self.systems) not in (0, 2):
            raise ValueError(f"systems: got {len(self.systems)}; expected two; fix: name one more")
        if self.held_out is not None and not self.systems:
            raise ValueError("held_out: got it without systems; expected both; fix: add --systems A B")
        return self

    @model_validator(mode="after")
    def _on_this_machine(self) -> Self:
        if not self.is_local and not self.yes_expose:
            raise ValueError(
                f"host: got {self.host}, which other machines may reach: whoever reads the network there sees texts, "
                "labels and the session's cookie, as nothing is encrypted; expected 127.0.0.1; fix: leave it out and "
                "use `ssh -L 8765:127.0.0.1:8765 MACHINE`, or add --yes-expose"
            )
        return self

    @property
    def is_local(self) -> bool:
        """Return True if only this machine reaches the host."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def judge_file(self) -> Path | None:
        """The YAML file that `judge` names, if it is none of a judge itself."""
        return Path(self.judge) if self.judge and self.judge.endswith((".yaml", ".yml")) else None

    @property
    def labels_path(self) -> Path:
        return self.labels or self.run / "labels.jsonl"
