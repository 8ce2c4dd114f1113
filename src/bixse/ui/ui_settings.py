"""Settings of `bixse ui`: the shown folder, the access to it, and the judge that edited rubrics are tried on."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from bixse.judging.grade_settings import NamedRubric
from bixse.settings import Flag, Reads, Settings

SEED = 0  # seed of all draws; that of `bixse calibrate` and `bixse grade audit`, so that figures are equal


class UiSettings(Settings):
    """Settings of `bixse ui`."""

    run: Annotated[Path, Flag(metavar="RUN_FOLDER", positional=True)]
    """Output folder of `bixse grade`, or any folder with pairs or runs."""
    pairs: Annotated[Path | None, Flag(metavar="FILE"), Reads("pairs")] = None
    """File of the graded pairs with their texts. Null: pairs.parquet of the folder, which has graded pairs only."""
    labels: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of people's labels, one line per event; lines are only appended. Null: labels.jsonl in the folder."""
    judge: Annotated[str | None, Flag(metavar="JUDGE")] = None
    """Judge for trials of an edited rubric: a name as in `bixse grade --judge`, or a YAML file. Null: no trials."""
    rubric: NamedRubric = None
    """Rubric that people label by. Null: the rubric of the grading run, or trec-dl-0-3 if there is none."""
    planned: int = Field(default=400, ge=1)
    """Number of pairs to label, drawn with known probabilities."""
    overlap: Annotated[float, Field(ge=0, le=1), Flag(metavar="SHARE")] = 0.1
    """Share of the pairs that everybody labels, from 0 to 1. Every other pair is labelled by one person."""
    systems: Annotated[tuple[str, ...], Flag(metavar="SYSTEM"), Reads("system")] = ()
    """Two systems to compare, the second against the first. Each is a model, an index folder, bm25, a TREC run, or an
    output folder of `bixse evaluate`. Default: no comparison."""
    collection: Annotated[Path | None, Flag(metavar="DIR"), Reads("collection")] = None
    """Folder with the corpus.jsonl, queries.jsonl and qrels that the systems search. An index needs none."""
    split: str = "test"
    """Split of the collection whose queries and judgements are used."""
    held_out: Annotated[Path | None, Flag(metavar="FILE"), Reads("graded")] = None
    """File of graded pairs, as for `bixse calibrate --pairs`, to measure precision, recall and calibration of the
    systems. Null: no measures."""
    host: str = "127.0.0.1"
    """IP address or host name to listen on. Only this machine reaches the default."""
    port: int = Field(default=8765, ge=0, le=65535)
    """Port to listen on. 0 takes any free port."""
    no_browser: bool = False
    """Only print the address. By default, the browser opens it, if started at this machine's own screen."""
    yes_expose: bool = False
    """Listen on an address that other machines reach. Texts, labels and cookies then cross the network unencrypted."""

    @model_validator(mode="after")
    def _two_systems(self) -> Self:
        if len(self.systems) not in (0, 2):
            raise ValueError(f"systems: got {len(self.systems)}; expected 0 or 2; fix: --systems A B")
        if self.held_out is not None and not self.systems:
            raise ValueError("held_out: got a file without systems; expected both; fix: add --systems A B")
        return self

    @model_validator(mode="after")
    def _on_this_machine(self) -> Self:
        if not self.is_local and not self.yes_expose:
            raise ValueError(
                f"host: got {self.host}, which other machines may reach without encryption; expected 127.0.0.1; "
                "fix: leave it out and use `ssh -L 8765:127.0.0.1:8765 MACHINE`, or add --yes-expose"
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
        """The YAML file of settings that `judge` names, or None if it names a judge."""
        return Path(self.judge) if self.judge and self.judge.endswith((".yaml", ".yml")) else None

    @property
    def labels_path(self) -> Path:
        return self.labels or self.run / "labels.jsonl"
