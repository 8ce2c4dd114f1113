"""Report files: write whole or not at all, read with every fault named."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from bixse.errors import Fault, InputError, InvalidFileError, StorageError, shorten
from bixse.report.schema import ReportData


def write_text(path: Path | str, text: str) -> None:
    """Write a text file so that a reader sees the old file or the new one, never half of one.

    The folder is made when it is missing. The text goes to a temporary file beside the target, then takes its
    name.

    Raises:
        StorageError: if the folder cannot be made or written, or the disk is full.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(target)
    except OSError as error:
        if temporary.is_file():
            temporary.unlink()
        raise StorageError(
            f"{target}: got {error.strerror or error} while writing; expected a folder that can be written; "
            "to mend: free some space or name another place"
        ) from error


def save_report_data(data: ReportData, path: Path | str) -> None:
    """Write the data of a report as JSON, so that the page can be drawn again.

    Raises:
        StorageError: as `write_text`.
    """
    write_text(path, data.model_dump_json(indent=2) + "\n")


def load_report_data(path: Path | str) -> ReportData:
    """Read what `save_report_data` wrote.

    Raises:
        InputError: if there is no such file or it cannot be read.
        InvalidFileError: if it is not JSON or breaks the schema; every fault is named.
    """
    source = Path(path)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise InputError(
            f"{source}: got {error.strerror or error}; expected the report data of a run; "
            "to mend: name the JSON file that the run wrote"
        ) from error
    try:
        return ReportData.model_validate_json(content)
    except ValidationError as error:
        faults = [
            Fault(
                row=None,
                column=".".join(map(str, fault["loc"])) or None,
                found=shorten(fault["input"]),
                expected=fault["msg"],
                fix="write the file again with the command that made it",
            )
            for fault in error.errors()
        ]
        raise InvalidFileError(source, faults) from error
