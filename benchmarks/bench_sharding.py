"""Peak memory of a process that trains an encoder, with whole weights and with its part of them (`sharding: full`).

    python benchmarks/bench_sharding.py

A BERT with random weights takes two steps on the processor: by one process, which has all weights, and by several that
share them. The peak resident memory of a process is read before the encoder is loaded and after the steps. Memory that
is freed goes back at once (`MALLOC_MMAP_THRESHOLD_`): else the C library keeps a part of it, which counts here and
not on a GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"hidden_size": 1280, "num_hidden_layers": 10, "num_attention_heads": 20, "intermediate_size": 5120}
QUICK = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
GB = 1e9


def peak() -> float:
    """Bytes; Linux counts in KiB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def save_encoder(folder: str, quick: bool) -> None:
    """A folder with an encoder of random weights and the demo model's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bixse.encoders.loading.build import demo_model_path

    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokenizer), **(QUICK if quick else SIZES))).save_pretrained(folder)


def train_two_steps(encoder: str, sharding: str | None) -> None:
    """In each process: train, and print parameters and peaks as JSON."""
    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.loading.build import build_encoder
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
            sharding=sharding,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        GradedTrainer(model, args, GradedPairs.from_rows(rows), loss=BiXSELoss(model)).train()
    weights = sum(own.numel() for own in model.parameters())
    print(json.dumps({"parameters": weights, "before": before, "peak": peak()}))


def start(processes: int, arguments: list[str]) -> list[dict[str, float]]:
    """What each process printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])

    several = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1"}
    several |= {"MALLOC_MMAP_THRESHOLD_": "100000", "MALLOC_TRIM_THRESHOLD_": "100000"}
    started = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--inside", *arguments],
            env={**os.environ, **several, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    return [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]


def main() -> None:
    """Print a row for each number of processes, without and with sharding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tiny encoder: a look, not a measurement")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], help="that share the weights")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--sharding", choices=["full"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        train_two_steps(given.inside, given.sharding)
        return
    print(f"{'processes':>9} {'sharding':>8} {'parameters':>11} {'GB before':>9} {'peak GB':>7} {'bytes a weight':>14}")
    encoder = tempfile.mkdtemp(prefix="bixse-bench-sharding-")
    made = multiprocessing.get_context("spawn").Process(target=save_encoder, args=(encoder, given.quick))
    made.start()
    made.join()
    for processes in (1, *([2] if given.quick else given.processes)):
        sharding = ["--sharding", "full"] if processes > 1 else []
        found = start(processes, [encoder, *sharding])
        most = max(found, key=lambda own: own["peak"] - own["before"])
        each = (most["peak"] - most["before"]) / most["parameters"]
        print(
            f"{processes:>9} {sharding[-1] if sharding else 'none':>8} {most['parameters']:>11,} "
            f"{most['before'] / GB:>9.2f} {most['peak'] / GB:>7.2f} {each:>14.1f}",
            flush=True,
        )
    shutil.rmtree(encoder)


if __name__ == "__main__":
    main()
