"""`GradedInformationRetrievalEvaluator`: sentence-transformers' own evaluator, with grades."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from bixse.encoders.encode import encode_texts
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.metrics import evaluate_run, mean
from bixse.relevance import MIN_RELEVANT_GRADE, Kind


class GradedInformationRetrievalEvaluator(InformationRetrievalEvaluator):
    """An evaluator for any trainer of sentence-transformers; its nDCG counts grades, and ties are those of trec_eval.

    Keywords and keys of metrics are those of `InformationRetrievalEvaluator`, such as `dev_cosine_ndcg@10`. Texts are
    embedded as in `bixse.evaluate`, so both have the same figures.

    Args:
        queries: query id -> text.
        corpus: document id -> text, or {"title": ..., "text": ...}, which are joined.
        relevant_docs: query id -> document id -> grade, or query id -> set of document ids.
        min_relevant_grade: grade from which a document is relevant for all metrics but nDCG.
        options: keywords of `InformationRetrievalEvaluator`.

    Raises:
        InputError: dictionaries of other values or in another order, or ids that queries or corpus lack.

    Example:
        >>> corpus = {"d1": "copy a tree", "d2": {"title": "os", "text": "remove a file"}}
        >>> evaluator = GradedInformationRetrievalEvaluator({"q1": "copy"}, corpus, {"q1": {"d1": 3}}, name="dev")
        >>> from bixse.encoders.loading.build import build_encoder
        >>> evaluator(build_encoder("demo"))["dev_cosine_ndcg@10"]
        1.0
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, Any],
        relevant_docs: Mapping[str, Any],
        min_relevant_grade: float = MIN_RELEVANT_GRADE,
        **options: Any,
    ) -> None:
        given = relevant_docs.items() if isinstance(relevant_docs, Mapping) else ()
        sets = {query: dict.fromkeys(judged, 1.0) for query, judged in given if isinstance(judged, set | list)}
        graded = {**relevant_docs, **sets} if sets else relevant_docs
        task = collection_task((queries, corpus, graded), min_relevant_grade=min_relevant_grade)
        self.min_relevant_grade, self.qrels = min_relevant_grade, task.query_sets[0].qrels
        relevant = {query: {name for name, grade in row.items() if grade > 0} for query, row in self.qrels.items()}
        super().__init__(dict(queries), dict(task.documents()), relevant, **options)

    def embed_inputs(  # type: ignore[override]
        self,
        model: Any,
        sentences: Any,
        encode_fn_name: Kind | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """Embed texts as `bixse.evaluate` does, unless options of sentence-transformers are set."""
        if encode_fn_name is None or options or self.truncate_dim is not None:
            return super().embed_inputs(model, sentences, encode_fn_name, prompt_name, prompt, **options)
        prompt = prompt if prompt_name is None else model.prompts[prompt_name]
        return torch.from_numpy(encode_texts(model, sentences, encode_fn_name, prompt=prompt))

    def compute_metrics(self, queries_result_list: list[Any]) -> dict[str, dict[int, float]]:
        """Return metric -> cut-off -> mean over the queries with a relevant document."""
        run = {
            query_id: {hit["corpus_id"]: hit["score"] for hit in hits}
            for query_id, hits in zip(self.queries_ids, queries_result_list, strict=True)
        }
        cutoffs = {"precision": self.precision_recall_at_k, "recall": self.precision_recall_at_k,
                   "ndcg": self.ndcg_at_k, "mrr": self.mrr_at_k, "map": self.map_at_k}  # fmt: skip
        names = [f"{name}@{k}" for name, at in cutoffs.items() for k in at]
        means = mean(evaluate_run(self.qrels, run, names, self.min_relevant_grade))
        first = evaluate_run(self.qrels, run, [f"mrr@{k}" for k in self.accuracy_at_k], self.min_relevant_grade)
        hits = mean({name: {query: float(value > 0) for query, value in row.items()} for name, row in first.items()})
        accuracy = {"accuracy@k": {k: hits[f"mrr@{k}"] for k in self.accuracy_at_k}}
        return accuracy | {f"{name}@k": {k: means[f"{name}@{k}"] for k in at} for name, at in cutoffs.items()}
