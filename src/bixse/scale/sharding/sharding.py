"""An encoder that is trained in parts: every process holds a part of each weight, gradient and moment (FSDP2).

Each transformer block is gathered from all processes when a pass comes to it, and given up after it (Zhao et al. 2023,
arXiv:2304.11277; `torch.distributed.fsdp.fully_shard`).
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from bixse.encoders.loading.attention import backbones
from bixse.encoders.processes import whole_tensors
from bixse.errors import InputError, ModelError
from bixse.training.distributed import is_main_process, world_size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn
    from transformers import TrainingArguments

OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")
"""Those of transformers whose state has the shape of the weights."""


def check_can_be_sharded(model: SentenceTransformer, args: TrainingArguments) -> None:
    """Refuse what cannot be trained in parts.

    Raises:
        ModelError: an encoder without transformer blocks, or with quantised weights.
        InputError: the launcher shards the weights too, or the optimizer keeps a state of another shape.
    """
    parts = backbones(model)
    if not parts or not all(_blocks(part.auto_model) for part in parts):
        kind = type(parts[0].auto_model if parts else next(model.children())).__name__
        raise ModelError(
            f"sharding: got a {kind}, in which no transformer blocks are found; expected an encoder of blocks, such as "
            "BERT, ModernBERT, XLM-RoBERTa, Llama or Qwen; fix: leave `sharding` out"
        )
    quantised = [name for name, own in model.named_parameters() if not own.is_floating_point()]
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
    if args.fsdp_plugin_args is not None or args.deepspeed or _launcher_shards():
        raise InputError(
            "sharding: got a launcher or arguments that shard the weights too (FSDP or DeepSpeed of accelerate); "
            "expected one of them; fix: leave --use_fsdp, --use_deepspeed, `fsdp` and `deepspeed` out"
        )


def shard_encoder(model: SentenceTransformer, args: TrainingArguments) -> SentenceTransformer | None:
    """Leave this process its part of every weight of the transformers model, in place; every process must call this.

    A block at a time goes to the device, so that the whole never has to fit there. The parts are those of the first
    process's weights. What stands beside the transformers model (a head after the pooling) is small and stays whole.

    Returns:
        The model as it was, without weights (on the meta device): what `whole_copy` fills. None of a single process,
        which has all parts: nothing is changed then.

    Raises:
        ModelError, InputError: see `check_can_be_sharded`.
    """
    check_can_be_sharded(model, args)
    if world_size() == 1:
        return None
    device = args.device
    without: dict[int, Any] = {
        id(own): torch.nn.Parameter(torch.empty_like(own, device="meta"), requires_grad=own.requires_grad)
        for own in model.parameters()
    }
    outline = copy.deepcopy(model, without)
    torch.set_autocast_cache_enabled(False)  # it would keep a whole copy of the weights in bf16
    mesh = init_device_mesh(device.type, (world_size(),))
    for part in backbones(model):
        encoder = part.auto_model
        for unit in (*_blocks(encoder), encoder.get_input_embeddings(), encoder):
            unit.to(device)
            broadcast(whole_tensors(unit))
            fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        register_fsdp_forward_method(encoder, "forward")  # sentence-transformers calls it past the module's hooks
    model.to(device)
    return outline


def whole_copy(model: SentenceTransformer, outline: SentenceTransformer) -> SentenceTransformer:
    """The sharded model as a plain one in main memory, gathered weight by weight; every process must call this.

    The first process gets it; in the others it has no weights.
    """
    whole = copy.deepcopy(outline)
    for own, empty in zip(list(model.parameters()), list(whole.parameters()), strict=True):
        value = own.full_tensor() if isinstance(own, DTensor) else own
        if is_main_process():
            kept = torch.nn.Parameter(value.detach().to("cpu", copy=True), requires_grad=own.requires_grad)
            torch.utils.swap_tensors(empty, kept)
    for mine, its in zip(model.buffers(), whole.buffers(), strict=True):
        its.copy_(mine)
    whole.model_card_data = model.model_card_data
    whole.model_card_data.register_model(whole)
    return whole


def _blocks(encoder: nn.Module) -> list[GradientCheckpointingLayer]:
    """The transformer blocks, inner ones first; transformers derives all of them from one class."""
    return [module for module in encoder.modules() if isinstance(module, GradientCheckpointingLayer)][::-1]


def _launcher_shards() -> bool:
    return any(os.environ.get(f"ACCELERATE_USE_{word}", "").lower() == "true" for word in ("FSDP", "DEEPSPEED"))
