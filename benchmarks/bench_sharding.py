"""Peak memory of a process that trains an encoder, with all weights and with its part of them (`sharding: full`).

    python benchmarks/bench_sharding.py

A BERT with random weights takes two steps on the processor: by one process, which has all weights, and by several that
share them. The peak resident memory of a process is read before the encoder is loaded and after the steps. Memory that
is freed goes back at once: else the C library keeps a part of it, which counts here and not on a GPU.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from measuring import FREED_AT_ONCE, OUT, Option, alone, options, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES = {"hidden_size": 1280, "num_hidden_layers": 10, "num_attention_heads": 20, "intermediate_size": 5120}
QUICK = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
GB = 1e9


def peak() -> float:
    """Return bytes; Linux counts in KiB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def save_encoder(folder: str, sizes: dict[str, int]) -> None:
    """Save an encoder of random weights and the demo model's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bixse.encoders.loading.build import demo_model_path

    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)


def train_two_steps(rank: int, encoder: str, port: int, processes: int) -> tuple[int, float, float]:
    """Train in one of the processes, and return the number of parameters and the peaks before and after."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes),
                   "RANK": str(rank), "LOCAL_RANK": str(rank)}  # fmt: skip
    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.loading.build import build_encoder
    from bixse.extensions import extension
    from bixse.losses import BiXSELoss
    from bixse.training.distributed import init_distributed
    from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

    init_distributed()
    before = peak()
    model = build_encoder(encoder, max_length=16, device="cpu")
    rows = [{"query": f"query {n}", "document": f"document {n}", "relevance": n % 2} for n in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        args = GradedTrainingArguments(
            folder,
            per_device_train_batch_size=2,
            max_steps=2,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        kind = extension("sharding") if processes > 1 else GradedTrainer
        kind(model, args, GradedPairs.from_rows(rows), loss=BiXSELoss(model)).train()
    return sum(part.numel() for part in model.parameters()), before, peak()


def rows_of(encoder: str, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a row per number of processes, without sharding for one."""
    for processes in numbers:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        work = partial(train_two_steps, encoder=encoder, port=port, processes=processes)
        environment = {**FREED_AT_ONCE, "OMP_NUM_THREADS": "1"}
        with (
            patch.dict(os.environ, environment),
            ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
        ):
            parameters, before, after = max(pool.map(work, range(processes)), key=lambda found: found[2] - found[1])
        yield {
            "processes": processes,
            "sharding": "full" if processes > 1 else "none",
            "parameters": parameters,
            "GB before": round(before / GB, 2),
            "peak GB": round(after / GB, 2),
            "bytes a weight": round((after - before) / parameters, 1),
        }


def main() -> None:
    """Print a row for each number of processes."""
    given = options(
        __doc__,
        quick={"processes": [2]},
        out=OUT,
        processes=Option([2, 4], "that share the weights"),
    )
    with tempfile.TemporaryDirectory() as encoder:
        alone(save_encoder, encoder, QUICK if given.quick else SIZES)
        show(rows_of(encoder, [1, *given.processes]), given.out)


if __name__ == "__main__":
    main()
