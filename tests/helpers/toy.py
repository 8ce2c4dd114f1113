"""A collection of four documents, the first of which is a query too."""

from bixse.data.collection import Collection, Document, save_collection

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
