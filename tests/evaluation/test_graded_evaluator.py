import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from bixse import BiXSELoss, GradedInformationRetrievalEvaluator, evaluate
from bixse.errors import InputError
from helpers.toy import action_collection

COLLECTION = action_collection(splits=False)
QUERIES, QRELS = COLLECTION.queries, COLLECTION.qrels["test"]
CORPUS = {name: {"title": each.title, "text": each.text} for name, each in COLLECTION.corpus.items()}
JOINED = {name: each.content for name, each in COLLECTION.corpus.items()}
CUTS = (1, 3, 5, 10)


def test_figures_are_those_of_evaluate_with_the_keys_of_the_library(tiny_model):
    evaluator = GradedInformationRetrievalEvaluator(QUERIES, CORPUS, QRELS, name="dev", precision_recall_at_k=[100])
    figures, evaluation = evaluator(tiny_model), evaluate(tiny_model, (QUERIES, CORPUS, QRELS))
    same = {"nDCG@10": "ndcg@10", "R@100": "recall@100", "RR@10": "mrr@10", "AP@100": "map@100"}
    assert {name: figures[f"dev_cosine_{key}"] for name, key in same.items()} == pytest.approx(dict(evaluation))
    assert evaluator.primary_metric == "dev_cosine_ndcg@10"
    stock = InformationRetrievalEvaluator(
        QUERIES, JOINED, {query: set(row) for query, row in QRELS.items()}, name="dev"
    )
    default = GradedInformationRetrievalEvaluator(QUERIES, CORPUS, QRELS, name="dev")
    assert default(tiny_model).keys() == stock(tiny_model).keys()


def test_sets_of_documents_have_the_figures_of_the_stock_evaluator(tiny_model_path):
    model = SentenceTransformer(str(tiny_model_path), device="cpu")
    relevant = {query: {name for name, grade in row.items() if grade == 3} for query, row in QRELS.items()}
    options = {"map_at_k": [100], "score_functions": {"dot": lambda a, b: a @ b.T}}
    for more in ({}, {"truncate_dim": 8}, {"query_prompt": "copy "}):
        ours = GradedInformationRetrievalEvaluator(QUERIES, JOINED, relevant, **options, **more)(model)
        theirs = InformationRetrievalEvaluator(QUERIES, JOINED, relevant, **{**options, **more})
        theirs.embed_inputs = ours_embed(theirs, model) if "truncate_dim" not in more else theirs.embed_inputs
        assert ours == pytest.approx(theirs(model), abs=1e-6)


def ours_embed(evaluator, model):
    """Embed as the library does, with unit vectors."""
    embed = type(evaluator).embed_inputs
    return lambda *given, **options: torch.nn.functional.normalize(embed(evaluator, *given, **options), dim=-1)


def test_a_stock_trainer_chooses_the_checkpoint_with_the_best_graded_ndcg(tiny_model, tmp_path):
    rows = [(QUERIES[query], JOINED[name], grade / 3) for query, row in QRELS.items() for name, grade in row.items()]
    data = Dataset.from_dict(dict(zip(("query", "document", "label"), zip(*rows, strict=True), strict=True)))
    evaluator = GradedInformationRetrievalEvaluator(QUERIES, CORPUS, QRELS, name="dev")
    args = SentenceTransformerTrainingArguments(
        str(tmp_path), eval_strategy="epoch", save_strategy="epoch", num_train_epochs=2, learning_rate=1e-3,
        load_best_model_at_end=True, metric_for_best_model=f"eval_{evaluator.primary_metric or 'dev_cosine_ndcg@10'}",
        report_to="none", per_device_train_batch_size=32,
    )  # fmt: skip
    loss = BiXSELoss(tiny_model)
    trainer = SentenceTransformerTrainer(tiny_model, args, train_dataset=data, loss=loss, evaluator=evaluator)
    trainer.train()
    logged = [entry["eval_dev_cosine_ndcg@10"] for entry in trainer.state.log_history if "eval_runtime" in entry]
    assert len(logged) == 2 and trainer.state.best_metric == max(logged)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((CORPUS, QUERIES, QRELS), "queries: got .*in this order"),
        ((QUERIES, CORPUS, {"gone": {"copy-0": 1}}), "judged queries that the queries lack"),
        ((QUERIES, CORPUS, {"q0-0": {"gone": 1}}), 'judged documents that the corpus lacks.*missing_documents="drop"'),
        ((QUERIES, CORPUS, ["q0-0"]), "collection: got tuple"),
    ],
)
def test_wrong_dictionaries_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        GradedInformationRetrievalEvaluator(*given)
