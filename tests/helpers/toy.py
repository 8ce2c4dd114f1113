"""The small collections of all tests, and their indexes: four documents, and 120 that an encoder learns in a second."""

from pathlib import Path

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document

BERT_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
"""Of the tiny encoders."""
ACTIONS = """
copy move delete rename open close read write list sort search replace split join parse format encode decode compress
send receive connect listen wait start stop pause resume log test
""".split()  # noqa: SIM905
THINGS = ["a file", "a folder", "an archive", "a stream"]
CORPUS = {
    "q1": Document("", "copy a file to a folder"),
    "d2": Document("copy", "a file to a path"),
    "d3": Document("", "wait in a thread"),
    "d4": Document("", "sort a list"),
}
QUERIES = {"q1": "copy a file to a folder", "q2": "wait in a thread", "q3": "sort a list of words"}
QRELS = {"q1": {"d2": 2}, "q2": {"d3": 1, "d4": 0}, "q3": {"d4": 3}}


def save_toy(folder, qrels=QRELS, split="test"):
    save_collection(Collection(folder.name, CORPUS, QUERIES, {split: qrels}), folder)
    return folder


def action_collection(splits=True):
    """30 actions x 4 things: a query asks for one, the other things of the same action are partly relevant."""
    corpus = {
        f"{word}-{i}": Document(word, f"how to {word} {thing}") for word in ACTIONS for i, thing in enumerate(THINGS)
    }
    queries, qrels = {}, {}
    for number, word in enumerate(ACTIONS):
        for i, thing in enumerate(THINGS[:2]):
            query = f"q{number}-{i}"
            queries[query] = f"{word} {thing} please"
            qrels[query] = {f"{word}-{j}": (3 if j == i else 1) for j in range(len(THINGS))}
            qrels[query][f"{ACTIONS[(number + 1) % len(ACTIONS)]}-{i}"] = 0
    names = list(qrels)
    parts = {"train": names[:30], "dev": names[30:40], "test": names[40:]} if splits else {"test": names}
    return Collection("actions", corpus, queries, {name: {q: qrels[q] for q in part} for name, part in parts.items()})


def index_of(model, collection, out, **settings):
    """Make an index with a model's folder or a loaded model."""
    from bixse.index.index_settings import IndexSettings
    from bixse.index.make_index import make_index

    loaded = None if isinstance(model, (str, Path)) else model
    name = str(model) if loaded is None else "in memory"
    return make_index(IndexSettings(model=name, collection=collection, **settings), out, model=loaded)
