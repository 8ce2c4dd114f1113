import hashlib
import json
import shutil

import pytest

from bixse.data import pydocs
from bixse.errors import InputError

SHIPPED = ("corpus.jsonl.gz", "queries.jsonl", *(f"qrels/{split}.tsv" for split in pydocs.SPLITS))


@pytest.fixture(scope="module")
def loaded():
    return pydocs.load_pydocs()


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, lambda path: path.unlink()) for name in SHIPPED),
        *((name, lambda path: path.write_bytes(b"\xff\xfe\x00")) for name in SHIPPED),
        ("corpus.jsonl.gz", flip_a_bit),
    ],
)
def test_missing_or_damaged_file_is_named(tmp_path, monkeypatch, name, damage):
    shutil.copytree(pydocs.FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(pydocs, "FOLDER", tmp_path)
    damage(tmp_path / name)
    with pytest.raises(InputError, match=name):
        pydocs.load_pydocs()


def test_documents_are_those_that_were_graded(loaded):
    """The digest is of what Python 3.11.7 under Linux documented when the queries were graded."""
    content = json.dumps([[name, document.title, document.text] for name, document in loaded.corpus.items()])
    assert (
        hashlib.sha256(content.encode()).hexdigest()
        == "ecbcd951e402ff1101605ef31e200ae77808d85c17ed35f88c67b253a8686c97"
    )


def test_judgements_name_documents_and_every_query_has_a_solution(loaded):
    judged = [row for qrels in loaded.qrels.values() for row in qrels.values()]
    graded = {document for row in judged for document in row}
    assert (sum(map(len, judged)), len(graded), graded <= loaded.corpus.keys()) == (12_883, 3864, True)
    assert all(max(row.values()) >= pydocs.PYDOCS_RELEVANT_GRADE for row in judged)


def test_every_query_has_a_kind_and_one_split(loaded):
    assert {name: len(qrels) for name, qrels in loaded.qrels.items()} == {
        "train": 679, "dev": 109, "test": 266, "guard": 45,
    }  # fmt: skip
    assert sorted(query for qrels in loaded.qrels.values() for query in qrels) == sorted(loaded.queries)
    rows = map(json.loads, (pydocs.FOLDER / "queries.jsonl").read_text(encoding="utf-8").splitlines())
    kinds = {row["_id"]: row["kind"] for row in rows}
    assert kinds.keys() == loaded.queries.keys()
    assert set(kinds.values()) == {"howto", "keyword", "symptom", "concept", "task"}
