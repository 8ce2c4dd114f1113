"""Write encoder, pooling and normalisation as one graph; load it again as a model."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn

from bixse.encoders.head import load_heads, save_heads
from bixse.encoders.instructions import prompt_for
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import InputError, ModelError, first_fault
from bixse.files.files import damage, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bixse.export.export_settings import Target

RECORD_FILE = "export.json"
ONNX_FILE, OPENVINO_FILE = "model.onnx", "model.xml"
OUTPUT = "sentence_embedding"
TORCH_TO_ONNX = ("onnx", "onnxscript")
NEEDED = {
    "onnx": ("onnx", (*TORCH_TO_ONNX, "onnxruntime")),
    "onnx-int8": ("onnx", (*TORCH_TO_ONNX, "onnxruntime")),
    "openvino": ("openvino", (*TORCH_TO_ONNX, "openvino")),  # it reads the ONNX graph
}
"""Target -> extra of bixse, and its packages."""
COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Input of a graph -> its name in the library tokenizers."""
SAMPLES = ["one two", "one two three four five six"]
ONE_FILE = 2**31 - 2**24
"""Bytes of a graph from which its weights become a file of their own: a protocol buffer holds 2 GB."""


def check_installed(to: str) -> None:
    """Raise InputError, with the name of the extra, if a package that a target needs is not installed."""
    extra, packages = NEEDED[to]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{', '.join(missing)}: got no such package; expected it for --to {to}; fix: pip install 'bixse[{extra}]'"
        )


def inputs_of(model: RelevanceModel) -> list[str]:
    """Return the inputs of a model's graph; raise ModelError for a model that is no single graph of tokens."""
    tokenizer = getattr(model[0], "tokenizer", None)
    prompts = [prompt_for(model, "query"), prompt_for(model, "document")]
    leaves_out = any(getattr(module, "include_prompt", True) is False for module in model.children())
    fault = ""
    if model.transformers_model is None or not hasattr(tokenizer, "backend_tokenizer"):
        fault = f"a {type(model[0]).__name__} as its first module; expected a transformer with a fast tokenizer"
    elif leaves_out and any(prompts):
        fault = "prompts and a pooling that leaves them out; expected a pooling of all tokens"
    if fault:
        raise ModelError(f"model: got {fault}; fix: serve this model with sentence-transformers")
    features = model.preprocess(SAMPLES)
    return [name for name in COLUMNS if isinstance(features.get(name), Tensor)]


class _UnitEmbedding(nn.Module):
    def __init__(self, model: RelevanceModel, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.dimensions = model, inputs, model.get_embedding_dimension()

    def forward(self, *tokens: Tensor) -> Tensor:
        embeddings = self.model(dict(zip(self.inputs, tokens, strict=True)))["sentence_embedding"]
        return nn.functional.normalize(embeddings[:, : self.dimensions].float(), dim=-1)


def write_graph(model: RelevanceModel, to: Target, folder: Path) -> None:
    """Write the graph, the tokenizer, the relevance head and the record of a float32 model on the CPU.

    The graph maps (N, T) tokens, any N and T, to (N, D) unit embeddings. The tokenizer cuts and pads as the model does.
    """
    inputs, path = inputs_of(model), folder / ONNX_FILE
    features = model.preprocess(SAMPLES)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _UnitEmbedding(model, inputs).eval(),
            tuple(features[name] for name in inputs),
            dynamo=True,
            input_names=inputs,
            output_names=[OUTPUT],
            dynamic_shapes=(tuple(axes for _ in inputs),),
        )
        assert program is not None
        program.save(path)
        if to == "onnx-int8":
            _quantise(path)
    record = {
        "to": to,
        "inputs": inputs,
        "dimensions": model.get_embedding_dimension(),
        "max_length": model.max_seq_length,
        "prompts": {**model.prompts, **{kind: prompt_for(model, kind) or "" for kind in ("query", "document")}},
    }
    write_atomically(folder / RECORD_FILE, json.dumps(record, indent=2) + "\n")
    _save_tokenizer(model, folder)
    if model.head is not None:  # of embeddings that the graph has already cut
        save_heads({None: replace(model.head, dimensions=None)}, folder)
    _add_metadata(path, record, model)
    if to == "openvino":
        import openvino

        openvino.save_model(openvino.convert_model(path), folder / OPENVINO_FILE, compress_to_fp16=False)
        for part in folder.glob(f"{ONNX_FILE}*"):
            part.unlink()


def _quantise(path: Path) -> None:
    """Give the matrices of weights 8 bits per entry and a scale per column. Embeddings of tokens stay float32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    large = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*")) > ONE_FILE
    quantize_dynamic(
        path,
        path,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        reduce_range=True,  # 7 bits: a CPU without VNNI adds two products in 16 bits, where 8 bits would saturate
        weight_type=QuantType.QInt8,
        use_external_data_format=large,
    )


def _save_tokenizer(model: RelevanceModel, folder: Path) -> None:
    """Save the tokenizer with the cutting and padding of the model, which it otherwise gets on each call."""
    from tokenizers import Tokenizer

    tokenizer = model[0].tokenizer
    tokenizer.save_pretrained(folder)
    fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if model.max_seq_length is not None:
        fast.enable_truncation(model.max_seq_length, direction=tokenizer.truncation_side)
    fast.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        pad_type_id=tokenizer.pad_token_type_id,
    )
    fast.save(str(folder / "tokenizer.json"))


def _add_metadata(path: Path, record: dict[str, Any], model: RelevanceModel) -> None:
    """Write prompts and relevance head into the graph: a graph of one text cannot compute a pair's probability."""
    import onnx

    graph = onnx.load(path, load_external_data=False)
    head = model.head
    facts = {
        **record,
        "head": {} if head is None else {"scale": head.slope * head.logit_scale, "bias": head.logit(0.0)},
    }
    onnx.helper.set_model_props(graph, {"bixse": json.dumps(facts)})
    onnx.save(graph, path)


class _Graph(InputModule):
    """A graph as the only module of a model."""

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        super().__init__()
        self.record, self.inputs = record, record["inputs"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.compute = _session(folder, record["to"])
        self.max_seq_length = record["max_length"]

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        texts = self.tokenizer.encode_batch([f"{prompt or ''}{text}" for text in inputs])
        return {name: torch.tensor([getattr(text, COLUMNS[name]) for text in texts]) for name in self.inputs}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        embeddings = self.compute({name: features[name].numpy() for name in self.inputs})
        return {**features, "sentence_embedding": torch.from_numpy(embeddings)}

    def get_embedding_dimension(self) -> int:
        return int(self.record["dimensions"])

    def save(self, *_: Any, **__: Any) -> None:
        raise ModelError("export: got an exported graph to save; expected a model; fix: copy its folder")


def load_exported(folder: str | Path) -> RelevanceModel:
    """Load what `bixse export` wrote, as a model on the CPU that encodes, is evaluated and gives probabilities.

    Raises:
        ModelError: the folder was damaged, or holds no exported graph.
        InputError: the runtime is not installed.

    Example:
        ::

            evaluate(load_exported("runs/onnx"), "runs/quickstart/collection").metrics
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD_FILE).read_bytes())
        fault = damage(folder)
    except (OSError, ValueError) as error:
        fault = f"no readable {RECORD_FILE} ({first_fault(error)})"
    if fault:
        raise ModelError(f"{folder}: got {fault}; expected what `bixse export` wrote; fix: export the model again")
    check_installed(record["to"])
    model = RelevanceModel(modules=[_Graph(folder, record)], prompts=record["prompts"], device="cpu")
    model.heads = load_heads(folder)
    return model


def _session(folder: Path, to: str) -> Callable[[dict[str, NDArray[np.int64]]], Any]:
    """Return the function of a graph, on as many threads as torch uses."""
    if to == "openvino":
        import openvino

        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(folder / OPENVINO_FILE, "CPU", settings)
        return lambda tokens: compiled(tokens)[0]
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / ONNX_FILE, options, providers=["CPUExecutionProvider"])
    return lambda tokens: session.run([OUTPUT], tokens)[0]


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the warnings and the log of torch's exporter off the terminal: they are about its own code."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
