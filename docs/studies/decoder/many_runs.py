r"""Train a decoder's lowest layers with several losses, many runs per process, on one GPU or one core per process.

    python docs/studies/decoder/queues.py queue scales > queue.txt
    python docs/studies/decoder/many_runs.py queue.txt RUNS --model runs/smollm2 --data DATA --budget 200 --part 0/4
    python docs/studies/decoder/queues.py table RUNS

A queue has one run per line, the most informative first: `loss=infonce map=mean layers=6 lr=0.001` and other fields of
`Arm`. A run writes one JSON line (RUNS/NAME.json) and its nDCG@10 per query (RUNS/NAME.npz); a run that has both is not
done again. Several processes with other parts of a queue share the GPU, or take a core each (OMP_NUM_THREADS=1). DATA
holds nfcorpus, scifact and pydocs (the collection of `bixse quickstart`); the model is the folder of convert.py.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from bixse.data.collection import load_collection
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import autocast
from bixse.evaluation.metrics import evaluate_run
from bixse.losses import BiXSELoss
from bixse.losses.catalogue import build_loss
from bixse.losses.targets import GradedTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

STARTED = time.monotonic()
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INSTRUCTIONS = {
    "nfcorpus": "Given a title of nutrition or health, retrieve articles about it",
    "scifact": "Given a scientific claim, retrieve documents that support or refute it",
    "pydocs": "Given a question about Python, retrieve documentation that answers it",
}
QUERY_TOKENS, LONGEST, TEXTS_MEASURED = 64, 256, 1000
TOKENS_TRAINED, TOKENS_READ = (2**14, 2**17) if DEVICE.type == "cuda" else (2**13, 2**12)
"""Maximum number of tokens per pass, padding included: whole batches of 32 queries are one pass."""
LOGGED_EVERY = 20
LOGGED = ("step", "loss", "relevant", "irrelevant", "r", "on_relevant", "on_irrelevant", "on_nearest", "pull")
"""Mean cosines of relevant and irrelevant entries, the cut r = -beta / alpha, and shares of the gradient's sum of
absolute values (`pull`) on relevant, irrelevant and each query's nearest irrelevant entries."""


@dataclass(frozen=True)
class Arm:
    """One training run."""

    loss: str = "bixse"  # a name of bixse.losses.LOSSES; "none" leaves the model untrained
    map: str = "none"  # none, mean, mean-and-deviation, project
    layers: int = 12
    steps: int = 60  # 0 takes `epochs`
    epochs: float = 0.0
    batch: int = 32
    K: int = 2
    lr: float = 3e-4  # the peak, whatever the batch
    scale: float = 20.0
    seed: int = 0
    data: str = "pydocs"  # or mixture
    bias: str = "fit"  # prior, or a number
    hard: float = 0.0  # weight p ** hard of BiXSE's irrelevant entries, with mean 1: the probable ones pull more
    grow: float = 0.0  # share of the scale at the first step; it grows evenly
    length: int = 48  # tokens of a document in training, and `read` in evaluation
    read: int = 64
    on: str = "dev"  # dev, test or dev+test
    recompute: int = 0  # 1 holds the states between layers alone

    @classmethod
    def of(cls, line: str) -> Arm:
        words = dict(word.split("=") for word in line.split())
        known = {field.name: type(field.default) for field in fields(cls)}
        return cls(**{name: known[name](value) for name, value in words.items()})

    @property
    def objective(self) -> str:
        """The loss, and what a variant changes in it."""
        changes = {"hard": self.hard, "grow": self.grow, "bias": self.bias}
        return " ".join([self.loss, *(f"{k}={v}" for k, v in changes.items() if v != getattr(Arm, k))])

    @property
    def line(self) -> str:
        changed = {name: value for name, value in asdict(self).items() if value != getattr(Arm, name)}
        return " ".join(f"{name}={value}" for name, value in ({"loss": self.loss} | changed).items())

    @property
    def name(self) -> str:
        return self.line.translate(str.maketrans("=+ ", "--_"))


class HardBiXSE(BiXSELoss):
    """BiXSE whose irrelevant entries count by their probability, on a small batch."""

    hard = 0.0

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        if not self.has_bias:
            self.start_bias(queries, documents, targets)
        logits, relevance = self.logit_scale * queries @ documents.T + self.logit_bias, targets.dense()[0]
        weights, irrelevant = logits.detach().sigmoid() ** self.hard, relevance == 0
        weights = torch.where(irrelevant, weights / weights[irrelevant].mean(), 1.0)
        return (weights * binary_cross_entropy_with_logits(logits, relevance, reduction="none")).sum() / len(queries)


class Texts:
    """Texts of similar length in padded passes on the device: ids, attention mask, and weights of a mean."""

    def __init__(self, tokens: list[list[int]], prompts: list[int], limit: int) -> None:
        order = np.argsort([-len(text) for text in tokens], kind="stable")
        self.passes, start = [], 0
        while start < len(order):
            width = -(-len(tokens[order[start]]) // 16) * 16
            rows = order[start : start + max(1, limit // width)]
            shape = (len(rows), width)
            ids, seen, weights = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, np.float32)
            for row, number in enumerate(rows):
                length, prompt = len(tokens[number]), prompts[number]
                ids[row, :length], seen[row, :length] = tokens[number], True
                weights[row, prompt:length] = 1 / (length - prompt)
            parts = (torch.from_numpy(part).to(DEVICE) for part in (ids, seen[:, None, None], weights[..., None]))
            self.passes.append(tuple(parts))
            start += len(rows)
        self.back = torch.from_numpy(np.argsort(order)).to(DEVICE)


class Task:
    """Tokens and grades of one collection."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        collection, self.name = load_collection(folder), folder.name
        prompt = f"Instruct: {INSTRUCTIONS[self.name]}\nQuery:\n"
        texts = [document.content or " " for document in collection.corpus.values()]
        self.documents = tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
        self.ids = list(collection.corpus)
        self.number = {name: number for number, name in enumerate(self.ids)}
        queries = tokenizer([prompt + text for text in collection.queries.values()])["input_ids"]
        self.prompt = len(tokenizer(prompt)["input_ids"])
        self.queries = {
            name: ids[: self.prompt + QUERY_TOKENS] for name, ids in zip(collection.queries, queries, strict=True)
        }
        self.qrels = collection.qrels
        self.highest = max(max(judged.values()) for judged in self.qrels["train"].values())
        # a document of at least one half, so that every loss learns from the same queries
        self.trained = [
            name for name, judged in self.qrels["train"].items() if max(judged.values()) * 2 >= self.highest
        ]
        judged = {name for split in ("dev", "test") for of in self.qrels.get(split, {}).values() for name in of}
        self.judged = sorted(self.number[name] for name in judged)

    def texts(self, queries: list[str], documents: list[int], length: int, limit: int) -> Texts:
        tokens = [*(self.queries[name] for name in queries), *(self.documents[number][:length] for number in documents)]
        return Texts(tokens, [self.prompt] * len(queries) + [0] * len(documents), limit)


def draw_batches(arm: Arm, tasks: list[Task]) -> list[tuple[Texts, int, GradedTargets]]:
    """Return the texts (queries first), the number of queries and the targets of each step, all on the device."""
    generator, drawn, wanted = np.random.default_rng(arm.seed), [], 1
    while len(drawn) < wanted and arm.loss != "none":
        epoch = []
        for task in tasks:
            order = [task.trained[number] for number in generator.permutation(len(task.trained))]
            starts = range(0, max(1, len(order) - arm.batch + 1), arm.batch)
            epoch += [(task, order[start : start + arm.batch]) for start in starts]
        generator.shuffle(epoch)
        wanted = arm.steps or max(1, round(arm.epochs * len(epoch)))
        drawn += epoch
    return [_batch(arm, task, queries, generator) for task, queries in drawn[:wanted]]


def _batch(
    arm: Arm, task: Task, queries: list[str], generator: np.random.Generator
) -> tuple[Texts, int, GradedTargets]:
    column: dict[str, int] = {}
    for query in queries:
        judged = task.qrels["train"][query]
        names = list(judged)
        shuffled = [names[number] for number in generator.permutation(len(names))]
        best = max(shuffled, key=judged.__getitem__)
        for name in [best, *(name for name in shuffled if name != best)][: arm.K]:
            column.setdefault(name, len(column))
    known = [(row, column[name], grade / task.highest) for row, query in enumerate(queries)
             for name, grade in task.qrels["train"][query].items() if name in column]  # fmt: skip
    rows, columns, relevance = zip(*known, strict=True)
    targets = GradedTargets.from_entries(rows, columns, np.float32(relevance), (len(queries), len(column)))
    texts = task.texts(queries, [task.number[name] for name in column], arm.length, TOKENS_TRAINED)
    return texts, len(queries), targets.to(DEVICE)


def fit_map(kind: str, vectors: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map of (N, D) embeddings before they are normalised, measured on the untrained model."""
    mean, deviation = vectors.mean(0), vectors.std(0).clamp_min(1e-6)
    direction = normalize(mean, dim=0)
    return {
        "none": lambda v: v,
        "mean": lambda v: v - mean,
        "mean-and-deviation": lambda v: (v - mean) / deviation,
        "project": lambda v: v - (v @ direction)[:, None] * direction,
    }[kind]


class Machine:
    """The model and the tokens of a process, which all its runs share."""

    def __init__(self, model: str, data: Path) -> None:
        self.encoder = build_encoder(model, bidirectional=True, pooling="mean", device=str(DEVICE)).float()
        self.backbone: Any = self.encoder[0].auto_model
        self.layers = list(self.backbone.layers)
        if DEVICE.type == "cpu":  # half of a step is element by element there, which a compiled layer fuses
            for layer in self.layers:
                layer.compile(dynamic=True)
        self.start = {name: value.clone() for name, value in self.encoder.state_dict().items()}
        self.recomputes = 0
        self.data, self.tasks, self.searched, self.maps = data, dict[str, Task](), dict[Any, Texts](), dict[Any, Any]()

    def tasks_of(self, arm: Arm) -> list[Task]:
        names = INSTRUCTIONS if arm.data == "mixture" else (arm.data,)
        for name in names:
            if name not in self.tasks:
                self.tasks[name] = Task(self.data / name, self.encoder.tokenizer)
        return [self.tasks[name] for name in names]

    def pooled(self, texts: Texts) -> Tensor:
        """Return (N, D) means of token states, without a prompt's tokens, in float32 and the order of the texts."""
        means = []
        for ids, seen, weights in texts.passes:
            # on a CPU the flash kernel takes longer than plain products, above all backwards
            with autocast(DEVICE), sdpa_kernel(SDPBackend.MATH) if DEVICE.type == "cpu" else nullcontext():
                # transformers looks at a mask of 2 dimensions, and waits for the GPU; one of 4 it takes as it is
                states = self.backbone(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state
            means.append((states.float() * weights).sum(1))
        return torch.cat(means)[texts.back]

    @torch.no_grad()
    def reset(self, arm: Arm) -> Callable[[Tensor], Tensor]:
        """Take the untrained weights of the arm's layers and return its map."""
        backbone = self.backbone
        backbone.layers = torch.nn.ModuleList(self.layers)
        self.encoder.load_state_dict(self.start)
        backbone.layers = torch.nn.ModuleList(self.layers[: arm.layers])
        if arm.recompute != self.recomputes:
            self.recomputes = arm.recompute
            (backbone.gradient_checkpointing_enable if arm.recompute else backbone.gradient_checkpointing_disable)()
        key = (arm.data, arm.layers, arm.length, arm.K)
        if key not in self.maps:
            generator, measured, tasks = np.random.default_rng(0), [], self.tasks_of(arm)
            for task in tasks:  # documents and queries in the batch's proportion
                queries = TEXTS_MEASURED // len(tasks) // (arm.K + 1)
                chosen = [task.trained[number] for number in generator.permutation(len(task.trained))[:queries]]
                documents = sorted({task.number[name] for of in task.qrels["train"].values() for name in of})
                measured.append(
                    task.texts(chosen, generator.permutation(documents)[: queries * arm.K], arm.length, 2**16)
                )
            self.maps[key] = torch.cat([self.pooled(texts) for texts in measured])
        return fit_map(arm.map, self.maps[key])

    def train(self, arm: Arm, mapped: Callable[[Tensor], Tensor]) -> tuple[list[dict[str, float]], int, float]:
        """Train the present weights; return the log, the number of steps and the seconds."""
        batches = draw_batches(arm, self.tasks_of(arm))
        options: dict[str, Any] = {"scale": arm.scale, "products": "float32"}
        if arm.loss.startswith("bixse"):
            options["bias"] = arm.bias if arm.bias.isalpha() else float(arm.bias)
        loss: Any = build_loss(arm.loss if batches else "bixse", self.encoder, **options)
        if arm.hard:
            loss.__class__, loss.hard = HardBiXSE, arm.hard
        learned = [value for name, value in loss.named_parameters() if not name.startswith("model.")]
        for value in learned:  # not the whole loss: the flag of the fitted bias is read in each step, on the CPU
            value.data = value.data.to(DEVICE)
        groups = [{"params": list(self.backbone.parameters()), "lr": arm.lr}]
        groups += [{"params": [value], "lr": 100 * arm.lr} for value in learned if value.requires_grad]
        optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98), fused=True)
        steps, warm = len(batches), max(1, round(0.05 * len(batches)))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm, 1, (steps - step) / max(1, steps - warm))
        )
        self.backbone.train()
        log, began = [], time.monotonic()
        for step, (texts, queries, targets) in enumerate(batches):
            if arm.grow:
                loss.logit_scale.data.fill_(arm.scale * (arm.grow + (1 - arm.grow) * step / steps))
            both = normalize(mapped(self.pooled(texts)), dim=-1)
            value = loss.compute_loss_from_embeddings(both[:queries], both[queries:], targets)
            value.backward()
            if step % LOGGED_EVERY == 0 or step == steps - 1:
                log.append((step, value.detach(), *gradients(loss, both.detach(), queries, targets)))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - began
        return [dict(zip(LOGGED, (round(float(part), 5) for part in row), strict=True)) for row in log], steps, seconds

    @torch.no_grad()
    def evaluate(self, arm: Arm, mapped: Callable[[Tensor], Tensor]) -> dict[str, dict[str, float]]:
        """Return collection and split -> query -> nDCG@10; runs on pydocs alone search judged documents alone."""
        self.backbone.eval()
        scored = {}
        for task in self.tasks_of(arm):
            splits = [split for split in arm.on.split("+") if split in task.qrels]
            documents = task.judged if arm.data == "pydocs" else list(range(len(task.ids)))
            queries = [name for split in splits for name in task.qrels[split]]
            key = (task.name, arm.data, arm.read, arm.on)
            if key not in self.searched and splits:
                self.searched[key] = task.texts(queries, documents, arm.read, TOKENS_READ)
            if splits:
                both = normalize(mapped(self.pooled(self.searched[key])), dim=-1)
                top = (both[: len(queries)] @ both[len(queries) :].T).topk(min(10, len(documents)))
                hits = zip(queries, top.indices.tolist(), top.values.tolist(), strict=True)
                ranking = {
                    name: {task.ids[documents[at]]: score for at, score in zip(*of, strict=True)} for name, *of in hits
                }
                for split in splits:
                    ranked = {name: ranking[name] for name in task.qrels[split]}
                    scored[f"{task.name}-{split}"] = evaluate_run(task.qrels[split], ranked, ["ndcg@10"])["ndcg@10"]
        return scored


def gradients(loss: Any, both: Tensor, queries: int, targets: GradedTargets) -> Iterator[Tensor]:
    """Yield cosines, cut and shares of the gradient of one batch, see `LOGGED`."""
    entries = (both[:queries] @ both[queries:].T).requires_grad_()
    # (B, N) cosines as embeddings of the queries, and unit vectors as documents: the loss's own gradient per entry
    value = loss.compute_loss_from_embeddings(entries, torch.eye(entries.shape[1], device=DEVICE), targets)
    pull, cosines = torch.autograd.grad(value, entries)[0].abs(), entries.detach()
    relevant = targets.dense()[0] > 0
    nearest = cosines.masked_fill(relevant, -torch.inf).argmax(1, keepdim=True)
    for mask in (relevant, ~relevant):
        yield (cosines * mask).sum() / mask.sum()
    yield -loss.logit_bias.detach() / loss.logit_scale.detach() if hasattr(loss, "logit_bias") else pull.new_tensor(0.0)
    for part in (pull * relevant, pull * ~relevant, pull.gather(1, nearest)):
        yield part.sum() / pull.sum()
    yield pull.sum()


def run_queue(queue: Path, out: Path, model: str, data: Path, budget: float, part: str) -> None:
    """Do the runs of a part of the queue that are not done, until the time is over."""
    number, parts = map(int, part.split("/"))
    arms = [Arm.of(line) for line in queue.read_text(encoding="utf-8").split("\n") if line.strip()][number::parts]
    arms = [arm for arm in arms if not (out / f"{arm.name}.json").exists()]
    out.mkdir(parents=True, exist_ok=True)
    machine, longest = Machine(model, data), 0.0
    torch.backends.cuda.matmul.allow_tf32 = True  # after the build, whose check of padding is too exact for it
    print(json.dumps({"loaded": round(time.monotonic() - STARTED, 1), "runs": len(arms)}), flush=True)
    for done, arm in enumerate(arms):
        began = time.monotonic()
        if began - STARTED + longest > budget:
            print(json.dumps({"left": len(arms) - done}), flush=True)
            return
        try:
            mapped = machine.reset(arm)
            log, steps, seconds = machine.train(arm, mapped)
            scored = machine.evaluate(arm, mapped)
        except torch.OutOfMemoryError as error:
            print(json.dumps({"arm": arm.line, "error": str(error)[:200]}), flush=True)
            torch.cuda.empty_cache()
            continue
        np.savez(out / f"{arm.name}.npz", **{f"{key} {of}": np.array([*getattr(values, of)()])
                 for key, values in scored.items() for of in ("keys", "values")})  # fmt: skip
        means = {key: round(float(np.mean([*values.values()])), 4) for key, values in scored.items()}
        row = {"arm": arm.line, "steps": steps, "train_s": round(seconds, 2), "ndcg": means, "log": log}
        row["s"] = round(time.monotonic() - began, 2)
        row["gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1) if DEVICE.type == "cuda" else None
        (out / f"{arm.name}.json").write_text(json.dumps(row) + "\n", encoding="utf-8")
        print(json.dumps(row), flush=True)
        longest = max(longest, row["s"])


def main() -> None:
    """Do the runs of a queue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queue", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--budget", type=float, default=3600.0, help="seconds of this process; no run begins that would end later"
    )
    parser.add_argument("--part", default="0/1", help="I/N takes every N-th line from line I on")
    args = parser.parse_args()
    run_queue(args.queue, args.runs, args.model, args.data, args.budget, args.part)


if __name__ == "__main__":
    main()
