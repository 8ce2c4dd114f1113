import gc
import os
import shutil
import signal
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from string import ascii_lowercase

import jinja2
import pytest
import torch

from bixse.encoders.loading.precision import PRECISION_VARIABLE, use_precision
from helpers.card import stand_in
from helpers.chat_server import chat_server
from helpers.toy import BERT_SIZES
from helpers.ui_browser import started_chromium

os.environ["HF_HUB_OFFLINE"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with SIGINT ignored
os.environ.setdefault(PRECISION_VARIABLE, "float32")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses deterministic algorithms

jinja2.Template = cache(jinja2.Template)  # sentence-transformers compiles its model card at each save, for 0.2 s

CACHES = tempfile.TemporaryDirectory(prefix="bixse-test-caches-")
os.environ["BIXSE_CACHE_DIR"] = CACHES.name  # never the user's own

WORDS = """
copy move delete open read write list file folder tree disk path name text byte line word number sum mean sort
find match search replace split join time date clock sleep wait thread process lock queue stack heap set map
a the of to in and or not how do i
""".split()  # noqa: SIM905


def pytest_collection_finish():
    """Take all that is imported out of garbage collection: accelerate collects after each training, for 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test marked `precision` in that dtype, its fixtures and processes too."""
    marker = item.get_closest_marker("precision")
    with use_precision(marker.args[0] if marker is not None else None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run a test marked `gpu` on a stand-in where there is no GPU."""
    imitated = item.get_closest_marker("gpu") is not None and not torch.cuda.is_available()
    with stand_in() if imitated else nullcontext():
        return (yield)


@pytest.fixture(scope="session")
def bf16_distance():
    """Return the allowed distance of a unit vector from the exact vector after matrix products in bf16.

    Rounding to bf16 changes a number by a share of u = 2^-8 at most, with the standard deviation u / sqrt(3). A product
    (summed in float32) rounds both factors and the result, so n products in a row have u sqrt(n). Four standard
    deviations are allowed; the difference of two computations has sqrt(2) times as much.
    """
    return lambda products, computations=1: 4 * 2**-8 * (products * computations) ** 0.5


@pytest.fixture(autouse=True)
def cache_path(request, monkeypatch):
    """The cache folder of this test alone."""
    folder = Path(CACHES.name) / str(abs(hash(request.node.nodeid)))
    monkeypatch.setenv("BIXSE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def chromium():
    """The one Chromium of this process, in which playwright can run only once."""
    with started_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory):
    """Folder of a random two-layer BERT encoder with a vocabulary of `WORDS`; it loads in 50 ms."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-model")
    backbone = folder / "backbone"
    backbone.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *ascii_lowercase]
    vocabulary = list(dict.fromkeys([*words, *(f"##{letter}" for letter in ascii_lowercase)]))
    (backbone / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    numbers = {word: number for number, word in enumerate(vocabulary)}
    BertTokenizerFast(vocab_file=str(backbone / "vocab.txt"), vocab=numbers).save_pretrained(backbone)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(vocabulary), **BERT_SIZES)
    BertModel(config).save_pretrained(backbone)
    transformer = Transformer(str(backbone), max_seq_length=32)
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="mean")], device="cpu")
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture
def tiny_model(tiny_model_path):
    """A fresh copy of the tiny encoder, in evaluation mode, on the CPU."""
    from bixse.encoders.relevance_model import RelevanceModel

    return RelevanceModel(str(tiny_model_path), device="cpu").eval()


@pytest.fixture
def model(tmp_path, tiny_model_path):
    """A copy of the tiny model's folder that a test may spoil."""
    return shutil.copytree(tiny_model_path, tmp_path / "model")


@pytest.fixture
def encoded(monkeypatch):
    """Kind and text of each text that was encoded."""
    from bixse.encoders import encode

    texts_seen, encode_here = [], encode.encode_here

    def record(model, texts, kind, *rest):
        texts_seen.extend((kind, text) for text in texts)
        return encode_here(model, texts, kind, *rest)

    monkeypatch.setattr(encode, "encode_here", record)
    return texts_seen


@pytest.fixture
def router_model(tiny_model_path):
    """Two encoders that differ, one for queries and one for documents, behind one router."""
    from sentence_transformers.base.modules import Router

    from bixse.encoders.relevance_model import RelevanceModel

    query, document = (list(RelevanceModel(str(tiny_model_path), device="cpu").children()) for _ in range(2))
    with torch.no_grad():
        for parameter in query[0].parameters():
            parameter.mul_(1.5)
    return RelevanceModel(modules=[Router.for_query_document(query, document)], device="cpu").eval()


DECODERS = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 16}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 16}),
}


@pytest.fixture(scope="session")
def decoder_path(tiny_model_path, tmp_path_factory):
    """Folder of a random two-layer decoder as a causal language model leaves it: no sentence-transformers files."""

    def make(kind):
        import transformers

        folder = tmp_path_factory.mktemp(kind)
        tokenizer = transformers.BertTokenizerFast.from_pretrained(tiny_model_path)
        tokenizer.save_pretrained(folder)
        name, options = DECODERS[kind]
        options = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **BERT_SIZES, **options}
        torch.manual_seed(0)
        config = getattr(transformers, name)(num_key_value_heads=2, **options)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        return folder

    return cache(make)


@pytest.fixture(scope="session")
def actions(tmp_path_factory):
    """Folder of a collection of actions (splits train, dev, test); its parent holds the training pairs."""
    from bixse.data.collection import save_collection
    from bixse.data.graded_pairs import Pairs
    from bixse.data.pairs_files import save_graded_pairs
    from bixse.relevance import GradeScale
    from helpers.toy import action_collection

    folder, collection = tmp_path_factory.mktemp("actions") / "actions", action_collection()
    save_collection(collection, folder)
    pairs = Pairs.from_collection(collection, "train", GradeScale(0, 3))
    save_graded_pairs(pairs, folder.parent / "pairs.jsonl")
    return folder


@pytest.fixture(scope="session")
def student(tmp_path_factory):
    """Folder of a static encoder of 16 dimensions, which trains in a second."""
    from bixse.encoders.loading.build import build_encoder
    from bixse.encoders.loading.static import static_encoder
    from bixse.encoders.relevance_model import save_whole

    folder = tmp_path_factory.mktemp("student") / "static"
    save_whole(static_encoder(build_encoder("demo", device="cpu"), 16), folder)
    return folder


@pytest.fixture(scope="session")
def server():
    """The stand-in chat server; each test makes scenarios of its own."""
    with chat_server() as running:
        yield running
