import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch

from bixse.encoders.loading.precision import PRECISION_VARIABLE, use_precision

os.environ["HF_HUB_OFFLINE"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with SIGINT ignored
os.environ.setdefault(PRECISION_VARIABLE, "float32")

CACHES = tempfile.TemporaryDirectory(prefix="bixse-test-caches-")
os.environ["BIXSE_CACHE_DIR"] = CACHES.name  # never the user's own

WORDS = """
copy move delete open read write list file folder tree disk path name text byte line word number sum mean sort
find match search replace split join time date clock sleep wait thread process lock queue stack heap set map
a the of to in and or not how do i
""".split()  # noqa: SIM905


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Run a test marked `precision` in that one, its fixtures and processes too; all others as the variable says."""
    marker = item.get_closest_marker("precision")
    with use_precision(marker.args[0] if marker is not None else None):
        return (yield)


@pytest.fixture(scope="session")
def bf16_distance():
    """How far a unit vector may be from the exact one where matrix products are computed in bf16.

    bf16 has 8 bits of significand: rounding to the nearest changes a number by a share of u = 2^-8 at most. In a matrix
    product (summed in float32) three numbers are rounded: both factors and the result. A share that is spread evenly
    over [-u, u] has the standard deviation u / sqrt(3), so after n products in a row, whose roundings are independent
    and whose scale the norms between them keep, the vector is off by about u / sqrt(3) * sqrt(3 n) = u sqrt(n) of its
    length. Four standard deviations are allowed; the difference of two such computations has sqrt(2) times as much.
    """

    def allowed(products, computations=1):
        return 4 * 2**-8 * (products * computations) ** 0.5

    return allowed


@pytest.fixture(autouse=True)
def cache_path(request, monkeypatch):
    """The cache folder of one test: what others keep does not change what it encodes."""
    folder = Path(CACHES.name) / str(abs(hash(request.node.nodeid)))
    monkeypatch.setenv("BIXSE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory):
    """Folder of a random two-layer BERT encoder with its own vocabulary; made once, loads in 50 ms."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-model")
    backbone = folder / "backbone"
    backbone.mkdir()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *WORDS,
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    vocabulary = list(dict.fromkeys(vocabulary))
    (backbone / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    tokenizer = BertTokenizerFast(
        vocab_file=str(backbone / "vocab.txt"), vocab={w: i for i, w in enumerate(vocabulary)}
    )
    tokenizer.save_pretrained(backbone)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(backbone)
    transformer = Transformer(str(backbone), max_seq_length=32)
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="mean")], device="cpu")
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.fixture
def tiny_model(tiny_model_path):
    """A fresh copy of the tiny encoder, in evaluation mode, on the processor."""
    from bixse.encoders.relevance_model import RelevanceModel

    return RelevanceModel(str(tiny_model_path), device="cpu").eval()


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
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
        name, own = DECODERS[kind]
        torch.manual_seed(0)
        config = getattr(transformers, name)(
            vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES, **own
        )
        transformers.AutoModel.from_config(config).save_pretrained(folder)
        return folder

    made = {}
    return lambda kind: made[kind] if kind in made else made.setdefault(kind, make(kind))


@pytest.fixture(scope="session")
def actions(tmp_path_factory):
    """Folder of a collection of actions with the splits train, dev and test, and beside it its training pairs."""
    from bixse.data.collection import save_collection
    from bixse.data.graded_pairs import GradedPairs
    from bixse.data.pairs_files import save_graded_pairs
    from bixse.relevance import GradeScale
    from helpers.toy import action_collection

    folder = tmp_path_factory.mktemp("actions") / "actions"
    save_collection(action_collection(), folder)
    pairs = GradedPairs.from_collection(action_collection(), "train", GradeScale(0, 3))
    save_graded_pairs(pairs, folder.parent / "pairs.jsonl")
    return folder


@pytest.fixture(scope="session")
def student(tmp_path_factory):
    """Folder of a static encoder of 16 dimensions, which trains in a second."""
    from bixse.lab.static_student import save_static_student

    folder = tmp_path_factory.mktemp("student") / "static"
    save_static_student(folder, dimensions=16)
    return folder
