"""Sharded training: each process holds one part of the weights, gradients, moments and checkpoints.

A pass gathers each transformer block from all processes and frees it afterwards (FSDP2; Zhao et al. 2023,
arXiv:2304.11277). Each process writes its part of a checkpoint in safetensors, which any number of processes read; the
default storage of torch.distributed.checkpoint keeps the shapes and positions in a pickle.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from bixse.encoders.loading.backbones import backbones
from bixse.encoders.processes import unsharded_tensors
from bixse.errors import InputError, ModelError
from bixse.files.files import storage_errors, write_atomically
from bixse.training.distributed import is_main_process, raise_together, world_size
from bixse.training.loop.checkpoints import SHARDS_FOLDER, check_map
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import TrainingArguments

    from bixse.losses import GradedLoss


OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")
"""Optimizers of transformers whose state has the shape of the weights."""


def check_can_be_sharded(model: SentenceTransformer, args: TrainingArguments) -> None:
    """Refuse encoders, optimizers and launchers that cannot be sharded."""
    parts = backbones(model)
    if not parts or not all(transformer_blocks(part.auto_model) for part in parts):
        kind = type(parts[0].auto_model if parts else next(model.children())).__name__
        raise ModelError(
            f"sharding: got a {kind}, in which no transformer blocks are found; expected an encoder of blocks, such as "
            "BERT, ModernBERT, XLM-RoBERTa, Llama or Qwen; fix: leave `sharding` out"
        )
    quantised = [name for name, parameter in model.named_parameters() if not parameter.is_floating_point()]
    if quantised or any(getattr(part.auto_model, "is_quantized", False) for part in parts):
        raise ModelError(
            f"sharding: got a quantised encoder{f' ({quantised[0]})' if quantised else ''}; expected weights that are "
            "floating-point numbers; fix: leave `sharding` out, or load the encoder unquantised"
        )
    if args.optim not in OPTIMIZERS:
        raise InputError(
            f"sharding: got the optimizer {getattr(args.optim, 'value', args.optim)!r}; expected one of "
            f"{', '.join(OPTIMIZERS)}; fix: leave `optim` out"
        )
    launcher = (os.environ.get(f"ACCELERATE_USE_{name}", "").lower() for name in ("FSDP", "DEEPSPEED"))
    if args.fsdp_plugin_args is not None or args.deepspeed or "true" in launcher:
        raise InputError(
            "sharding: got a launcher or arguments that shard the weights too (FSDP or DeepSpeed of accelerate); "
            "expected one of them; fix: leave --use_fsdp, --use_deepspeed, `fsdp` and `deepspeed` out"
        )


def shard_encoder(model: SentenceTransformer, args: TrainingArguments) -> SentenceTransformer | None:
    """Shard the transformers model in place; every process must call this.

    Return the unsharded model on the meta device, which `whole_copy` fills; None for a single process.
    """
    check_can_be_sharded(model, args)
    if world_size() == 1:
        return None
    device = args.device
    without: dict[int, Any] = {
        id(weight): torch.nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    outline = copy.deepcopy(model, without)
    torch.set_autocast_cache_enabled(False)  # it would keep an unsharded copy of the weights in bf16
    mesh = init_device_mesh(device.type, (world_size(),))
    for part in backbones(model):
        encoder = part.auto_model
        # block by block, inner blocks first: the unsharded model never has to fit on the device
        for unit in (*transformer_blocks(encoder)[::-1], encoder.get_input_embeddings(), encoder):
            unit.to(device)
            broadcast(unsharded_tensors(unit))  # the parts are those of the first process's weights
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        register_fsdp_forward_method(encoder, "forward")  # sentence-transformers calls it past the module's hooks
    model.to(device)  # a head after the pooling is small and stays unsharded
    return outline


def whole_copy(model: SentenceTransformer, outline: SentenceTransformer) -> SentenceTransformer:
    """Gather the sharded model into CPU memory, by weight; every process calls this, and the first gets the weights."""
    unsharded = copy.deepcopy(outline)
    for parameter, empty in zip(list(model.parameters()), list(unsharded.parameters()), strict=True):
        value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if is_main_process():
            filled = torch.nn.Parameter(value.detach().to("cpu", copy=True), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(empty, filled)
    for mine, its in zip(model.buffers(), unsharded.buffers(), strict=True):
        its.copy_(mine)
    unsharded.model_card_data = model.model_card_data
    unsharded.model_card_data.register_model(unsharded)
    return unsharded


SCHEDULE_FILE = "schedule.json"
"""State of the learning rates in a checkpoint."""
WEIGHT, STATE = "weight", "state"
"""Prefixes of tensor names: `weight.NAME` of a parameter, `state.KEY.NAME` of the optimizer's state of a parameter."""
BYTES_PER_FILE = 2**30
"""Approximate bytes of the complete state per file of a checkpoint: a process writes its part of a file at once."""


def save_shards(checkpoint: Path, loss: GradedLoss, optimizer: Any, scheduler: Any) -> None:
    """Write this process's part of weights and optimizer state; every process must call this."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in _stored(loss).items():
        tensors[f"{WEIGHT}.{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{STATE}.{key}.{name}"] = value
    folder = checkpoint / SHARDS_FOLDER
    with raise_together(), storage_errors(checkpoint):
        if is_main_process():
            shutil.rmtree(folder, ignore_errors=True)  # parts of a killed run, perhaps of more processes
            folder.mkdir(parents=True)
            write_atomically(checkpoint / SCHEDULE_FILE, json.dumps(scheduler.state_dict()))
    files, written = {}, 0  # the number of each tensor's file, from 1; a file is assembled in memory
    for name, tensor in tensors.items():
        files[name] = 1 + written // BYTES_PER_FILE
        written += tensor.numel() * tensor.element_size()
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    with _original_errors():
        save_parts(tensors, storage_writer=writer, no_dist=world_size() == 1)


def load_weights(checkpoint: Path, loss: GradedLoss) -> None:
    """Load this process's part of the weights from a checkpoint."""
    tensors = {f"{WEIGHT}.{name}": parameter.detach() for name, parameter in _stored(loss).items()}
    there = HuggingFaceStorageReader(str(checkpoint / SHARDS_FOLDER)).read_metadata().state_dict_metadata.keys()
    check_map(checkpoint, "weights", len(tensors.keys() & there), len(tensors))
    _read(checkpoint, tensors)


def load_optimizer(checkpoint: Path, loss: nn.Module, optimizer: Any, scheduler: Any) -> None:
    """Load this process's part of optimizer and learning rates from a checkpoint."""
    trained = _trained(loss)
    reader = HuggingFaceStorageReader(str(checkpoint / SHARDS_FOLDER))
    tensors: dict[str, Tensor] = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        if name.startswith(f"{STATE}.") and isinstance(stored, TensorStorageMetadata):
            parameter = trained[name.split(".", 2)[2]].detach()
            # Adam's step count is a scalar, which is not sharded.
            alike = isinstance(parameter, DTensor) and stored.size == parameter.shape
            tensors[name] = torch.zeros_like(parameter) if alike else torch.zeros(stored.size)
    _read(checkpoint, tensors)
    current = optimizer.state_dict()
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        _, key, parameter_name = name.split(".", 2)
        state.setdefault(numbers[id(trained[parameter_name])], {})[key] = value
    optimizer.load_state_dict({**current, "state": state})
    scheduler.load_state_dict(json.loads((checkpoint / SCHEDULE_FILE).read_bytes()))
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate  # a scheduler's state does not set the optimizer's rates


def _trained(loss: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in loss.named_parameters() if parameter.requires_grad}


def _stored(loss: GradedLoss) -> dict[str, nn.Parameter]:
    """Return the parameters of a checkpoint: those that are trained, and the frozen map of `standardise`."""
    read = {id(weight) for part in backbones(loss.model) for weight in part.auto_model.parameters()}
    after = {name: parameter for name, parameter in loss.named_parameters() if id(parameter) not in read}
    return {**_trained(loss), **after}


def _read(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    with _original_errors():
        load_parts(
            tensors,
            storage_reader=HuggingFaceStorageReader(str(checkpoint / SHARDS_FOLDER)),
            no_dist=world_size() == 1,
        )


@contextmanager
def _original_errors() -> Iterator[None]:
    """Raise the original error (a full disk, ...), since torch's CheckpointException is no subclass of Exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns if there is one process alone
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error


class ShardedTrainer(GradedTrainer):
    """Train with weights sharded over the processes (`sharding: full`); a single process holds all weights."""

    def __init__(self, model: SentenceTransformer, args: GradedTrainingArguments, *rest: Any, **named: Any) -> None:
        self.outline = shard_encoder(model, args)
        """The encoder without weights; None in a single process."""
        super().__init__(model, args, *rest, **named)

    def unsharded_model(self) -> SentenceTransformer:
        """Return an unsharded copy in CPU memory to the first process; every process must call this."""
        return self.model if self.outline is None else whole_copy(self.model, self.outline)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Run the evaluator in every process, all on the same texts."""
        # Otherwise the first process encodes alone and waits for the others to gather weights.
        before, self.is_fsdp_enabled = self.is_fsdp_enabled, self.is_fsdp_enabled or self.outline is not None
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.is_fsdp_enabled = before

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write an unsharded model in the first process; every process must call this."""
        # the internal call comes from transformers, which saves a checkpoint: it holds parts
        unsharded = None if _internal_call else self.unsharded_model()
        if self.args.should_save:
            self._save_files(unsharded, output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save_shards(Path(output_dir), self.loss, self.optimizer, self.lr_scheduler)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_optimizer(Path(checkpoint), self.loss, self.optimizer, self.lr_scheduler)

    def _load_encoder(self, checkpoint_path: str) -> None:
        load_weights(Path(checkpoint_path), self.loss)


def transformer_blocks(backbone: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks from the lowest on; transformers derives all blocks from one class."""
    return [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
