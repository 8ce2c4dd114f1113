"""`ExportSettings` and `PushSettings`: the settings of `bixse export` and `bixse push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from bixse.settings import Flag, Reads, Settings

Target: TypeAlias = Literal["onnx", "onnx-int8", "openvino"]


class ExportSettings(Settings):
    """The settings of `bixse export`."""

    model: Annotated[str, Flag(metavar="MODEL", positional=True), Reads("model")]
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo])."""
    to: Target = "onnx"
    """Runtime of the graph. onnx-int8 has weights of 8 bits, except for the token embeddings."""
    collection: Annotated[Path | None, Flag(metavar="DIR"), Reads("collection")] = None
    """Collection folder. The graph is checked on its texts, and an int8 graph also searches it. Without it and without
    pairs, the sample collection is used."""
    split: str = "test"
    """Split of the collection (qrels/SPLIT.tsv) with the queries."""
    pairs: Annotated[Path | None, Flag(metavar="FILE"), Reads("pairs")] = None
    """Pairs whose texts the graph is checked on, instead of a collection (.parquet .jsonl .csv .tsv)."""
    task: str | None = None
    """Task whose instructions become the prompts. Null takes the model's default prompts."""
    dimensions: Annotated[int | None, Flag(metavar="D")] = Field(default=None, ge=2)
    """Number of dimensions that embeddings are cut to. Null keeps them complete."""
    anyway: bool = False
    """Write the graph even if its embeddings differ, or if its ranking is worse."""

    @model_validator(mode="after")
    def _has_what_is_compared(self) -> Self:
        if self.to == "onnx-int8" and self.pairs is not None:
            raise ValueError(
                "got pairs for onnx-int8; expected a collection, since int8 is judged by its ranking; fix: give "
                "--collection DIR"
            )
        if self.split != "test" and self.collection is None:
            raise ValueError("got split without collection; expected both; fix: give --collection DIR, or leave it out")
        return self.at_most_one("collection", "pairs")


class PushSettings(Settings):
    """The settings of `bixse push`."""

    model: Annotated[Path, Flag(metavar="MODEL", positional=True), Reads("model")]
    """Model folder, or a run folder that holds a model."""
    name: Annotated[str, Flag(metavar="OWNER/NAME", positional=True)]
    """Name of the repository on the hub."""
    private: bool = False
    """Make the new repository private."""
    update: bool = False
    """Add a commit to a repository that exists."""
