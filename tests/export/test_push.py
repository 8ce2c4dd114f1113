import json
import shutil

import huggingface_hub
import numpy as np
import pytest
import yaml

from bixse.encoders.head import RelevanceHead, Threshold
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.errors import InputError, ModelError
from bixse.export.export_settings import PushSettings
from bixse.export.push import push
from helpers.command import call, ended, refused, start
from helpers.hub_server import TOKEN, hub_server
from helpers.rerankers import save_reranker

NAME = "owner/retriever"
CUT = Threshold(0.9, 0.62, 0.91, 0.85, 0.95, 0.4, 120, 60, 0.5)
HEAD = RelevanceHead(12.0, -5.0, 0.5, 0.25, "120 pairs", trained_prior=0.02, prior=0.1, thresholds=(CUT,))
GAIN = {"collection": "mine/dev", "role": "dev", "mean": 0.06, "low": 0.03, "high": 0.09, "queries": 60}
LOSS = {"collection": "other/test", "role": "guard", "mean": -0.05, "low": -0.09, "high": -0.01, "queries": 40}
RUN = {
    **dict.fromkeys(("fingerprint", "status", "started"), "-"),
    "command": "train",
    "config": {"pairs": "/secret/folder/train.jsonl", "dev": ["/secret/mine"], "model": "base/model", "lora": None},
    "inputs": {"pairs": "ab" * 32},
    "results": {"merge": {"changes": [{**change, "model": "merged"} for change in (GAIN, LOSS)]}},
    "timings": {},
    "versions": {"bixse": "1.0", "platform": "Linux-of-my-company"},
}


@pytest.fixture(scope="module")
def saved(tiny_model_path, tmp_path_factory):
    """Folder of a finished run."""
    run = tmp_path_factory.mktemp("push") / "run"
    model = RelevanceModel(str(tiny_model_path), device="cpu")
    model.head = HEAD
    save_whole(model, run / "model")
    (run / "run.json").write_text(json.dumps(RUN))
    return run


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


@pytest.fixture
def hub(monkeypatch):
    """The stand-in hub, which this process takes for the hub."""
    with hub_server() as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def settings(model, **others):
    return PushSettings(model=model, name=NAME, **others)


@pytest.mark.parametrize("name", ["retriever", "a/b/c", "owner/", "/name", "owner/two--dashes", "owner/a b", "../x"])
def test_name_that_the_hub_cannot_have(name, run, hub, capsys):
    refused(capsys, "push", run, name)
    assert not hub.requests


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("model/config.json", b"{}", ModelError),
        *((f"model/{name}", b"\x80\x04\x95 the rest", ModelError)
          for name in ("pytorch_model.bin", "2_Extra/weights.dat", "optimizer.pt")),
        *(("run.json", content, InputError) for content in (b"{", b"[]", b"{}")),
    ],
)  # fmt: skip
def test_damaged_folder_or_record_and_a_pickle_are_not_sent(name, content, error, run, hub):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(content)
    with pytest.raises(error) as caught:
        push(settings(run))
    assert name.removeprefix("model/") in str(caught.value) and not hub.requests


def test_folder_without_an_encoder_is_not_sent(run, hub, tiny_model_path, tmp_path):
    reranker = save_reranker(tiny_model_path, tmp_path / "reranker")
    for folder in (run / "nowhere", run / "model" / "1_Pooling", reranker):
        with pytest.raises(ModelError):
            push(settings(folder))
    assert not hub.requests


@pytest.mark.parametrize("token", ["", "hf_secret"])
def test_token_that_is_missing_or_wrong_is_in_no_message(token, run, hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(InputError) as error:
        push(settings(run))
    assert "hf auth login" in error.value.fix and "secret" not in str(error.value)
    assert bool(hub.requests) == bool(token), "without a token nothing is asked"


def test_taken_name_and_a_refused_commit_leave_the_files_of_the_hub_and_update_goes_on(run, hub):
    hub.repositories[NAME] = {"README.md": b"of another model"}
    with pytest.raises(InputError) as error:
        push(settings(run))
    assert "--update" in error.value.fix
    assert hub.repositories.pop(NAME) == {"README.md": b"of another model"}
    hub.refuses_commits = True
    with pytest.raises(InputError, match="a token that may write"):
        push(settings(run))
    hub.refuses_commits = False
    assert hub.repositories[NAME] == {}
    push(settings(run, update=True))
    assert "model.safetensors" in hub.repositories[NAME]


def test_offline_and_unreachable_hub(run, monkeypatch, hub):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(InputError) as error:
        push(settings(run))
    assert "network" in error.value.fix
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError):
        push(settings(run))


def test_dry_run_sends_nothing(run, hub, capsys):
    code, envelope = call(capsys, "push", run, NAME, "--dry-run")
    assert code == 0 and not hub.requests
    assert "model.safetensors" in envelope["metrics"]["files"]
    assert envelope["metrics"]["card"].startswith("---")


def test_card_says_what_the_run_holds_and_no_path(run):
    pushed = push(settings(run), dry_run=True)
    card = huggingface_hub.ModelCard(pushed.card)
    assert (card.data.library_name, card.data.base_model) == ("sentence-transformers", "base/model")
    assert "sigmoid(6.0000 × cosine -2.2500)" in card.text
    for fact in ("120 pairs", "0.0200", "0.1000", "0.6200", "0.850 to 0.950", "60 held-out queries", "ab" * 32):
        assert fact in card.text
    verdicts = {
        line.split("|")[1].strip(): line.split("|")[-2].strip()
        for line in card.text.splitlines()
        if "▲" in line or "▼" in line
    }
    assert verdicts == {"dev mine/dev": "▲ better", "guard other/test": "▼ worse"}
    assert yaml.safe_load(card.text.split("```yaml")[1].split("```")[0])["pairs"] == "train.jsonl"
    assert not [word for word in ("secret", "my-company", str(run)) if word in pushed.card]


@pytest.mark.parametrize(
    ("stored", "verdict"),
    [
        ({"p_value": 1.0, "few": ""}, "● no difference shown"),
        ({"p_value": None, "few": "45 queries with one and the same difference"},
         "? cannot tell (45 queries with one and the same difference)"),
        ({"few": "9 queries; at least 10"}, "? cannot tell (9 queries; at least 10)"),
        ({"few": ""}, "● no difference shown"),
        ({}, "● no difference shown"),
    ],
    ids=["all are 0", "a mean of 0", "stored reason", "no p-value", "no reason"],
)  # fmt: skip
def test_verdict_of_the_card_is_that_of_the_stored_change(stored, verdict, run):
    change = {**GAIN, "model": "merged", "mean": 0.0, "low": None, "high": None, **stored}
    (run / "run.json").write_text(json.dumps({**RUN, "results": {"merge": {"changes": [change]}}}))
    (row,) = [line for line in push(settings(run), dry_run=True).card.splitlines() if "mine/dev" in line]
    assert row.split("|")[-2].strip() == verdict


def test_card_without_head_and_run_and_with_a_name_of_the_hub_alone_as_base(tiny_model_path, run):
    card = push(settings(tiny_model_path), dry_run=True).card
    assert huggingface_hub.ModelCard(card).data.base_model is None
    assert "Probabilities" not in card and "How it was made" not in card
    for inputs, base in (({"pairs": "ab"}, "base/model"), ({"model/config.json": "ab"}, None)):
        (run / "run.json").write_text(json.dumps({**RUN, "inputs": inputs}))
        card = push(settings(run), dry_run=True).card
        assert yaml.safe_load(card.split("---")[1]).get("base_model") == base


def test_sent_files_are_those_of_the_folder(run, hub, tmp_path):
    (run / "model" / ".cache").write_text("hidden")
    pushed = push(settings(run, private=True))
    sent = hub.repositories[NAME]
    assert hub.private[NAME] and set(pushed.files) == set(sent) and ".cache" not in sent
    assert sent.pop("README.md").decode() == pushed.card
    for name, content in sent.items():
        assert (run / "model" / name).read_bytes() == content
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    copy, model = load_relevance_model(tmp_path / "copy"), load_relevance_model(run / "model")
    texts = ["copy a file", "sort a list"]
    assert np.array_equal(copy.relevance("move a file", texts), model.relevance("move a file", texts))


@pytest.mark.slow
def test_command_sends_to_the_hub_of_the_environment(run):
    with hub_server() as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
        code, metrics = ended(start("push", run / "model", NAME, **environment))
        assert code == 0, metrics
        assert set(metrics["files"]) == set(hub.repositories[NAME])
