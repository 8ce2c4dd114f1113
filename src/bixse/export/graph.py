"""Write encoder, pooling and normalisation as one graph; load it again as a model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.modules import InputModule, Transformer
from tokenizers import Tokenizer
from torch import Tensor, nn

from bixse.encoders.head import load_heads, save_heads
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.build import quiet_loading
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import ModelError, first_fault, needs_extra
from bixse.files.files import damage, file_hash, write_atomically

if TYPE_CHECKING:
    from bixse.export.export_settings import Target

RECORD_FILE, ONNX_FILE, OPENVINO_FILE, TOKENIZER_FILE = "export.json", "model.onnx", "model.xml", "tokenizer.json"
NEEDED = {"openvino": ("openvino", "onnxscript", "openvino")}  # OpenVINO reads the ONNX graph
"""Target -> extra of bixse, and its packages."""
COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Input of a graph -> its name in the library tokenizers."""
SAMPLES = ["one two", "one two three four five six"]


def check_installed(to: str) -> None:
    """Raise InputError, with the name of the extra, if a package that a target needs is not installed."""
    extra, *packages = NEEDED.get(to, ("onnx", "onnxscript", "onnxruntime"))
    with needs_extra(extra, f"--to {to}"):
        for name in packages:
            import_module(name)


def inputs_of(model: RelevanceModel) -> list[str]:
    """Return the inputs of a model's graph; raise ModelError for a model that is no single graph of tokens."""
    fault = ""
    if not isinstance(model[0], Transformer) or not hasattr(model[0].tokenizer, "backend_tokenizer"):
        fault = f"a {type(model[0]).__name__} as its first module; expected a transformer with a fast tokenizer"
    elif any(getattr(part, "include_prompt", True) is False for part in model) and any(model.prompts.values()):
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
        return nn.functional.normalize(embeddings[:, : self.dimensions], dim=-1)


def write_graph(model: RelevanceModel, to: Target, folder: Path) -> None:
    """Write the graph, the tokenizer, the relevance head and the record of a float32 model on the CPU.

    The graph maps (N, T) tokens, any N and T, to (N, D) unit embeddings. It holds the record as metadata, too.
    """
    inputs, head = inputs_of(model), model.head
    record = {
        "to": to,
        "inputs": inputs,
        "dimensions": model.get_embedding_dimension(),
        "max_length": model.max_seq_length,
        "prompts": {**model.prompts, **{kind: prompt_for(model, kind) or "" for kind in ("query", "document")}},
        # a graph of one text cannot give the probability of a pair: sigma(scale * cosine + bias)
        "head": None if head is None else {"scale": head.slope * head.logit_scale, "bias": head.logit(0.0)},
    }
    features = model.preprocess(SAMPLES)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that the graph does not need
    with TemporaryDirectory() as scratch, quiet_loading(), torch.no_grad():
        path = (folder if to == "onnx" else Path(scratch)) / ONNX_FILE
        try:
            program = torch.onnx.export(
                _UnitEmbedding(model, inputs).eval(),
                tuple(features[name] for name in inputs),
                dynamo=True,
                verbose=False,
                input_names=inputs,
                output_names=["sentence_embedding"],
                dynamic_shapes=(tuple(axes for _ in inputs),),
            )
        except torch.onnx.OnnxExporterError as error:
            raise ModelError(
                f"model: got no graph ({first_fault(error)}); expected an architecture that torch.onnx knows; fix: "
                "serve this model with sentence-transformers"
            ) from error
        assert program is not None
        # torch has done this pre-processing; without this entry, a warning would set up Python's root logger
        program.model.metadata_props.update(
            {"bixse": json.dumps(record), "onnx.quant.pre_process": "onnxruntime.quant"}
        )
        program.save(path)
        if to == "onnx-int8":
            _quantise(path, folder / ONNX_FILE)
        elif to == "openvino":
            import openvino

            openvino.save_model(openvino.convert_model(path), folder / OPENVINO_FILE, compress_to_fp16=False)
    write_atomically(folder / RECORD_FILE, json.dumps(record, indent=2) + "\n")
    if head is not None:  # the graph has already cut the embeddings
        save_heads({None: replace(head, dimensions=None)}, folder)
    _save_tokenizer(model, folder)


def _quantise(path: Path, target: Path) -> None:
    """Give the matrices of weights 8 bits per entry and a scale per column. Embeddings of tokens stay float32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # 7 of the 8 bits: a CPU without VNNI adds two products in 16 bits, and 8 bits would saturate
    options: dict[str, Any] = {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8}
    quantize_dynamic(path, target, op_types_to_quantize=["MatMul", "Gemm"], **options)


def _save_tokenizer(model: RelevanceModel, folder: Path) -> None:
    """Save the tokenizer with the cutting and padding of the model, which it otherwise gets on each call."""
    tokenizer: Any = model[0].tokenizer
    tokenizer.save_pretrained(folder)
    fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if model.max_seq_length is not None:
        fast.enable_truncation(model.max_seq_length, direction=tokenizer.truncation_side)
    pad = {"pad_id": tokenizer.pad_token_id, "pad_token": tokenizer.pad_token}
    fast.enable_padding(direction=tokenizer.padding_side, pad_type_id=tokenizer.pad_token_type_id, **pad)
    fast.save(str(folder / TOKENIZER_FILE))


class _Graph(InputModule):
    """A graph as the only module of a model, on as many threads as torch uses."""

    compute: Callable[[dict[str, Any]], Any]

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.folder, self.record, self.max_seq_length = folder, record, record["max_length"]
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        if record["to"] == "openvino":
            import openvino

            settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
            compiled = openvino.Core().compile_model(folder / OPENVINO_FILE, "CPU", settings)
            self.compute = lambda tokens: compiled(tokens)[0]
        else:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            session = onnxruntime.InferenceSession(folder / ONNX_FILE, options, providers=["CPUExecutionProvider"])
            self.compute = lambda tokens: session.run(None, tokens)[0]

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        texts = self.tokenizer.encode_batch([f"{prompt or ''}{text}" for text in inputs])
        return {name: torch.tensor([getattr(text, COLUMNS[name]) for text in texts]) for name in self.record["inputs"]}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        embeddings = self.compute({name: features[name].numpy() for name in self.record["inputs"]})
        return {**features, "sentence_embedding": torch.from_numpy(embeddings)}

    def get_embedding_dimension(self) -> int:
        return int(self.record["dimensions"])

    @cached_property
    def hashes(self) -> dict[str, Any]:
        return {path.name: file_hash(path) for path in sorted(self.folder.glob("model.*"))}

    def get_config_dict(self) -> dict[str, Any]:
        """Return what tells this graph from others: it has no tensors whose hash could."""
        return self.hashes

    def save(self, *_: Any, **__: Any) -> None:
        raise ModelError("export: got a graph to save; expected a model; fix: copy the folder of the graph")


def load_exported(folder: str | Path) -> RelevanceModel:
    """Load what `bixse export` wrote, as a model on the CPU that encodes, is evaluated and gives probabilities.

    Raises:
        ModelError: the folder was damaged, or holds no exported graph.
        InputError: the runtime is not installed.

    Example:
        ::

            evaluate(EncoderSystem(load_exported("runs/onnx"), cache="none"), "my-collection").metrics
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / RECORD_FILE).read_bytes())
        to, fault = record["to"], damage(folder)
    except (OSError, ValueError, TypeError, KeyError) as error:
        fault = f"no readable {RECORD_FILE} ({first_fault(error)})"
    if fault:
        raise ModelError(f"{folder}: got {fault}; expected what `bixse export` wrote; fix: export the model again")
    check_installed(to)
    model = RelevanceModel(modules=[_Graph(folder, record)], prompts=record["prompts"], device="cpu")
    model.heads = load_heads(folder)
    return model
