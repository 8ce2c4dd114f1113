import gzip
import json

import pytest

from bixse.errors import InputError, InvalidFileError
from bixse.suites.suite_run import evaluate_suite
from bixse.suites.trec_dl import (
    candidate_lists,
    chosen_years,
    collapse_duplicates,
    judged_pool,
    look_up_passages,
    missing_files,
    read_columns,
    read_duplicates,
)

TEXTS = ["copy a file", "move a file", "sort a list", "wait in a thread", "read a line", "open a folder"]
"""Passages of each corpus; those of the second corpus lie in two of its files."""


def second_corpus():
    ids, files = [], {}
    for shard, texts in (("03", TEXTS[:3]), ("20", TEXTS[3:])):
        content = ""
        for text in texts:
            ids.append(f"msmarco_passage_{shard}_{len(content.encode())}")
            content += json.dumps({"pid": ids[-1], "passage": f"naïve {text}", "spans": "", "docid": "x"}) + "\n"
        files[f"msmarco_passage_{shard}.gz"] = content
    return ids, files


IDS, FILES = second_corpus()


def pack(path, text):
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def data(tmp_path):
    """A tiny folder of all files of all years under their official names."""
    (tmp_path / "trec" / "msmarco_v2_passage").mkdir(parents=True)
    folder = tmp_path / "trec"
    (folder / "collection.tsv").write_text("".join(f"{number}\t{text}\n" for number, text in enumerate(TEXTS)))
    for name, content in FILES.items():
        pack(folder / "msmarco_v2_passage" / name, content)
    for year in ("2019", "2020"):
        queries = f"{year}1\tcopy a file\n{year}2\twait in a thread\n{year}9\tnever judged\n"
        pack(folder / f"msmarco-test{year}-queries.tsv.gz", queries)
        grades = f"{year}1 Q0 0 3\n{year}1 Q0 1 1\n{year}2 Q0 3 2\n{year}2 Q0 2 0\n"
        if year == "2019":  # packed or not
            pack(folder / f"{year}qrels-pass.txt.gz", grades)
        else:
            (folder / f"{year}qrels-pass.txt").write_text(grades)
        rows = [(f"{year}1", 0), (f"{year}1", 2), (f"{year}2", 3), (f"{year}9", 1)]
        lines = [f"{query}\t{number}\tquery\t{TEXTS[number]}\n" for query, number in rows]
        pack(folder / f"msmarco-passagetest{year}-top1000.tsv.gz", "".join(lines))
    for year, name in (("2021", "final"), ("2022", "withDupes"), ("2023", "withDupes")):
        (folder / f"{year}_queries.tsv").write_text(f"{year}1\topen a file\n{year}2\tsort a list\n")
        grades = [(f"{year}1", 0, 2), (f"{year}1", 1, 2), (f"{year}1", 5, 1), (f"{year}2", 2, 3)]
        lines = [f"{query} 0 {IDS[number]} {grade}\n" for query, number, grade in grades]
        (folder / f"{year}.qrels.pass.{name}.txt").write_text("".join(lines))
        listed = [(f"{year}1", 0), (f"{year}1", 4), (f"{year}2", 2)]
        lines = [f"{query} Q0 {IDS[number]} 1 9.5 first\n" for query, number in listed]
        pack(folder / f"{year}_passage_top100.txt.gz", "".join(lines))
    return folder


@pytest.fixture
def duplicates(data):
    """The second passage of the second corpus is a copy of the first one."""
    lines = f"{IDS[0]} {IDS[0]} naive copy\n{IDS[0]} {IDS[1]} naive move\n{IDS[2]} {IDS[2]} naive\n"
    pack(data / "msmarco-v2-passage-neardupes.txt.gz", lines)


@pytest.mark.parametrize("rerank", [False, True])
def test_missing_files_are_listed_with_their_commands(tmp_path, rerank):
    missing = "\n".join(missing_files(tmp_path, chosen_years(None), rerank))
    for name in ("2019qrels-pass.txt", "2021.qrels.pass.final.txt", "2022_queries.tsv"):
        assert f"{name}: curl -LO https://" in missing
    assert "msmarco_v2_passage.tar && tar xf" in missing
    assert ("collection.tar.gz" in missing) == (not rerank)
    assert ("2023_passage_top100.txt: curl" in missing) == rerank


def test_only_the_files_of_a_corpus_that_are_needed_are_missed(data):
    years = chosen_years(None)
    assert missing_files(data, years, False) == missing_files(data, years, True) == []
    (data / "msmarco_v2_passage" / "msmarco_passage_20.gz").unlink()
    (line,) = missing_files(data, years, False)
    assert "numbers 20:" in line


def test_passages_that_were_looked_up_replace_the_corpora(data):
    judged_pool(data, chosen_years(None))
    for path in (data / "collection.tsv", *(data / "msmarco_v2_passage").iterdir()):
        path.unlink()
    assert missing_files(data, chosen_years(None), False) == []
    task = judged_pool(data, chosen_years(None))
    assert dict(task.documents())["0"] == TEXTS[0]


@pytest.mark.parametrize("packed", [True, False])
def test_a_passage_is_read_at_the_offset_in_its_id(data, packed):
    path = data / "msmarco_v2_passage" / "msmarco_passage_20.gz"
    if not packed:
        path.with_suffix("").write_text(FILES[path.name])
        path.unlink()
    texts = dict(zip(IDS[3:], (f"naïve {text}" for text in TEXTS[3:]), strict=True))
    assert look_up_passages(data, {2: set(texts)}) == texts


@pytest.mark.parametrize("name", ["msmarco_passage_20_1", "123"])
def test_ids_that_no_passage_has(data, name):
    with pytest.raises(InputError, match=f"'{name}'"):
        look_up_passages(data, {2: {name}})


def test_damaged_files(data):
    (data / "x.tsv").write_text("1\tone\ntwo\n")
    with pytest.raises(InvalidFileError, match="row 2"):
        list(read_columns(data / "x.tsv", ("id", "text")))
    (data / "msmarco_v2_passage" / "msmarco_passage_20.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="fetch it again"):
        look_up_passages(data, {2: {"msmarco_passage_20_0"}})
    (data / "passages.jsonl").write_text('{"_id": "1"}\n')
    with pytest.raises(InvalidFileError, match=r"column 'text'"):
        look_up_passages(data, {1: {"1"}})


def test_unknown_years_and_missing_queries_are_refused(data):
    with pytest.raises(InputError, match="got '2018'; expected one of 2019"):
        chosen_years(["2018"])
    (data / "2021_queries.tsv").write_text("20211\topen a file\n")
    with pytest.raises(InputError, match="got no text of 1 judged queries, such as '20212'"):
        judged_pool(data, chosen_years(["2021"]))


def test_the_pool_is_the_union_of_judged_passages(data):
    task = judged_pool(data, chosen_years(None))
    ids = dict(task.documents())
    assert len(ids) == task.count == 4 + 4
    assert [judged.name for judged in task.query_sets] == ["2019", "2020", "2021", "2022", "2023"]
    assert task.min_relevant_grade == 2
    assert "never judged" not in task.query_sets[0].queries.values()


def test_propagated_duplicates_are_taken_back_where_the_classes_are_known(data, duplicates):
    task = judged_pool(data, chosen_years(None))
    sets = {judged.name: judged for judged in task.query_sets}
    assert list(sets)[5:] == ["2022 without duplicates", "2023 without duplicates"]
    without = sets["2022 without duplicates"]
    assert without.left_out == {IDS[1]}
    assert without.qrels["20221"] == {IDS[0]: 2.0, IDS[5]: 1.0}
    assert sets["2022"].qrels["20221"].keys() == {IDS[0], IDS[1], IDS[5]}


def test_the_one_that_stays_is_in_the_pool(tmp_path):
    (tmp_path / "classes.txt").write_text("outside a\noutside b\nc c text here\n")
    assert read_duplicates(tmp_path / "classes.txt", frozenset("abc")) == {"a": "outside", "b": "outside"}
    for grades in ({"a": 1.0, "b": 3.0, "c": 0.0}, {"a": 3.0, "b": 1.0, "c": 0.0}):
        assert collapse_duplicates({"q": grades}, {"b": "a"}) == {"q": {"a": 3.0, "c": 0.0}}


def test_a_suite_of_years(data, duplicates, tmp_path):
    result = evaluate_suite(["bm25"], "trec-dl", data, tmp_path / "out")
    scores = result.scores["bm25"]
    assert list(scores) == ["2019", "2020", "2021", "2022", "2023", *(f"{y} without duplicates" for y in (2022, 2023))]
    means = result.means["bm25"]
    years = [scores[str(year)].metrics["ndcg@10"] for year in range(2019, 2024)]
    assert means["mean over years"] == pytest.approx(sum(years) / 5)
    values = [value for year in range(2019, 2024) for value in scores[str(year)].by_query["ndcg@10"].values()]
    assert means["mean over queries"] == pytest.approx(sum(values) / len(values))
    without = [*years[:3], *(scores[f"{year} without duplicates"].metrics["ndcg@10"] for year in (2022, 2023))]
    assert means["mean over years without duplicates"] == pytest.approx(sum(without) / 5)
    assert any("got 2 judged queries in 2019qrels-pass.txt; expected 43" in note for note in result.notes)


def test_lists_of_the_first_corpus_hold_their_passages(data):
    task = candidate_lists(data, *chosen_years(["2020"]))
    assert task.query_sets[0].candidates == {"20201": ["0", "2"], "20202": ["3"]}
    assert dict(task.documents()) == {"0": TEXTS[0], "2": TEXTS[2], "3": TEXTS[3]}


def test_only_candidates_are_ranked_and_missed_passages_count(data):
    result = evaluate_suite(["bm25"], "trec-dl-rerank", data)
    scores = result.scores["bm25"]
    assert list(scores) == ["2019", "2020", "2021", "2022", "2023"]
    assert scores["2021"].by_query["recall@100"] == {"20211": 0.5, "20212": 1.0}  # one of two relevant ones is listed
    assert set(result.means["bm25"]) == {"mean over years", "mean over queries"}


def test_a_file_of_other_queries_is_refused(data):
    pack(data / "2021_passage_top100.txt.gz", "other Q0 msmarco_passage_03_0 1 9.5 first\n")
    with pytest.raises(InputError, match="got no list for any judged query of 2021"):
        evaluate_suite(["bm25"], "trec-dl-rerank", data, tasks=["2021"])
