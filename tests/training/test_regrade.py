"""Suspicious zeros: which are asked, that nothing is asked twice, and that training goes on whatever the judge does."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest
import torch
import yaml
from launch import TRAIN_ALL, finish, start
from safetensors.torch import load_file
from torch.testing import assert_close

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_graded_pairs, load_pairs
from bixse.errors import ConfigError, InputError
from bixse.files.parquet import read_table
from bixse.judging.judges.endpoints import ServerDownError
from bixse.judging.judges.replay_judge import open_replay
from bixse.judging.ledgers.segments import answers_by_status
from bixse.judging.open_judge import JudgeConfig
from bixse.judging.regrade import SuspectCollector, Suspects
from bixse.losses import BiXSELoss, GradedTargets, InfoNCELoss
from bixse.relevance import GradeScale
from bixse.training.config import TrainConfig
from bixse.training.dry_run import plan_training
from bixse.training.recipe import train
from helpers.chat_server import chat_server
from helpers.scripted_judge import graded

BUDGET = 12
KEY = "sk-regrade-0123456789"


@pytest.fixture(scope="module")
def server():
    with chat_server() as running:
        yield running


@pytest.fixture(scope="module")
def held_back(tmp_path_factory, graded_collection):
    """Qrels with the grade of every query and document: 3 for the right one, 1 for the same action."""
    path = tmp_path_factory.mktemp("held-back") / "all.tsv"
    lines = ["query-id\tcorpus-id\tscore"]
    for query_id, judged in graded_collection.qrels["train"].items():
        right = next(document for document, grade in judged.items() if grade == 3)
        action = right.partition("-")[0]
        for document in graded_collection.corpus:
            level = 3 if document == right else int(document.startswith(action))
            lines.append(f"{query_id}\t{document}\t{level}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def settings(training_files, tiny_model_path, held_back):
    """Makes the settings of a run of three epochs of four steps, as YAML holds them."""

    def make(judge=None, **changes):
        regrade = {
            "judge": judge or f"replay:qrels:{held_back}",
            "budget": BUDGET,
            **changes.pop("regrade", {}),
        }
        if judge is None:
            regrade["options"] = {"scale": [0, 3]}
        return {
            "pairs": str(training_files / "pairs.jsonl"),
            "model": str(tiny_model_path),
            "max_length": 16,
            "dropout": 0.0,
            "optimizer": {
                "num_train_epochs": 3,
                "global_batch_size": 8,
                "learning_rate": 1e-3,
                "documents_per_query": 3,
            },
            "regrade": regrade,
            **changes,
        }

    return make


def run(settings, out):
    return train(TrainConfig.model_validate(settings), out, progress=False)


def asked(out, epoch):
    return read_table(out / "regrade" / f"epoch-{epoch}.asked.parquet").to_pydict()


def entries(out, epoch):
    table = asked(out, epoch)
    return list(zip(table["query_id"], table["document_id"], strict=True))


def answers(out, epoch):
    return json.loads((out / "regrade" / f"epoch-{epoch}" / "run.json").read_text())["results"]["summary"]


def test_the_budget_is_asked_after_each_epoch_but_the_last(settings, training_files, tmp_path):
    result = run(settings(), tmp_path / "out")
    known = load_graded_pairs(training_files / "pairs.jsonl")
    given = set(zip(known.query_ids, known.document_ids, strict=True))
    first, second = entries(tmp_path / "out", 1), entries(tmp_path / "out", 2)
    assert [len(first), len(second), len({*first, *second, *given})] == [BUDGET, BUDGET, 2 * BUDGET + len(given)]
    assert not (tmp_path / "out" / "regrade" / "epoch-3").exists()
    assert sum(answers_by_status(tmp_path / "out" / "regrade" / "ledger").values()) == 2 * BUDGET
    logits = asked(tmp_path / "out", 1)["logit"]
    assert logits == sorted(logits, reverse=True)
    assert [epoch.asked for epoch in result.regrade] == [epoch.graded for epoch in result.regrade] == [BUDGET, BUDGET]
    assert train(TrainConfig.model_validate(settings()), tmp_path / "out").regrade == result.regrade, (
        "read from run.json"
    )


def test_what_is_asked_holds_more_relevance_than_other_zeros(settings, training_files, held_back, tmp_path):
    """The encoder learns which documents share the query's action."""
    learning = {"num_train_epochs": 6, "global_batch_size": 10, "learning_rate": 3e-3, "documents_per_query": 5}
    run(settings(optimizer=learning, regrade={"budget": 20}), tmp_path / "out")
    known = load_graded_pairs(training_files / "pairs.jsonl")
    given, present = set(zip(known.query_ids, known.document_ids, strict=True)), set(known.document_ids)
    rows = [line.split("\t") for line in held_back.read_text().splitlines()[1:]]
    zeros = {(q, d): float(level) for q, d, level in rows if d in present and (q, d) not in given}
    found = [zeros[pair] > 0 for epoch in range(1, 6) for pair in entries(tmp_path / "out", epoch)]
    share = sum(level > 0 for level in zeros.values()) / len(zeros)
    assert len(found) == 100
    assert sum(found) / len(found) > 2 * share


def test_the_grades_count_from_the_next_epoch_on(settings, tmp_path):
    """The first epoch is that of a run that asks nobody; then more entries of a batch are known."""
    run(settings(regrade={"budget": 200}), tmp_path / "out")
    plain = settings()
    del plain["regrade"]
    run(plain, tmp_path / "plain")

    def steps(out):
        return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines() if '"loss"' in line]

    ours, theirs = steps(tmp_path / "out"), steps(tmp_path / "plain")
    assert [entry["loss"] for entry in ours[:4]] == [entry["loss"] for entry in theirs[:4]]
    for one, other in zip(ours[4:], theirs[4:], strict=True):
        assert one["filled_entries"] > other["filled_entries"]


def test_grades_are_appended_under_the_same_numbers():
    rows = [
        {"query": "a", "document": "x", "relevance": 1.0, "task": "one", "grade": 3.0},
        {"query": "b", "document": "y", "relevance": 0.0, "task": "two", "grade": 0.0},
    ]
    pairs = GradedPairs.from_rows(rows)
    more = pairs.with_grades([1], [0], [0.5])
    assert [(g.query, g.task, list(g.documents), list(g.relevance)) for g in more.groups()] == [
        ("a", "one", ["x"], [1.0]),
        ("b", "two", ["y", "x"], [0.0, 0.5]),
    ]
    assert more.document_numbers.tolist() == [0, 1, 0]
    with pytest.raises(InputError):
        pairs.with_grades([1], [0], [1.5])


def test_one_ledger_serves_grade_and_training(settings, training_files, held_back, tmp_path):
    ledger = tmp_path / "shared"
    run(settings(regrade={"ledger": str(ledger)}), tmp_path / "one")
    run(settings(regrade={"ledger": str(ledger)}), tmp_path / "two")
    assert [answers(tmp_path / name, 1)["asked"] for name in ("one", "two")] == [BUDGET, 0]
    judge = open_replay(f"replay:qrels:{held_back}", GradeScale(0.0, 3.0))
    pairs = load_pairs(tmp_path / "one" / "regrade" / "epoch-1.asked.parquet")
    summary = graded(pairs, judge, tmp_path / "graded", ledger=ledger).summary
    assert (summary.asked, summary.reused) == (0, BUDGET)


def wait_until(there, process, seconds=120):
    ends = time.monotonic() + seconds
    while not there() and process.poll() is None:
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_asks_asks_the_same_pairs_and_nothing_twice(settings, server, tmp_path):
    """kill -9 while the judge answers, and again in the epoch after it."""
    address = server.scenario(delay=0.15)
    options = {"options": {"concurrency": 2}}
    config, out = tmp_path / "run.yaml", tmp_path / "killed"
    config.write_text(yaml.safe_dump(settings(address, regrade=options, evaluations_per_epoch=4)), encoding="utf-8")
    ledger = out / "regrade" / "ledger"

    def answered():
        try:
            return sum(answers_by_status(ledger).values())
        except InputError:  # not there yet
            return 0

    (process,) = start(1, config, out, script=TRAIN_ALL)
    wait_until(lambda: answered() >= 3, process)
    process.kill()
    assert finish([process])[0][0] == -signal.SIGKILL
    chosen = entries(out, 1)
    assert 3 <= answered() < BUDGET
    (process,) = start(1, config, out, script=TRAIN_ALL)
    wait_until(lambda: (out / "checkpoints" / "checkpoint-6").exists(), process)
    process.kill()
    finish([process])
    assert answered() == BUDGET
    (ended,) = finish(start(1, config, out, script=TRAIN_ALL))
    assert ended[0] == 0, ended
    assert entries(out, 1) == chosen
    assert answered() == 2 * BUDGET
    questions = server.stats(address)["counts"]["chat"]
    whole = tmp_path / "whole"
    (ended,) = finish(start(1, config, whole, script=TRAIN_ALL))
    assert [entries(whole, epoch) for epoch in (1, 2)] == [entries(out, epoch) for epoch in (1, 2)]
    assert (whole / "model" / "model.safetensors").read_bytes() == (out / "model" / "model.safetensors").read_bytes()
    of_whole = server.stats(address)["counts"]["chat"] - questions
    of_opening = (of_whole - 2 * BUDGET) // 3  # before training and after two epochs: the judge is probed
    assert 0 <= questions - 6 * of_opening - 2 * BUDGET <= 2, "but for what was in flight"


@pytest.mark.slow
@pytest.mark.precision("float32")
def test_two_processes_ask_what_one_asks(settings, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(settings()), encoding="utf-8")
    run(settings(), tmp_path / "one")
    ended = finish(start(2, config, tmp_path / "two", script=TRAIN_ALL))
    assert [code for code, *_ in ended] == [0, 0], ended
    for epoch in (1, 2):
        assert set(entries(tmp_path / "two", epoch)) == set(entries(tmp_path / "one", epoch))
    mine, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    for name, tensor in mine.items():
        assert_close(theirs[name], tensor, rtol=1e-4, atol=1e-4)


def test_a_judge_that_stops_answering_does_not_stop_training(settings, server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address = server.scenario(key=KEY, key_until=30)
    result = run(settings(address, regrade={"budget": 60, "options": {"concurrency": 2}}), tmp_path / "out")
    first, second = result.regrade
    assert 0 < first.graded < first.asked == 60
    assert first.failure and "OPENAI_API_KEY" in first.failure
    assert KEY not in (tmp_path / "out" / "run.json").read_text()
    assert second.graded == 0
    assert sum("they stay 0" in warning for warning in result.warnings) == 2
    assert result.model_path.is_dir()


def test_pairs_without_an_answer_are_told_and_not_asked_again(settings, held_back, tmp_path):
    few = tmp_path / "few.tsv"
    few.write_text("\n".join(held_back.read_text().splitlines()[:2]) + "\n", encoding="utf-8")
    given = settings()
    given["regrade"]["judge"] = f"replay:qrels:{few}"
    result = run(given, tmp_path / "out")
    assert [epoch.graded for epoch in result.regrade] == [0, 0]
    assert not set(entries(tmp_path / "out", 1)) & set(entries(tmp_path / "out", 2))
    assert sum("they stay 0" in warning for warning in result.warnings) == 2


def test_a_dry_run_tells_the_cost_and_asks_nothing(settings, server, tmp_path):
    address = server.scenario()
    prices = {"per_million": [2.0, 8.0]}
    plan = plan_training(TrainConfig.model_validate(settings(address, regrade={"prices": prices})), tmp_path / "out")
    assert plan.regrade is not None
    assert plan.regrade.pairs == 2 * BUDGET
    assert plan.regrade.usd > 0
    assert not (tmp_path / "out").exists()
    once = server.stats(address)["counts"]["chat"]
    JudgeConfig(judge={"names": address}).open().close()
    assert server.stats(address)["counts"]["chat"] - once == once, "opened, which asks known questions, and no more"


def test_what_scores_high_is_kept_from_every_batch():
    """The first batch sets the bias, so that it is compared with the later ones as they are."""
    generator = torch.Generator().manual_seed(0)
    loss = BiXSELoss(torch.nn.Identity())
    collector = SuspectCollector(loss, most=20)
    loss.observer = collector.look
    everything = []
    for batch in range(5):
        vectors = torch.nn.functional.normalize(torch.randn(6, 4, generator=generator), dim=1)
        documents = torch.nn.functional.normalize(torch.randn(9, 4, generator=generator), dim=1)
        collector.groups, collector.documents = np.arange(6) + 10 * batch, np.arange(9) + 100 * batch
        label = {"rows": torch.arange(6), "columns": torch.arange(6), "relevance": torch.ones(6)}
        loss._embed = lambda features: features["vectors"]
        loss([{"vectors": vectors, "input_ids": vectors}, {"vectors": documents, "input_ids": documents}], label)
        logits = loss.logits(vectors @ documents.T)
        everything += [
            (float(logits[i, j]), i + 10 * batch, j + 100 * batch) for i in range(6) for j in range(9) if i != j
        ]
    wanted = sorted(everything, reverse=True)[:20]
    assert len({group // 10 for _, group, _ in wanted}) > 2
    found = zip(collector.found.logits.tolist(), collector.found.groups, collector.found.documents, strict=True)
    assert [(round(logit, 4), group, document) for logit, group, document in found] == [
        (round(logit, 4), group, document) for logit, group, document in wanted
    ]


def test_of_a_large_batch_other_rows_are_looked_at_in_the_next_one(monkeypatch):
    monkeypatch.setattr("bixse.judging.regrade.ENTRIES_LOOKED_AT", 10)
    collector = SuspectCollector(InfoNCELoss(torch.nn.Identity()), most=100)
    collector.groups, collector.documents = np.arange(4), np.arange(5)
    vectors = torch.nn.functional.normalize(torch.randn(4, 3), dim=1)
    documents = torch.nn.functional.normalize(torch.randn(5, 3), dim=1)
    targets = GradedTargets.from_entries([0, 1], [0, 1], [1.0, 1.0], (4, 5))
    for step, rows in ((0, {0, 2}), (1, {1, 3})):
        collector.step, collector.found = step, Suspects.none()
        collector.look(vectors, documents, targets)
        assert set(collector.found.groups) == rows
        assert len(collector.found.groups) == 9


def test_a_limit_on_the_price_holds_over_the_epochs(settings, server, tmp_path):
    address = server.scenario()
    prices = {"per_million": [1e4, 1e4], "max_usd": 5.0}
    result = run(settings(address, regrade={"prices": prices, "options": {"concurrency": 1}}), tmp_path / "out")
    assert sum(epoch.usd for epoch in result.regrade) <= 5.0
    assert any(epoch.failure and "US dollars" in epoch.failure for epoch in result.regrade)


def test_another_address_or_speed_is_the_same_run():
    one, other = (
        TrainConfig(pairs="p", regrade={"judge": f"http://{host}", "options": {"concurrency": n}, "ledger": ledger})
        for host, n, ledger in (("a", 1, None), ("b", 9, "l"))
    )
    assert one.identity() == other.identity()
    assert one.identity() != TrainConfig(pairs="p", regrade={"judge": "http://a", "budget": 7}).identity()


class TestRefused:
    def test_one_epoch(self, settings):
        with pytest.raises(ConfigError, match="regrade"):
            TrainConfig.load(None, settings(optimizer={"num_train_epochs": 1}))

    def test_a_run_that_ends_with_its_first_epoch(self, settings, tmp_path):
        with pytest.raises(InputError, match="first epoch"):
            run(
                settings(optimizer={"max_steps": 3, "global_batch_size": 8, "documents_per_query": 3}), tmp_path / "out"
            )
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("loss", ["margin-mse", "distill-kl"])
    def test_a_loss_without_assumed_zeros(self, settings, tmp_path, loss):
        with pytest.raises(InputError, match="count neither way"):
            run(settings(loss=loss), tmp_path / "out")

    def test_a_judge_that_is_not_there_before_anything_is_trained(self, settings, tmp_path):
        with pytest.raises(ServerDownError):
            run(settings("http://127.0.0.1:9", regrade={"options": {"timeout": 2.0}}), tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_rubric_that_is_not_there(self, settings, tmp_path):
        with pytest.raises(InputError, match="no-such-rubric"):
            run(settings("http://127.0.0.1:9", regrade={"rubric": "no-such-rubric"}), tmp_path / "out")

    def test_options_without_a_judge(self, settings):
        given = settings()
        del given["regrade"]["judge"]
        with pytest.raises(ConfigError, match="judge"):
            TrainConfig.load(None, given)


def test_the_command_line_names_judge_and_budget(training_files, tmp_path, capsys):
    from bixse.cli.main import main

    words = ["train", "--pairs", str(training_files / "pairs.jsonl"), "--out", str(tmp_path / "out")]
    assert main([*words, "--regrade", "replay:nothing", "--regrade-budget", "7", "--num-train-epochs", "2"]) == 2
    assert "replay:nothing" in capsys.readouterr().err
    assert main([*words, "--regrade-budget", "7"]) == 2
    assert "judge" in capsys.readouterr().err


def test_options_of_the_judge_are_those_of_grade():
    given = TrainConfig(pairs="p", regrade={"judge": "http://x", "options": {"concurrency": 3}}).regrade
    assert given is not None
    assert given.judging().judge.concurrency == 3
    with pytest.raises(ConfigError, match="concurency"):
        TrainConfig.load(None, {"pairs": "p", "regrade": {"judge": ["http://x"], "options": {"concurency": 3}}})
