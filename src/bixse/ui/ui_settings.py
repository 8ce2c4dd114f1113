"""Settings of `bixse ui`: the shown folder, the access to it, and the judge that edited rubrics are tried on."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from bixse.errors import SEEDS
from bixse.judging.grade_settings import NamedRubric, Prices
from bixse.judging.open_judge import JudgeSettings
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from typing import Self


class UiSettings(Settings):
    """Settings of `bixse ui`.

    Example:
        >>> settings = UiSettings(run="runs/grade")
        >>> settings.labels_path.as_posix(), settings.host
        ('runs/grade/labels.jsonl', '127.0.0.1')
    """

    run: Annotated[Path, Flag(metavar="RUN_FOLDER", positional=True)]
    """Output folder of `bixse grade` (or any folder, with pairs)."""
    pairs: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Pairs with their texts: what was graded; null: pairs.parquet in the folder, which lacks those without a grade."""
    labels: Annotated[Path | None, Flag(metavar="FILE")] = None
    """People's labels, one line per event, only ever added to; null: labels.jsonl in the folder."""
    runs: Annotated[tuple[Path, ...], Flag(metavar="FILE")] = ()
    """TREC runs of systems: pairs that they rank differently come sooner."""
    judge: Annotated[JudgeSettings | None, Flag(flat=True)] = None
    """The judge that an edited rubric is tried on, as of `bixse grade`."""
    prices: Annotated[Prices, Flag(flat=True)] = Prices()
    """What tokens cost, and the most that a trial may spend."""
    rubric: NamedRubric = None
    """Rubric that people label by; null: the one the folder was graded with, else trec-dl-0-3."""
    planned: int = Field(default=400, ge=1)
    """Pairs to label in all: that many are drawn, with known probabilities."""
    overlap: Annotated[float, Field(ge=0, le=1), Flag(metavar="SHARE")] = 0.1
    """Share of the pairs that everybody labels; the others are labelled by one person each."""
    width: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Width of the interval of agreement that labelling aims at."""
    tried: int = Field(default=50, ge=2)
    """Labelled pairs that an edited rubric is tried on."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of all draws."""
    systems: Annotated[tuple[str, ...], Flag(metavar="SYSTEM")] = ()
    """Two systems to compare: each a model, an index folder, bm25, a TREC run, or an output folder of `bixse evaluate`;
    the second is held against the first."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder with corpus.jsonl, queries.jsonl and qrels, on which they answer."""
    split: str = "test"
    """Split of the collection whose queries and judgements are used."""
    min_relevant_grade: float = Field(default=MIN_RELEVANT_GRADE, gt=0)
    """Grade from which a document counts as relevant for recall, MRR and MAP."""
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
    def labels_path(self) -> Path:
        return self.labels or self.run / "labels.jsonl"
