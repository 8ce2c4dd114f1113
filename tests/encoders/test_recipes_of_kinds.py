"""The recipes of docs/reference/kinds.md train a model of each kind, which the verbs and the plain library use."""

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder

from bixse.encoders.head import log_odds
from bixse.encoders.loading.kinds import kind_of
from bixse.encoders.loading.load_scorer import load_relevance_model
from helpers.command import call

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kinds.md"
RECIPES = {"reranker": "CrossEncoderTrainer", "late": "MultiVectorEncoderTrainer", "sparse": "SparseEncoderTrainer"}
NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["copy a file", "sort a list", "delete a folder"]


@pytest.mark.parametrize("word", RECIPES)
def test_recipe_trains_a_model_with_probabilities(capsys, tiny_model_path, actions, tmp_path, monkeypatch, word):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (code,) = [block for block in blocks if f"{RECIPES[word]}(" in block]
    assert code.count(NAME) == 1
    (tmp_path / "pairs.jsonl").write_bytes((actions.parent / "pairs.jsonl").read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace(NAME, str(tiny_model_path)), names)
    folder = Path(f"runs/{word}/model")
    assert kind_of(folder) == word.replace("late", "late-interaction")
    model = load_relevance_model(folder)
    probabilities = model.relevance("copy a file", TEXTS)
    if word == "reranker":
        plain = CrossEncoder(str(folder)).predict([("copy a file", text) for text in TEXTS])
        scores = [log_odds(float(probability)) for probability in plain]
    else:
        plain = {"late": MultiVectorEncoder, "sparse": SparseEncoder}[word](str(folder))
        scores = plain.similarity(plain.encode_query(["copy a file"]), plain.encode_document(TEXTS)).tolist()[0]
    assert probabilities == pytest.approx(model.head.probability(np.array(scores)), abs=1e-5)
    key = "embeddings.word_embeddings.weight"
    (trained,) = [value for name, value in names["model"].state_dict().items() if name.endswith(key)]
    assert (trained.cpu() - load_file(tiny_model_path / "model.safetensors")[key]).abs().max() > 1e-5
    words = ("--collection", actions, "--split", "dev", "--rerank-depth", "100")
    code, result = call(capsys, "evaluate", "bm25", "--rerank", folder, *words, "--out", "evaluated")
    assert (code, len(result["metrics"]["comparisons"])) == (0, 1)
    call(capsys, "calibrate", folder, "--pairs", "pairs.jsonl", "--anyway")
    assert load_relevance_model(folder).head.calibrated_on
