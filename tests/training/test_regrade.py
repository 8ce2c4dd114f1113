import json
import signal

import numpy as np
import pytest
import torch
from launch import TRAIN_ALL, compare, finish, read, run_all, settings_file, start, wait_until

from bixse.data.pairs_files import load_graded_pairs, load_pairs
from bixse.data.trec import write_qrels
from bixse.errors import InputError
from bixse.files.parquet import read_table
from bixse.judging.judges.endpoints import ServerDownError
from bixse.judging.judges.replay_judge import open_replay
from bixse.judging.ledgers.segments import answers_by_status
from bixse.judging.open_judge import JudgeConfig
from bixse.judging.regrade import UnlabelledCollector, UnlabelledEntries
from bixse.losses import BiXSELoss, GradedTargets, InfoNCELoss
from bixse.relevance import GradeScale
from bixse.training.config import TrainConfig
from bixse.training.dry_run import plan_training
from bixse.training.loop.checkpoints import StopOnInterrupt
from bixse.training.recipe import train
from helpers.batches import unit_vectors
from helpers.scripted_judge import graded
from helpers.toy import action_collection

BUDGET = 12
KEY = "sk-regrade-0123456789"


@pytest.fixture(scope="module")
def held_back(tmp_path_factory):
    """Qrels with the grade of every query and document: 3 for the right one, 1 for the same action."""
    path, grades, collection = tmp_path_factory.mktemp("held-back") / "all.tsv", {}, action_collection()
    for query_id, judged in collection.qrels["train"].items():
        right = max(judged, key=judged.get)
        action = right.partition("-")[0]
        grades[query_id] = {d: 3 if d == right else int(d.startswith(action)) for d in collection.corpus}
    write_qrels(path, grades)
    return path


@pytest.fixture
def settings(run_config, held_back):
    """Makes the settings of a run of three epochs of four steps."""

    def make(judge=None, regrade=None, optimizer=None, **changes):
        asking = {"judge": judge or f"replay:qrels:{held_back}", "budget": BUDGET, **(regrade or {})}
        if judge is None:
            asking["options"] = {"scale": [0, 3]}
        optimizer = {"num_train_epochs": 3, **(optimizer or {})}
        settings = {"dev": None, "dropout": 0.0, "regrade": asking, "optimizer": optimizer, **changes}
        return run_config(**settings)

    return make


def run(settings, out):
    return train(settings, out, progress=False)


def asked(out, epoch):
    return read_table(out / "regrade" / f"epoch-{epoch}.asked.parquet").to_pydict()


def entries(out, epoch):
    table = asked(out, epoch)
    return list(zip(table["query_id"], table["document_id"], strict=True))


def test_the_budget_is_asked_after_each_epoch_but_the_last(settings, actions, tmp_path):
    result = run(settings(), tmp_path / "out")
    known = load_graded_pairs(actions.parent / "pairs.jsonl")
    pairs = set(zip(known.query_ids, known.document_ids, strict=True))
    first, second = entries(tmp_path / "out", 1), entries(tmp_path / "out", 2)
    assert [len(first), len(second), len({*first, *second, *pairs})] == [BUDGET, BUDGET, 2 * BUDGET + len(pairs)]
    assert not (tmp_path / "out" / "regrade" / "epoch-3").exists()
    assert sum(answers_by_status(tmp_path / "out" / "regrade" / "ledger").values()) == 2 * BUDGET
    logits = asked(tmp_path / "out", 1)["logit"]
    assert logits == sorted(logits, reverse=True)
    assert [epoch.asked for epoch in result.regrade] == [epoch.graded for epoch in result.regrade] == [BUDGET, BUDGET]
    assert run(settings(), tmp_path / "out").regrade == result.regrade, "read from run.json"


def test_the_grades_count_from_the_next_epoch_on(settings, tmp_path):
    run(settings(regrade={"budget": 200}), tmp_path / "out")
    run(settings().model_copy(update={"regrade": None}), tmp_path / "plain")
    ours, theirs = (read(tmp_path / name)[1] for name in ("out", "plain"))
    assert [entry["loss"] for entry in ours[:4]] == [entry["loss"] for entry in theirs[:4]]
    for one, other in zip(ours[4:], theirs[4:], strict=True):
        assert one["filled_entries"] > other["filled_entries"]


def test_one_ledger_serves_grade_and_training(settings, actions, held_back, tmp_path):
    ledger = tmp_path / "shared"
    run(settings(regrade={"ledger": str(ledger)}), tmp_path / "one")
    run(settings(regrade={"ledger": str(ledger)}), tmp_path / "two")
    records = [json.loads((tmp_path / name / "regrade/epoch-1/run.json").read_text()) for name in ("one", "two")]
    assert [record["results"]["summary"]["asked"] for record in records] == [BUDGET, 0]
    judge = open_replay(f"replay:qrels:{held_back}", GradeScale(0.0, 3.0))
    pairs = load_pairs(tmp_path / "one" / "regrade" / "epoch-1.asked.parquet")
    summary = graded(pairs, judge, tmp_path / "graded", ledger=ledger).summary
    assert (summary.asked, summary.reused) == (0, BUDGET)


@pytest.mark.slow
def test_a_killed_run_asks_the_same_pairs_and_nothing_twice(settings, server, tmp_path):
    address = server.scenario(delay=0.15)
    regrade = {"options": {"concurrency": 2}}
    config = settings_file(tmp_path, settings(address, regrade=regrade, evaluations_per_epoch=4))
    out, whole = tmp_path / "killed", tmp_path / "whole"
    ledger = out / "regrade" / "ledger"

    def answered():
        return sum(answers_by_status(ledger).values()) if (ledger / "ledger.json").is_file() else 0

    (process,) = start(1, config, out, script=TRAIN_ALL)
    wait_until(lambda: answered() >= 3, process)
    process.kill()
    assert finish([process])[0][0] == -signal.SIGKILL
    chosen = entries(out, 1)
    assert 3 <= answered() < BUDGET
    run_all(1, config, out)
    questions = server.stats(address)["counts"]["chat"]
    run_all(1, config, whole)
    assert entries(out, 1) == chosen
    assert answered() == 2 * BUDGET
    assert [entries(whole, epoch) for epoch in (1, 2)] == [entries(out, epoch) for epoch in (1, 2)]
    assert (whole / "model" / "model.safetensors").read_bytes() == (out / "model" / "model.safetensors").read_bytes()
    of_whole = server.stats(address)["counts"]["chat"] - questions
    of_opening = (of_whole - 2 * BUDGET) // 3  # before training and after two epochs: the judge is probed
    assert 0 <= questions - 5 * of_opening - 2 * BUDGET <= 2, "only requests in flight are repeated"


@pytest.mark.parametrize("step", [5, 7])
def test_a_run_that_died_before_a_checkpoint_chooses_the_same_pairs(settings, tmp_path, monkeypatch, step):
    def die(self, args, state, control, **_):
        1 / (state.global_step - step)

    run(settings(), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(StopOnInterrupt, "on_step_end", die)
        run(settings(), tmp_path / "died")
    run(settings(), tmp_path / "died")
    assert [entries(tmp_path / "died", epoch) for epoch in (1, 2)] == [
        entries(tmp_path / "whole", epoch) for epoch in (1, 2)
    ]
    compare(tmp_path / "died", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.precision("float32")
def test_two_processes_ask_what_one_asks(settings, tmp_path):
    run(settings(), tmp_path / "one")
    run_all(2, settings_file(tmp_path, settings()), tmp_path / "two")
    for epoch in (1, 2):
        assert set(entries(tmp_path / "two", epoch)) == set(entries(tmp_path / "one", epoch))
    compare(tmp_path / "one", tmp_path / "two")


def test_a_judge_that_stops_answering_does_not_stop_training(settings, server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address = server.scenario(key=KEY, key_until=30)
    result = run(settings(address, regrade={"budget": 60, "options": {"concurrency": 2}}), tmp_path / "out")
    first, second = result.regrade
    assert 0 < first.graded < first.asked == 60
    assert "OPENAI_API_KEY" in first.failure
    assert KEY not in (tmp_path / "out" / "run.json").read_text()
    assert second.graded == 0
    assert sum("they stay 0" in warning for warning in result.warnings) == 2


def test_pairs_without_an_answer_are_reported_and_not_asked_again(settings, held_back, tmp_path):
    few = tmp_path / "few.tsv"
    few.write_text("\n".join(held_back.read_text().splitlines()[:2]) + "\n", encoding="utf-8")
    result = run(settings(regrade={"judge": f"replay:qrels:{few}"}), tmp_path / "out")
    assert [epoch.graded for epoch in result.regrade] == [0, 0]
    assert not set(entries(tmp_path / "out", 1)) & set(entries(tmp_path / "out", 2))
    assert sum("they stay 0" in warning for warning in result.warnings) == 2


def test_a_dry_run_estimates_the_cost_and_asks_nothing(settings, server, tmp_path):
    address = server.scenario()
    plan = plan_training(settings(address, regrade={"prices": {"per_million": [2.0, 8.0]}}), tmp_path / "out")
    assert plan.regrade.pairs == 2 * BUDGET
    assert plan.regrade.usd > 0
    assert not (tmp_path / "out").exists()
    once = server.stats(address)["counts"]["chat"]
    JudgeConfig(judge={"name": address}).open().close()
    assert server.stats(address)["counts"]["chat"] == 2 * once, "the probes of an opened judge alone"


def test_the_highest_scores_of_all_batches_are_collected():
    generator = torch.Generator().manual_seed(0)
    loss = BiXSELoss(torch.nn.Identity())
    loss._embed = lambda features: features["vectors"]
    collector = UnlabelledCollector(loss, most=20)
    loss.observer = collector.look
    label = {"rows": torch.arange(6), "columns": torch.arange(6), "relevance": torch.ones(6)}
    everything = []
    for batch in range(5):
        vectors, documents = (unit_vectors(number, 4, generator).float() for number in (6, 9))
        collector.groups, collector.documents = np.arange(6) + 10 * batch, np.arange(9) + 100 * batch
        loss([{"vectors": part, "input_ids": part} for part in (vectors, documents)], label)
        logits = loss.logits(vectors @ documents.T)
        unlabelled = [(i, j) for i in range(6) for j in range(9) if i != j]
        everything += [(round(float(logits[i, j]), 4), i + 10 * batch, j + 100 * batch) for i, j in unlabelled]
    highest = sorted(everything, reverse=True)[:20]
    assert len({group // 10 for _, group, _ in highest}) > 2
    columns = collector.entries.logits.tolist(), collector.entries.groups, collector.entries.documents
    assert [(round(logit, 4), group, document) for logit, group, document in zip(*columns, strict=True)] == highest


def test_successive_large_batches_are_sampled_at_other_rows(monkeypatch):
    monkeypatch.setattr("bixse.judging.regrade.ENTRIES_LOOKED_AT", 10)
    collector = UnlabelledCollector(InfoNCELoss(torch.nn.Identity()), most=100)
    collector.groups, collector.documents = np.arange(4), np.arange(5)
    vectors, documents = (unit_vectors(number, 4, None) for number in (4, 5))
    targets = GradedTargets.from_entries([0, 1], [0, 1], [1.0, 1.0], (4, 5))
    for step, rows in ((0, {0, 2}), (1, {1, 3})):
        collector.step, collector.entries = step, UnlabelledEntries.none()
        collector.look(vectors, documents, targets)
        assert set(collector.entries.groups) == rows
        assert len(collector.entries.groups) == 9


def test_a_limit_on_the_price_holds_over_the_epochs_and_over_an_interruption(settings, server, tmp_path, monkeypatch):
    prices = {"per_million": [1e4, 1e4], "max_usd": 5.0}
    config = settings(server.scenario(), regrade={"prices": prices, "options": {"concurrency": 1}})
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("bixse.judging.regrade.write_atomically", lambda *_: 1 / 0)  # of the summary, after the answers
        run(config, tmp_path / "out")
    result = run(config, tmp_path / "out")
    assert sum(epoch.usd for epoch in result.regrade) <= 5.0
    assert any(epoch.failure and "US dollars" in epoch.failure for epoch in result.regrade)


def test_another_address_or_speed_is_the_same_run():
    one, other = (
        TrainConfig(pairs="p", regrade={"judge": f"http://{host}", "options": options, "ledger": ledger})
        for host, options, ledger in (
            ("a", {"concurrency": 1}, None),
            ("b", {"concurrency": 9, "headers": {"api-key": "secret"}}, "l"),
        )
    )
    assert one.identity() == other.identity()
    assert "secret" not in str(other.identity())
    assert one.identity() != TrainConfig(pairs="p", regrade={"judge": "http://a", "budget": 7}).identity()


@pytest.mark.parametrize(
    ("judge", "changes", "error", "fact"),
    [
        (None, {"optimizer": {"max_steps": 3}}, InputError, "first epoch"),
        (None, {"loss": "margin-mse"}, InputError, "MarginMSELoss"),
        (None, {"loss": "distill-kl"}, InputError, "DistillKLLoss"),
        ("http://127.0.0.1:9", {"regrade": {"options": {"timeout": 2.0}}}, ServerDownError, "127.0.0.1"),
        ("http://127.0.0.1:9", {"regrade": {"rubric": "no-such-rubric"}}, InputError, "no-such-rubric"),
    ],
)
def test_a_run_that_cannot_regrade_is_refused_before_training(settings, tmp_path, judge, changes, error, fact):
    with pytest.raises(error, match=fact):
        run(settings(judge, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()
