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


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """A copy of the shipped files that a test may damage."""
    for name in SHIPPED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(pydocs.FOLDER / name, tmp_path / name)
    monkeypatch.setattr(pydocs, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["missing", "not text"])
def test_a_file_that_cannot_be_read(damaged, name, content):
    if content is None:
        (damaged / name).unlink()
    else:
        (damaged / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        pydocs.load_pydocs()


def test_a_flipped_bit_in_the_corpus_is_seen(damaged):
    content = bytearray((damaged / "corpus.jsonl.gz").read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / "corpus.jsonl.gz").write_bytes(content)
    with pytest.raises(InputError, match="reinstall"):
        pydocs.load_pydocs()


def test_the_documents_are_those_that_were_graded(loaded):
    """The digest is of what Python 3.11.7 under Linux documented when the queries were graded."""
    content = json.dumps([[name, document.title, document.text] for name, document in loaded.corpus.items()])
    assert (
        hashlib.sha256(content.encode()).hexdigest()
        == "ecbcd951e402ff1101605ef31e200ae77808d85c17ed35f88c67b253a8686c97"
    )
    assert {name: len(table) for name, table in loaded.qrels.items()} == {
        "train": 679, "dev": 109, "test": 266, "guard": 45,
    }  # fmt: skip
    assert sum(len(row) for table in loaded.qrels.values() for row in table.values()) == 12_883
    graded = {document for table in loaded.qrels.values() for row in table.values() for document in row}
    assert len(graded) == 3864
    assert graded <= loaded.corpus.keys()
    for table in loaded.qrels.values():
        assert all(max(row.values()) >= pydocs.PYDOCS_RELEVANT_GRADE for row in table.values())


def test_documents_follow_the_rules(loaded):
    corpus = loaded.corpus
    assert list(corpus) == sorted(corpus)
    assert len({document.text for document in corpus.values()}) == len(corpus)
    for identifier, document in corpus.items():
        assert document.title.startswith(identifier)
        assert len(document.title) <= 120 or document.title == identifier
        assert document.text == " ".join(document.text.split())
        assert len(document.text.split()) >= 6
        assert " at 0x" not in document.title + document.text
    assert "os.path.join" in corpus and "posixpath.join" not in corpus
    assert not any(name.split(".")[0] in ("this", "antigravity", "tkinter", "test") for name in corpus)


def test_every_query_has_a_kind_and_one_split(loaded):
    assert pydocs.query_kinds().keys() == loaded.queries.keys()
    assert set(pydocs.query_kinds().values()) == {"howto", "keyword", "symptom", "concept", "task"}
    in_splits = [query for table in loaded.qrels.values() for query in table]
    assert sorted(in_splits) == sorted(loaded.queries)
