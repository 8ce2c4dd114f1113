"""Every loader refuses layers that config.json leaves out, and names other unused weights once."""

import json
import logging
import shutil

import pytest
import transformers

from bixse.encoders.loading.build import build_encoder, warn_of_unused
from bixse.encoders.loading.load_scorer import load_scorer
from bixse.errors import ModelError
from bixse.judging.judges.cross_encoder_judge import CrossEncoderJudge
from bixse.judging.judges.local_model import LocalModel
from helpers.rerankers import scorer_of
from helpers.toy import BERT_SIZES


def cut(folder, layers=1):
    """Write a lower number of layers into config.json, and leave the weights."""
    (path,) = folder.rglob("config.json") if not (folder / "config.json").is_file() else [folder / "config.json"]
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": layers, "layer_types": None}))
    return folder


def refused(load, folder):
    with pytest.raises(ModelError) as caught:
        load(cut(folder))
    assert "layer" in caught.value.got and ".1." in caught.value.got
    assert "config.json" in caught.value.fix


def test_encoder_and_static_model_of_it(model):
    refused(build_encoder, model)
    refused(lambda folder: build_encoder(f"static:{folder}"), model)


@pytest.mark.parametrize("kind", ["reranker", "late-interaction", "sparse"])
def test_scorer(tmp_path, model, tokenizer, kind):
    scorer_of(model, kind).save_pretrained(str(tmp_path / "saved"))
    refused(load_scorer, tmp_path / "saved")


@pytest.mark.parametrize(
    ("load", "config", "kind", "more"),
    [
        (CrossEncoderJudge, "BertConfig", "BertForSequenceClassification", {"num_labels": 1}),
        (lambda folder: LocalModel(folder).model, "LlamaConfig", "LlamaForCausalLM", {}),
    ],
)
def test_judges(tmp_path, tokenizer, load, config, kind, more):
    settings = getattr(transformers, config)(vocab_size=len(tokenizer), **BERT_SIZES, **more)
    getattr(transformers, kind)(settings).save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    refused(load, tmp_path / "judge")


def test_weights_in_several_files(tokenizer, tmp_path, bert_path):
    path = bert_path()
    transformers.BertModel.from_pretrained(path).save_pretrained(path, max_shard_size="20KB")
    (path / "model.safetensors").unlink(missing_ok=True)
    assert len(list(path.glob("*.safetensors"))) > 1
    refused(build_encoder, path)


def test_heads_that_an_encoder_does_not_read_are_named_once(bert_path, caplog):
    warn_of_unused.cache_clear()
    path = bert_path("BertForPreTraining")
    with caplog.at_level(logging.WARNING):
        build_encoder(path)
        build_encoder(path)
    (record,) = [record for record in caplog.records if "not used" in record.message]
    assert "cls." in record.message and record.message.count("cls.") <= 3


def test_complete_model_says_nothing(model, caplog):
    with caplog.at_level(logging.WARNING):
        build_encoder(shutil.copytree(model, model.parent / "copy"))
    assert not [record for record in caplog.records if "not used" in record.message]
