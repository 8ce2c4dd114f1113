"""Files of JSON lines and of YAML, and the rows and columns of the errors that a reader finds in a file."""

import json

import pytest
import yaml

from bixse.errors import InvalidFileError


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def yaml_file(folder, content, name="run.yaml"):
    """Write a text as it is, or settings."""
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def faults(read, *given, **options):
    """Row and column of every error; each has its facts."""
    with pytest.raises(InvalidFileError) as caught:
        read(*given, **options)
    assert all(error.got and error.expected and error.fix for error in caught.value.errors)
    return [(error.row, error.column) for error in caught.value.errors]
