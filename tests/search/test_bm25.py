import math
import os
import re
import subprocess
import sys

import pytest

from bixse.errors import InputError
from bixse.evaluation.systems import Bm25System
from bixse.search import bm25
from bixse.search.bm25 import BM25
from bixse.search.tasks import QuerySet, Task

TEXTS = {
    "d1": "the cat sat on a mat and the cat slept",
    "d2": "dogs chase cats",
    "d3": "a treatise on quantum field theory with very many words about fields and fields again",
    "d4": "C and R are languages",
    "d5": "",
}


def naive_bm25(texts, query, k1, b):
    """Lucene's formula in plain loops over lower-cased words, without stemming."""
    words = {name: re.findall(r"\w+", text.lower()) for name, text in texts.items()}
    average = sum(map(len, words.values())) / len(words)
    scores = {}
    for name, terms in words.items():
        total = 0.0
        for term in re.findall(r"\w+", query.lower()):
            frequency, containing = terms.count(term), sum(term in other for other in words.values())
            idf = math.log(1 + (len(words) - containing + 0.5) / (containing + 0.5))
            if frequency:
                total += idf * frequency / (frequency + k1 * (1 - b + b * len(terms) / average))
        if total > 0:
            scores[name] = total
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (0.0, 0.0), (2.0, 1.0)])
@pytest.mark.parametrize("query", ["cats", "the cat on a mat", "fields and the cat cat", "C", "unknown", ""])
def test_scores_equal_the_formula(query, k1, b, monkeypatch):
    for name, value in (("K1", k1), ("B", b), ("STEMMER", None)):
        monkeypatch.setattr(bm25, name, value)
    index = BM25(list(TEXTS), list(TEXTS.values()))
    assert index.search({"q": query}, top_k=10)["q"] == pytest.approx(naive_bm25(TEXTS, query, k1, b), rel=1e-5)


def test_stemming_joins_word_forms():
    assert set(BM25(list(TEXTS), list(TEXTS.values())).search({"q": "Cat"}, top_k=10)["q"]) == {"d1", "d2"}


@pytest.mark.parametrize("top_k", [1, 2, 3, 100])
def test_ties_go_to_the_higher_document_id_also_at_the_cut(top_k):
    ids = ["b", "d", "a", "c"]
    assert list(BM25(ids, ["same text"] * 4).search({"q": "text"}, top_k)["q"]) == ["d", "c", "b", "a"][:top_k]


@pytest.mark.parametrize(("exclude_self", "best"), [(False, "a"), (True, "b")])
def test_self_matches_can_be_left_out_before_the_cut(exclude_self, best):
    corpus = {"a": "copy files", "b": "copy files fast", "c": "copy some files fast"}
    queries = QuerySet("test", {"a": "copy files"}, {})
    run = Bm25System().search(Task("t", lambda: iter(corpus.items()), 3, (queries,), exclude_self), 1)["test"]
    assert list(run["a"]) == [best]


@pytest.mark.parametrize(
    ("ids", "texts", "query"),
    [([], [], "copy"), (["d"], [""], "copy"), (["d", "e"], ["", "!?"], "copy"), (["d"], ["the of"], "the of")],
)
def test_a_corpus_or_query_without_words_has_no_results(ids, texts, query):
    assert BM25(ids, texts).search({"q": query}, 5) == {"q": {}}


PROGRAM = """
import sys
from bixse.search.bm25 import BM25
assert "bm25s" not in sys.modules
texts = [" ".join(f"w{n * k % 17}" for k in range(9)) for n in range(50)]
run = BM25([f"d{n}" for n in range(50)], texts).search({"q": "w1 w3 w5 w7 w16"}, 20)
sys.stdout.write(repr(run))
"""


def test_the_index_is_silent_and_the_same_in_every_process():
    command = [sys.executable, "-c", PROGRAM]
    runs = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.startswith(b"{'q': {'d")
    assert runs[0].stderr == runs[1].stderr == b""


def test_a_top_k_of_0_is_refused():
    with pytest.raises(InputError, match="top_k: got 0"):
        BM25(["d"], ["a"]).search({"q": "a"}, top_k=0)
