import itertools
import json
import re
import shutil
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Normalize

from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.encoders.weights import standardise
from bixse.errors import ConfigError, InputError, ModelError, OutputExistsError
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.systems import EncoderSystem
from bixse.export import export as exporting
from bixse.export.export import TEXTS, ExportResult, disagreement, export, of_all_lengths
from bixse.export.export_settings import ExportSettings
from bixse.export.graph import ONNX_FILE, inputs_of, load_exported
from bixse.results import Difference
from helpers.command import call, refused
from helpers.toy import CORPUS, save_toy

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "export.md"
DOCUMENTS = [document.content for document in CORPUS.values()]
TEXTS_OF_BOTH = {"query": ["copy a file", "wait"], "document": DOCUMENTS}
EQUAL = {"batches of 1": 1e-7, "batches of 32": 1e-7, "full length": 1e-7}
LOWER = Difference(mean=-0.1, low=-0.2, high=-0.05, p_value=0.01, queries=40)
MISSING = [name for name in ("onnxruntime", "onnxscript") if find_spec(name) is None]
real = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")  # tracing a model takes seconds: slow


@pytest.fixture(scope="module")
def saved(tiny_model_path, tmp_path_factory):
    """Folder of a model with prompts and a head."""
    model = RelevanceModel(str(tiny_model_path), device="cpu", prompts={"query": "find a ", "document": "text: "})
    model.head = RelevanceHead(12.0, -5.0, 0.5, 0.25)
    save_whole(model, tmp_path_factory.mktemp("export") / "model")
    return tmp_path_factory.getbasetemp() / "export0" / "model"


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("searched") / "toy")


def hidden(folder):
    """Names in a folder that an interrupted or refused export would leave."""
    return [path.name for path in folder.iterdir()]


def test_full_folder_is_refused_before_the_model_is_read(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(OutputExistsError):
            export(ExportSettings(model="nowhere"), out)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("to", "package", "extra"),
    [("onnx", "onnxscript", "onnx"), ("onnx-int8", "onnxruntime", "onnx"), ("openvino", "openvino", "openvino")],
)
def test_missing_package_names_its_extra(to, package, extra, tmp_path, monkeypatch):
    for name in ("onnxscript", "onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, name, None if name == package else torch)
    with pytest.raises(InputError) as error:
        export(ExportSettings(model="nowhere", to=to), tmp_path / "out")
    assert error.value.fix == f"pip install 'bixse[{extra}]'" and package in error.value.where
    assert not hidden(tmp_path)


@pytest.mark.parametrize("words", [("--to", "onnx-int8", "--pairs", "p"), ("--pairs", "p", "--collection", "c")])
def test_texts_that_do_not_fit_the_target(words, capsys, tmp_path):
    refused(capsys, "export", "demo", *words, "--out", tmp_path / "out")
    with pytest.raises(ConfigError):
        ExportSettings.load(None, {"model": "demo", "to": "coreml"})


def test_models_that_are_no_single_graph_of_tokens(student, router_model, tiny_model):
    tiny_model[1].include_prompt = False
    assert inputs_of(tiny_model) == ["input_ids", "attention_mask", "token_type_ids"]
    tiny_model.prompts = {"query": "find a "}
    for model in (build_encoder(student, device="cpu"), router_model, tiny_model):
        with pytest.raises(ModelError):
            inputs_of(model)


def test_disagreement_of_other_weights_and_of_lengths_that_are_not_1(tiny_model, tiny_model_path):
    other = RelevanceModel(str(tiny_model_path), device="cpu").eval()
    other.append(Normalize())
    assert max(disagreement(tiny_model, other, TEXTS_OF_BOTH).values()) < 1e-6
    assert min(disagreement(other, tiny_model, TEXTS_OF_BOTH).values()) > 1e-3  # equal weights, not normalised
    with torch.no_grad():
        other[0].auto_model.embeddings.word_embeddings.weight[:50] *= 1.2
    assert max(disagreement(tiny_model, other, TEXTS_OF_BOTH).values()) > 1e-3


def test_difference_in_any_case_is_a_fault_and_int8_is_judged_by_its_ranking_alone():
    assert ExportResult(EQUAL, {}, None).fault is None
    for case, value in itertools.product(EQUAL, (2e-3, float("nan"))):
        assert ExportResult({**EQUAL, case: value}, {}, None).fault
    assert ExportResult(EQUAL, {}, LOWER).fault and not ExportResult(EQUAL, {}, LOWER).doubt
    few = ExportResult(EQUAL, {}, Difference(-0.1, None, None, None, 12))
    assert few.fault is None and "12 queries; at least 40" in few.doubt
    assert not ExportResult(EQUAL, {}, None).doubt
    assert ExportResult(dict.fromkeys(EQUAL, 0.02), {}, Difference(-0.1, -0.2, 0.05, 0.2, 40)).fault is None


def test_texts_of_all_lengths_are_chosen():
    texts = ["", "  ", *(f"{number} " + "x" * (number % 997) for number in range(3000)), "short", "short"]
    chosen = of_all_lengths(texts)
    assert len(set(chosen)) == len(chosen) == TEXTS and all(text.strip() for text in chosen)
    lengths = sorted(map(len, chosen))
    assert (lengths[0], lengths[-1]) == (2, max(map(len, texts)))
    assert of_all_lengths(["b", "a"]) in (["a", "b"], ["b", "a"]) and chosen == of_all_lengths(texts)


@pytest.mark.parametrize("record", [None, "{", "[]"])
def test_folder_that_holds_no_graph(record, tmp_path):
    if record is not None:
        (tmp_path / "export.json").write_text(record)
    with pytest.raises(ModelError):
        load_exported(tmp_path)


@pytest.fixture(scope="module")
def onnx(saved, collection, tmp_path_factory):
    """The folder of an exported graph, and what was measured."""
    out = tmp_path_factory.mktemp("runs") / "onnx"
    return out, export(ExportSettings(model=str(saved), collection=collection), out)


@real
@pytest.mark.slow
def test_graph_and_the_lines_of_the_page_embed_as_the_model_unless_the_graph_is_damaged(onnx, saved, collection):
    out, result = onnx
    assert result.fault is None and max(result.differences.values()) < 1e-5
    assert all(torch_seconds > 0 < seconds for torch_seconds, seconds in result.seconds.values())
    exported, model = load_exported(out), build_encoder(saved, device="cpu")
    assert np.allclose(exported.relevance("copy", DOCUMENTS), model.relevance("copy", DOCUMENTS), atol=1e-5)
    assert evaluate(EncoderSystem(exported, cache="none"), collection).metrics == pytest.approx(
        evaluate(EncoderSystem(model, cache="none"), collection).metrics
    )
    assert hidden(out.parent) == ["onnx"]
    script = re.search(r"```python\n(import .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    names = {}
    exec(script.replace("runs/onnx", str(out)), names)
    assert np.allclose(names["embed"](DOCUMENTS, "document"), encode_texts(model, DOCUMENTS, "document"), atol=1e-5)
    assert np.allclose(names["probabilities"], model.relevance(names["query"], names["documents"]), atol=1e-5)
    folder = shutil.copytree(out, out.parent / "copy")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError):
        load_exported(folder)


@real
@pytest.mark.slow
def test_refused_graph_leaves_nothing_and_anyway_writes_it(onnx, saved, collection, tmp_path, monkeypatch, capsys):
    copy = partial(shutil.copytree, onnx[0], dirs_exist_ok=True)  # tracing takes longer than all the rest
    monkeypatch.setattr(exporting, "write_graph", lambda model, to, folder: copy(folder))
    monkeypatch.setattr(exporting, "LARGEST_DIFFERENCE", 0.0)
    words = ("export", saved, "--collection", collection, "--out", tmp_path / "out")
    code, envelope = call(capsys, *words)
    assert (code, envelope["artifacts"]) == (1, {}) and envelope["metrics"]["differences"]
    assert not hidden(tmp_path)
    code, envelope = call(capsys, *words, "--anyway")
    assert code == 0 and envelope["warnings"] and (tmp_path / "out" / ONNX_FILE).is_file()


@real
@pytest.mark.slow
def test_int8_leaves_the_embeddings_of_tokens_and_is_compared_by_ndcg(onnx, saved, collection, tmp_path, capsys):
    import onnx as library

    words = ("--collection", collection, "--out", tmp_path / "int8")
    code, envelope = call(capsys, "export", saved, "--to", "onnx-int8", *words)
    ndcg = envelope["metrics"]["ndcg"]
    assert code == 0 and (ndcg["queries"], ndcg["low"]) == (3, None)
    assert (ndcg["verdict"] == "cannot tell") == bool(ndcg["few"])
    assert [ndcg["few"] in warning for warning in envelope["warnings"]] == [True] * bool(ndcg["few"])
    kinds = {}
    for folder in (onnx[0], tmp_path / "int8"):
        graph = library.load(folder / ONNX_FILE)
        kinds[folder] = [tensor.data_type for tensor in graph.graph.initializer if len(tensor.dims) == 2]
        facts = {entry.key: entry.value for entry in graph.metadata_props}
        assert json.loads(facts["bixse"])["head"] == {"scale": 6.0, "bias": -2.25}
    assert library.TensorProto.INT8 not in kinds[onnx[0]]
    assert library.TensorProto.INT8 in kinds[tmp_path / "int8"]
    assert kinds[tmp_path / "int8"].count(library.TensorProto.FLOAT) == 3  # tokens, positions, types
    assert len({embeddings_key(load_exported(folder)) for folder in kinds}) == 2, "embeddings are stored by this key"


@real
@pytest.mark.slow
@pytest.mark.skipif(find_spec("openvino") is None, reason="not installed: openvino")
def test_openvino_embeds_as_the_model_from_the_texts_of_pairs(saved, tmp_path):
    rows = [{"query": "copy a file", "document": text} for text in DOCUMENTS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ExportSettings(model=str(saved), to="openvino", pairs=tmp_path / "pairs.jsonl")
    assert max(export(settings, tmp_path / "out").differences.values()) < 1e-5
    assert load_exported(tmp_path / "out").head == load_exported(tmp_path / "out").heads[None]


@real
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_decoder_cut_to_fewer_dimensions(kind, decoder_path, collection, tmp_path):
    settings = ExportSettings(model=str(decoder_path(kind)), collection=collection, dimensions=16)
    assert export(settings, tmp_path / "out").fault is None
    assert load_exported(tmp_path / "out").encode_document(DOCUMENTS).shape == (len(DOCUMENTS), 16)


@real
@pytest.mark.slow
def test_standardised_decoder_embeds_as_its_graph(decoder_path, collection, tmp_path):
    model = build_encoder(decoder_path("llama"), device="cpu")
    standardise(model, model.encode(DOCUMENTS, convert_to_tensor=True), "mean-and-deviation")
    save_whole(model, tmp_path / "model")
    assert export(ExportSettings(model=str(tmp_path / "model"), collection=collection), tmp_path / "out").fault is None
    unit = model.encode(DOCUMENTS, normalize_embeddings=True)
    np.testing.assert_allclose(load_exported(tmp_path / "out").encode_document(DOCUMENTS), unit, atol=1e-5)
