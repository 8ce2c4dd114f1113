"""A tiny folder of TREC Deep Learning files under their official names."""

import gzip
import json

TEXTS = ["copy a file", "move a file", "sort a list", "wait in a thread", "read a line", "open a folder"]
"""Passages of each corpus; those of the second corpus lie in two of its files."""


def write_trec_folder(folder):
    """Write all files of all years; returns the ids of the second corpus by their texts' places."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{number}\t{text}\n" for number, text in enumerate(TEXTS)]
    (folder / "collection.tsv").write_text("".join(lines))
    ids = {}
    (folder / "msmarco_v2_passage").mkdir(exist_ok=True)
    for shard, start in ((3, 0), (20, 3)):
        content, offset = "", 0
        for number, text in enumerate(TEXTS[start : start + 3], start=start):
            identifier = f"msmarco_passage_{shard:02d}_{offset}"
            ids[str(number)] = identifier
            line = json.dumps({"pid": identifier, "passage": f"naïve {text}", "spans": "", "docid": "x"}) + "\n"
            content += line
            offset += len(line.encode())
        with gzip.open(folder / "msmarco_v2_passage" / f"msmarco_passage_{shard:02d}.gz", "wt") as file:
            file.write(content)
    for year in ("2019", "2020"):
        with gzip.open(folder / f"msmarco-test{year}-queries.tsv.gz", "wt") as file:
            file.write(f"{year}1\tcopy a file\n{year}2\twait in a thread\n{year}9\tnever judged\n")
        (folder / f"{year}qrels-pass.txt").write_text(
            f"{year}1 Q0 0 3\n{year}1 Q0 1 1\n{year}2 Q0 3 2\n{year}2 Q0 2 0\n"
        )
        rows = [(f"{year}1", "0"), (f"{year}1", "2"), (f"{year}2", "3"), (f"{year}9", "1")]
        with gzip.open(folder / f"msmarco-passagetest{year}-top1000.tsv.gz", "wt") as file:
            file.write("".join(f"{query}\t{name}\tquery\t{TEXTS[int(name)]}\n" for query, name in rows))
    names = {
        "2021": "2021.qrels.pass.final.txt",
        "2022": "2022.qrels.pass.withDupes.txt",
        "2023": "2023.qrels.pass.withDupes.txt",
    }
    for year, qrels in names.items():
        (folder / f"{year}_queries.tsv").write_text(f"{year}1\topen a file\n{year}2\tsort a list\n")
        grades = [(f"{year}1", "0", 2), (f"{year}1", "1", 2), (f"{year}1", "5", 1), (f"{year}2", "2", 3)]
        (folder / qrels).write_text("".join(f"{query} 0 {ids[number]} {grade}\n" for query, number, grade in grades))
        with gzip.open(folder / f"{year}_passage_top100.txt.gz", "wt") as file:
            for query, number in ((f"{year}1", "0"), (f"{year}1", "4"), (f"{year}2", "2")):
                file.write(f"{query} Q0 {ids[number]} 1 9.5 first\n")
    return ids


def write_duplicates(folder, ids):
    """Say that the second passage of the second corpus is a copy of the first one."""
    with gzip.open(folder / "msmarco-v2-passage-neardupes.txt.gz", "wt") as file:
        file.write(f"{ids['0']} {ids['0']} naive copy\n{ids['0']} {ids['1']} naive move\n{ids['2']} {ids['2']} naive\n")
