"""Writing queries, with a writer whose texts are known."""

import json

import pyarrow.parquet as pq
import pytest

from bixse.data.pairs_files import load_pairs
from bixse.errors import InputError, InterruptedRunError, StorageError
from bixse.judging.generate import generate as module
from bixse.judging.generate.generate import clean_query, generate, refusal, same_query
from bixse.judging.generate.generate_settings import GenerateConfig
from bixse.judging.judge import Completion, Usage
from helpers.scripted_judge import ScriptedModel

DOCUMENTS = {f"d{i}": f"page number {i} tells how to do thing {i} with tool {i}" for i in range(12)}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    rows = [{"_id": name, "title": "", "text": text} for name, text in DOCUMENTS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def writer(texts):
    """A writer that gives each document its text."""
    return ScriptedModel(rule=lambda question: Completion("written", texts[question.document_id]))


def settings(**given):
    return GenerateConfig(writer={"server": "http://127.0.0.1:1"}, **given)


def names(out):
    return [json.loads(line)["text"] for line in (out / "queries.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("how to copy a folder", "how to copy a folder"),
        ("Query: how to copy a folder", "how to copy a folder"),
        ('  "how to copy\ta  folder"\n\nThis asks for ...', "how to copy a folder"),
        ("1. Search query: 'how to copy a folder'", "how to copy a folder"),
        ("**how to copy a folder**", "how to copy a folder"),
        ("- how to copy a folder\n- how to move it", "how to copy a folder"),
        ("<think>the page is on\nfolders</think>\nhow to copy a folder", "how to copy a folder"),
        ("<think>the page is on folders, and", ""),
        ("", ""),
        ("3.14 as a fraction", "3.14 as a fraction"),
        ("Q-learning convergence proof", "Q-learning convergence proof"),
        ("question-answering models", "question-answering models"),
        ("I should write a query.\n</think>\n\nhow to copy a folder", "how to copy a folder"),
        ('"affect" or "effect"', '"affect" or "effect"'),
        ("what does `foo` mean in `bar`", "what does `foo` mean in `bar`"),
        ("*args and **kwargs", "*args and **kwargs"),
        ("wie kopiere ich Ordner?", "wie kopiere ich Ordner?"),
        ("Here is a query:\n\nhow to copy a folder", "how to copy a folder"),
        ("Here is a query:", ""),
        ("Sure! Here's a search query for this page: how to copy a folder", "how to copy a folder"),
        ("Certainly.\n**Here are some queries:**\n1. how to copy a folder", "how to copy a folder"),
        ("Query:\nhow to copy a folder", "how to copy a folder"),
        ("sure shot camera manual", "sure shot camera manual"),
        ("here comes the sun chords", "here comes the sun chords"),
    ],
)
def test_what_a_model_wrote_becomes_a_query(text, query):
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
        ("I\u2019m sorry, but this text holds nothing to ask for.", "declined"),
        ("Sorry, I cannot do that", "declined"),
        ("I cannot generate a query for this text.", "declined"),
        ("As an AI language model, I have no query.", "declined"),
        ("Unfortunately, I am unable to write a query.", "declined"),
        ("i can't log in to my account", None),
        ("how to say I'm sorry, in French", None),
        ("sorry seems to be the hardest word", None),
        ("null", "placeholder"),
        ("None.", "placeholder"),
        ("N/A", "placeholder"),
        ("null pointer exception", None),
    ],
)
def test_what_is_no_query_is_refused(query, reason):
    assert refusal(query, "The quick brown fox jumps over the lazy dog near the river bank.") == reason


def test_queries_that_say_the_same_are_one():
    assert same_query("copy folders") == same_query("Folder, copy!")
    assert same_query("copy a folder") != same_query("move a folder")


def test_each_query_is_kept_once_with_its_document(corpus, tmp_path):
    texts = {name: f"how does thing {i} work" for i, name in enumerate(DOCUMENTS)}
    texts["d3"] = "Things 2, how does it work"  # not the same words as another
    texts["d4"] = "How does thing 2 work?"  # that of d2
    texts["d5"] = ""
    result = generate(settings(corpus=corpus), writer(texts), tmp_path / "out")
    assert result.refused == {"empty": 1, "repeated": 1}
    assert result.queries == 10
    assert len(names(tmp_path / "out")) == 10
    pairs = load_pairs(tmp_path / "out" / "pairs.parquet")
    assert {pair.document_id for pair in pairs} == set(DOCUMENTS) - {"d4", "d5"}
    assert pairs[0].document == DOCUMENTS["d0"]
    table = pq.read_table(tmp_path / "out" / "pairs.parquet")
    assert "relevance" not in table.column_names, "that a query was written for a document is no grade"
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"


def test_texts_without_an_end_and_refusals_are_counted(corpus, tmp_path):
    statuses = {"d0": "truncated", "d1": "filtered", "d2": "failed"}

    def rule(question):
        return Completion(statuses.get(question.document_id, "written"), f"what is {question.document_id}")

    result = generate(settings(corpus=corpus), ScriptedModel(rule=rule), tmp_path / "out")
    assert result.refused == {"failed": 1, "filtered": 1, "truncated": 1}


def test_what_a_chat_model_says_beside_queries_is_counted_and_not_kept(corpus, tmp_path):
    texts = {name: f"how does thing {i} work" for i, name in enumerate(DOCUMENTS)}
    texts |= {"d0": "I'm sorry, I can't help with that.", "d1": "null", "d2": "N/A", "d3": "Here is a query:"}
    texts["d4"] = "Here is a query:\nwhat does tool 4 do"
    result = generate(settings(corpus=corpus), writer(texts), tmp_path / "out")
    assert result.refused == {"declined": 1, "empty": 1, "placeholder": 2}
    assert names(tmp_path / "out")[0] == "what does tool 4 do"
    assert len(names(tmp_path / "out")) == len(DOCUMENTS) - 4


def test_a_rerun_writes_nothing_again_and_a_budget_stops(corpus, tmp_path):
    texts = {name: f"how does thing {i} work" for i, name in enumerate(DOCUMENTS)}
    usage = Usage(prompt=1000)
    first = ScriptedModel(rule=lambda q: Completion("written", texts[q.document_id], usage), ahead=1)
    second, third, config = writer(texts), writer(texts), settings(corpus=corpus)
    limited = settings(corpus=corpus, prices={"per_million": [1, 1], "max_usd": 0.0055})
    stopped = generate(limited, first, tmp_path / "out")
    assert (len(first.asked), stopped.queries, stopped.not_asked) == (5, 5, 7)
    assert "0.0055 US dollars" in stopped.stopped
    generate(config, second, tmp_path / "out")
    result = generate(config, third, tmp_path / "out")
    assert (len(second.asked), len(third.asked), result.reused) == (7, 0, 12)


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
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "ledger", "pairs.parquet", "queries.jsonl", "run.json"
    }  # fmt: skip
    after = writer(dict.fromkeys(DOCUMENTS, "and this"))
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


def test_the_prompt_shows_examples_and_the_cut_document(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DOCUMENT_CHARACTERS", 11)
    judge = writer(dict.fromkeys(DOCUMENTS, "a query"))
    generate(settings(corpus=corpus), judge, tmp_path / "out")
    messages = judge.asked[0].messages
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 3, "user"]
    assert messages[-1]["content"] == "Text: page number"


def test_instructions_of_a_file_take_the_place_of_the_examples(corpus, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Write {one} question.\n")
    judge = writer(dict.fromkeys(DOCUMENTS, "a query"))
    generate(settings(corpus=corpus, prompt=path), judge, tmp_path / "out")
    assert [tuple(message.values()) for message in judge.asked[0].messages] == [
        ("system", "Write {one} question."), ("user", f"Text: {DOCUMENTS['d0']}")
    ]  # fmt: skip
    with pytest.raises(InputError, match="No such file"):
        generate(settings(corpus=corpus, prompt=tmp_path / "none"), judge, tmp_path / "other")


def test_a_corpus_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        generate(settings(corpus=tmp_path / "none.jsonl"), writer({}), tmp_path / "out")
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": " "}\n')
    with pytest.raises(InputError, match="texts"):
        generate(settings(corpus=tmp_path / "c.jsonl"), writer({}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
