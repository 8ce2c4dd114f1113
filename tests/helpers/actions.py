"""A small collection that a static encoder learns in a second."""

from bixse.data.collection import Collection, Document

ACTIONS = [
    *("copy", "move", "delete", "rename", "open", "close", "read", "write", "list", "sort", "search", "replace"),
    *("split", "join", "parse", "format", "encode", "decode", "compress", "send", "receive", "connect", "listen"),
    *("wait", "start", "stop", "pause", "resume", "log", "test"),
]
THINGS = ["a file", "a folder", "an archive", "a stream"]


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
