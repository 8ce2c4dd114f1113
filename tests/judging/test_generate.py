from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from bixse.data.pairs_files import load_pairs
from bixse.errors import InputError, InterruptedRunError, StorageError
from bixse.judging import generate as module
from bixse.judging.generate import clean_query, generate, refusal
from bixse.judging.judge import Completion, Usage
from bixse.judging.open_judge import GenerateConfig
from helpers.row_files import jsonl
from helpers.scripted_judge import ScriptedModel

DOCUMENTS = {f"d{i}": f"page number {i} tells how to do thing {i} with tool {i}" for i in range(12)}
TEXTS = {name: f"how does thing {i} work" for i, name in enumerate(DOCUMENTS)}


@pytest.fixture
def corpus(tmp_path):
    return jsonl(tmp_path / "corpus.jsonl", *({"_id": name, "text": text} for name, text in DOCUMENTS.items()))


def writer(texts):
    return ScriptedModel(rule=lambda question: Completion("written", texts[question.document_id]))


def settings(**given):
    return GenerateConfig(writer={"server": "http://127.0.0.1:1"}, **given)


def names(out):
    return [json.loads(line)["text"] for line in (out / "queries.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("how to copy a folder", "how to copy a folder"),
        ('  "how to copy\ta  folder"\n\nThis asks for ...', "how to copy a folder"),
        ("1. Search query: 'how to copy a folder'", "how to copy a folder"),
        ("**how to copy a folder**", "how to copy a folder"),
        ("<think>the page is on\nfolders</think>\nhow to copy a folder", "how to copy a folder"),
        ("<think>the page is on folders, and", ""),
        ("3.14 as a fraction", "3.14 as a fraction"),
        ("Q-learning convergence proof", "Q-learning convergence proof"),
        ("I should write a query.\n</think>\n\nhow to copy a folder", "how to copy a folder"),
        ('"affect" or "effect"', '"affect" or "effect"'),
        ("what does `foo` mean in `bar`", "what does `foo` mean in `bar`"),
        ("**args** or **kwargs**", "**args** or **kwargs**"),
        ("Here is a query:", ""),
        ("Sure! Here's a search query for this page: how to copy a folder", "how to copy a folder"),
        ("Certainly.\n**Here are some queries:**\n1. how to copy a folder", "how to copy a folder"),
        ("sure shot camera manual", "sure shot camera manual"),
        ("here comes the sun chords", "here comes the sun chords"),
        ('["how to copy a folder", "what is a folder"]', "how to copy a folder"),
        ('{"query": "how to copy a folder"}', "how to copy a folder"),
        (
            'Here are two:\n```json\n{\n  "queries": [\n    {"query": "how to copy a folder"}\n  ]\n}\n```',
            "how to copy a folder",
        ),
        ('Query: ["how to copy a folder"]', "how to copy a folder"),
        ('{"query": "how to copy', ""),
        ("['how to copy a folder']", ""),
        ('{"count": 3}', ""),
        ('{"why": "it is about folders", "Question": "how to copy a folder"}', "how to copy a folder"),
        ('{"topic": "folders", "why": "asked often"}', ""),
        ("**Query:** how to copy a folder", "how to copy a folder"),
        ("**Query 1**: how to copy a folder", "how to copy a folder"),
        ("- __Question:__ how to copy a folder", "how to copy a folder"),
        ("## **Query**\nhow to copy a folder", "how to copy a folder"),
        ("<query>how to copy a folder</query>", "how to copy a folder"),
        ("```\nhow to copy a folder\n```", "how to copy a folder"),
        ("# How to copy a folder", "How to copy a folder"),
        ("## query: how to copy a folder", "how to copy a folder"),
        ('### "How to copy a folder"', "How to copy a folder"),
        *((text, text) for text in ("# of moons of jupiter", "{{ template }} syntax in jinja", "{} in javascript")),
        *((text, text) for text in ('{"a": 1} in javascript', "#hashtag meaning", "{x: x > 0} set notation")),
        ("{}", ""),
        ("[2023] election results", "[2023] election results"),
        ("[a] or (a) in regex", "[a] or (a) in regex"),
    ],
)
def test_a_written_text_becomes_a_query(text, query):
    assert clean_query(text) == query


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("?!", "empty"),
        ("word " * 41, "too long"),
        ("quick brown fox jumps over the lazy dog", "copied"),
        ("why does the fox jump over a dog", None),
        ("what is 日本語", None),
        ("I'm sorry, I can't help with that.", "declined"),
        ("i can't log in to my account", None),
        ("how to say I'm sorry, in French", None),
        ("sorry seems to be the hardest word", None),
        ("None.", "placeholder"),
        ("N/A", "placeholder"),
        ("null pointer exception", None),
    ],
)
def test_a_text_without_a_query_is_refused(query, reason):
    assert refusal(query, "The quick brown fox jumps over the lazy dog near the river bank.") == reason


def test_each_query_is_kept_once_with_its_document(corpus, tmp_path):
    texts = dict(TEXTS)
    texts["d3"] = "Things 2, how does it work"  # not the same words as another
    texts["d4"] = "How does things 2 work?"  # that of d2
    texts |= {"d5": "", "d6": "I'm sorry, I can't help with that.", "d7": "N/A", "d8": "Here is a query:\nwhat is it"}
    statuses = {"d9": "truncated", "d10": "filtered", "d11": "failed"}
    model = ScriptedModel(
        rule=lambda question: Completion(statuses.get(question.document_id, "written"), texts[question.document_id])
    )
    result = generate(settings(corpus=corpus), model, tmp_path / "out")
    assert result.refused == dict.fromkeys(
        ["declined", "empty", "failed", "filtered", "placeholder", "repeated", "truncated"], 1
    )
    assert (result.queries, len(names(tmp_path / "out"))) == (5, 5)
    assert "what is it" in names(tmp_path / "out")
    pairs = load_pairs(tmp_path / "out" / "pairs.parquet")
    assert {pair.document_id for pair in pairs} == {"d0", "d1", "d2", "d3", "d8"}
    assert pairs[0].document == DOCUMENTS["d0"]
    table = pq.read_table(tmp_path / "out" / "pairs.parquet")
    assert "relevance" not in table.column_names, "that a query was written for a document is no grade"
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "interrupted", "a failed text is asked for again"


def test_a_rerun_writes_nothing_again_and_a_budget_stops(corpus, tmp_path):
    usage = Usage(prompt=1000)
    first = ScriptedModel(rule=lambda q: Completion("written", TEXTS[q.document_id], usage), ahead=1)
    second, third, config = writer(TEXTS), writer(TEXTS), settings(corpus=corpus)
    limited = settings(corpus=corpus, prices={"per_million": [1, 1], "max_usd": 0.0055})
    stopped = generate(limited, first, tmp_path / "out")
    assert (len(first.asked), stopped.queries, stopped.not_asked) == (5, 5, 7)
    assert "0.0055 US dollars" in stopped.stopped
    generate(config, second, tmp_path / "out")
    result = generate(config, third, tmp_path / "out")
    assert (len(second.asked), len(third.asked), result.reused) == (7, 0, 12)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, StorageError])
def test_stopped_in_the_middle_it_writes_what_is_there_and_goes_on(corpus, tmp_path, stop):
    def rule(question):
        if question.document_id == "d5":
            raise stop("now")
        return Completion("written", f"what is {question.document_id}")

    with pytest.raises(InterruptedRunError if stop is KeyboardInterrupt else stop):
        generate(settings(corpus=corpus), ScriptedModel(rule=rule, ahead=1), tmp_path / "out")
    assert names(tmp_path / "out") == [f"what is d{number}" for number in range(5)]
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == ("interrupted" if stop is KeyboardInterrupt else "failed")
    assert (record["results"]["asked"], record["results"]["not_asked"]) == (5, 7)
    files = {"ledger", "pairs.parquet", "queries.jsonl", "run.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    after = writer(TEXTS)
    assert (generate(settings(corpus=corpus), after, tmp_path / "out").reused, len(after.asked)) == (5, 7)


def test_several_queries_per_document_of_a_growing_draw(corpus, tmp_path):
    found = []
    for count in (3, 6):
        model = ScriptedModel(rule=lambda q: Completion("written", f"{q.document_id} asked in way {q.repeat}"))
        config = settings(corpus=corpus, documents=count, per_document=4)
        result = generate(config, model, tmp_path / str(count))
        assert (result.documents, result.queries) == (count, 4 * count)
        assert {question.repeat for question in model.asked} == {0, 1, 2, 3}
        found.append({question.document_id for question in model.asked})
    assert found[0] < found[1]


def test_the_prompt_has_examples_or_instructions_of_a_file_and_the_cut_document(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DOCUMENT_CHARACTERS", 11)
    judge = writer(TEXTS)
    generate(settings(corpus=corpus), judge, tmp_path / "examples")
    messages = judge.asked[0].messages
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 3, "user"]
    assert messages[-1]["content"] == "Text: page number"
    path = tmp_path / "prompt.txt"
    path.write_text("Write {one} question.\n")
    judge = writer(TEXTS)
    generate(settings(corpus=corpus, prompt=path), judge, tmp_path / "out")
    contents = [message["content"] for message in judge.asked[0].messages]
    assert contents == ["Write {one} question.", "Text: page number"]
    with pytest.raises(InputError, match="No such file"):
        generate(settings(corpus=corpus, prompt=tmp_path / "none"), judge, tmp_path / "other")


def test_a_corpus_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        generate(settings(corpus=tmp_path / "none.jsonl"), writer({}), tmp_path / "out")
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": " "}\n')
    with pytest.raises(InputError, match="texts"):
        generate(settings(corpus=tmp_path / "c.jsonl"), writer({}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
