import pytest

from bixse.data.collection import Collection, load_collection, save_collection
from bixse.data.corpus import Document
from bixse.data.joined import Twins, Unjoined, check_joined
from bixse.data.trec import read_run
from bixse.errors import InvalidFileError


@pytest.mark.parametrize(
    ("lines", "is_other_order"),
    [
        (["1 0.9", "2 0.5"], False),
        (["2 0.5", "1 0.9"], False),  # the order of the lines says nothing
        (["1 0.5", "2 0.9"], True),
        (["1 0.5", "2 0.5"], False),
        (["1 0.5", "2 0.50000000001"], False),  # equal in float32
        (["0 0.1", "0 0.9"], False),  # a column of one number is no order
        (["x 0.1", "2 0.9"], False),
        (["1 0.9", "2 0.2", "3 0.8"], True),
        (["1 inf", "2 -inf"], False),
    ],
)
def test_ranks_of_another_order_than_the_scores(tmp_path, lines, is_other_order):
    rows = (f"q Q0 d{number} {line} tag" for number, line in enumerate(lines))
    (tmp_path / "a.run").write_text("\n".join(rows) + "\n")
    contradicted = []
    run = read_run(tmp_path / "a.run", contradicted)
    assert (len(run["q"]), contradicted) == (len(lines), ["q"] * is_other_order)


CORPUS = {"a": "copy a file", "b": "copy  a\nfile", "c": "move", "d": "", "e": " "}


@pytest.mark.parametrize(
    ("qrels", "count", "example"),
    [
        ({"q": {"a": 1}}, 1, "b"),
        ({"q": {"b": 1}}, 1, "a"),
        ({"q": {"a": 1, "b": 0}}, 0, ""),  # judged, whatever the grade
        ({"q": {"a": 0, "c": 1}}, 0, ""),
        ({"q": {"a": 1}, "r": {"b": 1}}, 2, "b"),  # each is judged, but for the other query
        ({"b": {"a": 1}}, 0, ""),  # the query itself
        ({"q": {"d": 1}}, 0, ""),  # documents without a text are no copies
    ],
)
def test_copies_of_relevant_documents_that_nobody_judged(tmp_path, qrels, count, example):
    twins = Twins(qrels)
    for name, text in CORPUS.items():
        twins.see(name, text)
    counted = twins.count(qrels, lambda: iter(CORPUS))
    assert (counted.count, counted.total, counted.example) == (count, 5, example)
    corpus = {name: Document("", text) for name, text in CORPUS.items()}
    save_collection(Collection("toy", corpus, dict.fromkeys([*qrels, "other"], "x"), {"test": qrels}), tmp_path / "toy")
    assert len(load_collection(tmp_path / "toy").warnings) == bool(count)


def test_more_than_half_is_refused_and_half_is_a_warning():
    half, most, none = (Unjoined.of("lost ids", "abcd", known, "they stay") for known in ("ab", "a", "abcd"))
    (warning,) = check_joined("some/file.tsv", [half, none], "")
    assert warning == "file.tsv: 2 of 4 lost ids, for example 'c', 'd'; they stay"
    for parts, options in (([most], {}), ([half], {"every": True})):
        with pytest.raises(InvalidFileError) as raised:
            check_joined("some/file.tsv", parts, "look", **options)
        assert (raised.value.got, raised.value.fix) == (str(parts[0]), "look")
    assert len(check_joined("file", [most, half], "", allowed=True)) == 2


def test_each_text_is_hashed_once_for_all_splits(tmp_path, monkeypatch):
    texts, see = [], Twins.see
    monkeypatch.setattr(Twins, "see", lambda twins, *document: (texts.append(document), see(twins, *document)))
    corpus = {name: Document("", text) for name, text in CORPUS.items()}
    splits = {"dev": {"q": {"a": 1}}, "test": {"q": {"a": 1, "b": 0}}, "train": {"q": {"b": 1}}}
    save_collection(Collection("toy", corpus, {"q": "x"}, splits), tmp_path / "toy")
    warnings = load_collection(tmp_path / "toy").warnings
    assert [line.split(":")[0] for line in warnings] == ["dev.tsv", "train.tsv"]
    assert len(texts) == len(CORPUS)
