"""Report files: write whole or not at all, read with every fault named."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from bixse.data.io.files import write_atomically
from bixse.errors import InputError, InvalidFileError, RowError, shorten
from bixse.report.schema import ReportData


def save_report_data(data: ReportData, path: Path | str) -> None:
    """Write the data of a report as JSON, so that the page can be drawn again.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    write_atomically(Path(path), data.model_dump_json(indent=2) + "\n")


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
            "fix: name the JSON file that the run wrote"
        ) from error
    try:
        return ReportData.model_validate_json(content)
    except ValidationError as error:
        faults = [
            RowError(
                row=None,
                column=".".join(map(str, fault["loc"])) or None,
                got=shorten(fault["input"]),
                expected=fault["msg"],
                fix="write the file again with the command that made it",
            )
            for fault in error.errors()
        ]
        raise InvalidFileError(source, faults) from error
