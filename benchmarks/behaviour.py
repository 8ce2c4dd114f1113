"""Record what bixse computes on fixed inputs, and compare two records: figures must survive a change of the code.

python benchmarks/behaviour.py record BEFORE.json --shared DATA      # once with each version of the code
python benchmarks/behaviour.py compare BEFORE.json AFTER.json        # every figure that differs; exit code 1 if any

Only the command line, files and `import bixse` are relied on. Losses and metrics have golden values in the tests.
A command that fails is recorded by its exit code; a section that fails keeps the figures it had, and the exit code is
1. Figures are those of one machine and one set of library versions.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import cached_property
from importlib import import_module
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))  # helpers.tiny_judges, helpers.source_files: what `convert` reads
FIXED = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "BIXSE_PRECISION": "float32", "TOKENIZERS_PARALLELISM": "false"}
os.environ.update(FIXED)  # before torch is imported
LEFT_OUT = re.compile(
    r"second|time|_s$|per_s|speed|bytes|memory|citation|licen[cs]e|version|path|folder|file$|started|created"
)
"""Keys of figures that no two runs share, and of prose."""


def checksum(tensors):
    """Sum, sum of absolute values and product with a fixed vector of all numbers in tensors, in float64."""
    import torch

    flat = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])
    fixed = torch.cos(torch.arange(len(flat), dtype=torch.float64))
    return {"sum": flat.sum().item(), "abs": flat.abs().sum().item(), "dot": (flat @ fixed).item(), "size": len(flat)}


def number_sums(numbers):
    """The checksum of plain numbers."""
    import torch

    return checksum([torch.tensor(list(numbers), dtype=torch.float64)])


def digest(values):
    """A short hash of any JSON value."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_rows(path):
    """The rows of a table as dictionaries."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path).to_pylist()
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def write(path, content):
    """Write text, bytes, or a list as JSON lines, or as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet" and isinstance(content, list):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(content), path)
        return path
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    elif isinstance(content, dict):
        content = json.dumps(content)  # YAML holds JSON
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


class Record:
    """Figures of one section."""

    def __init__(self, inputs, section):
        self.inputs, self.work, self.figures = inputs, inputs.work, {}
        self.out = self.work / "out" / section

    def put(self, name, value):
        """Keep a number or word, or all those inside a list or dictionary, under names with dots."""
        if isinstance(value, dict):
            for key, part in value.items():
                if not LEFT_OUT.search(str(key)):
                    self.put(f"{name}.{key}", part)
        elif isinstance(value, (list, tuple)):
            for number, part in enumerate(value):
                self.put(f"{name}.{number}", part)
        elif isinstance(value, str):
            if len(value) <= 40 and str(self.work) not in value:
                self.figures[name] = value
        elif value is None or isinstance(value, (bool, int, float)):
            # JSON has no NaN
            self.figures[name] = str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def start(self, *words, **environment):
        """A process of the command line, in the work folder."""
        command = [sys.executable, "-m", "bixse", *map(str, words), "--json"]
        variables = {**os.environ, "BIXSE_CACHE_DIR": str(self.work / "cache"), **environment}
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths if path)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=self.work, env=variables)

    def run(self, name, *words, **environment):
        """Run a verb, keep its figures and exit code, give its output folder under the work folder."""
        out = self.out / name
        began = time.monotonic()
        process = self.start(*(out if word == "OUT" else word for word in words), **environment)
        output, errors = process.communicate()
        self.figures[f"{name}: exit"] = process.returncode
        print(f"  {name}: {time.monotonic() - began:.1f} s, exit {process.returncode}", file=sys.stderr)
        try:
            self.put(name, json.loads(output.strip().splitlines()[-1])["metrics"])
        except (IndexError, KeyError, ValueError):
            print(errors[-2000:], file=sys.stderr)
        if process.returncode not in (0, 3):
            print(output[-2000:], file=sys.stderr)
        return out

    def table(self, name, path):
        """Keep the number of rows and, for each column, a hash of its content in the order of the sorted rows."""
        if not path.exists():
            self.figures[f"{name}: rows"] = "no such file"
            return
        rows = [{k: v for k, v in row.items() if not LEFT_OUT.search(k)} for row in read_rows(path)]
        rows.sort(key=lambda row: json.dumps([str(row.get("query")), str(row.get("document")), row], default=str))
        self.figures[f"{name}: rows"] = len(rows)
        for column in sorted({key for row in rows for key in row}):
            values = [row.get(column) for row in rows]
            numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
            if numbers and len(numbers) + values.count(None) == len(values):
                self.put(f"{name}: {column}", number_sums(numbers))
            elif not any(str(self.work) in str(value) for value in values):
                self.figures[f"{name}: {column}"] = digest(values)

    def values(self, name, folder, files):
        """Keep every value of CSV files, numbers as numbers."""
        for file in files:
            for number, row in enumerate(read_rows(folder / file)):
                numbers = {key: float(text) for key, text in row.items() if re.fullmatch(r"-?[\d.]+(e-?\d+)?", text)}
                self.put(f"{name}/{file}.{number}", {**row, **numbers})

    def json(self, name, path):
        """Keep the figures of a JSON file."""
        self.put(name, json.loads(path.read_text(encoding="utf-8")))

    def ranking(self, name, path, depth=10):
        """Keep the first documents of each query of a TREC run: a hash of the ids, and the scores' checksums."""
        fields = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        top = [row for row in fields if int(row[3]) <= depth]
        self.figures[f"{name}: ids"] = digest([[row[0], row[2]] for row in top])
        self.put(f"{name}: scores", number_sums(float(row[4]) for row in top))

    def weights(self, name, folder):
        """Keep the checksum of all weights of a model folder."""
        from safetensors.torch import load_file

        tensors = {}
        for path in sorted(folder.rglob("*.safetensors")):
            tensors.update({f"{path.relative_to(folder)}:{key}": tensor for key, tensor in load_file(path).items()})
        self.put(f"{name}: weights", checksum([tensors[key] for key in sorted(tensors)]))


class Inputs:
    """What several sections read, each made on first use from fixed seeds, in one work folder."""

    def __init__(self, work, shared):
        self.work, self.shared = work, shared

    @cached_property
    def reranker(self):
        """Folder of a random cross-encoder."""
        import torch
        from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

        from bixse.encoders.loading.build import demo_model_path

        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.2, **sizes)
        for part in (BertForSequenceClassification(config), tokenizer):
            part.save_pretrained(self.work / "tiny-reranker")
        return self.work / "tiny-reranker"

    @cached_property
    def decoder(self):
        """Folder of a random language model over bytes, with a chat template; most of its answers are an option."""
        from helpers.tiny_judges import save_judge, tiny_model, tiny_tokenizer

        tokenizer, model = tiny_tokenizer(), tiny_model("llama")
        model.lm_head.weight.data[tokenizer.convert_tokens_to_ids(["0", "1", "2"])] *= 6
        return save_judge(self.work / "tiny-decoder", tokenizer=tokenizer, model=model)

    def part(self, source, name, splits, others):
        """A collection folder with some queries a split, their judged documents and some others."""
        folder, qrels, queries, judged = self.work / name, {}, set(), set()
        for split, number in splits.items():
            rows = [row.split("\t") for row in (source / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]]
            chosen = list(dict.fromkeys(row[0] for row in rows))[:number]
            qrels[split] = [row for row in rows if row[0] in chosen]
            queries.update(chosen)
            judged.update(row[1] for row in qrels[split])
            lines = ["query-id\tcorpus-id\tscore", *map("\t".join, qrels[split])]
            write(folder / "qrels" / f"{split}.tsv", "\n".join(lines) + "\n")
        corpus = read_rows(source / "corpus.jsonl")
        write(folder / "corpus.jsonl", [row for i, row in enumerate(corpus) if i < others or row["_id"] in judged])
        write(folder / "queries.jsonl", [row for row in read_rows(source / "queries.jsonl") if row["_id"] in queries])
        return folder

    @cached_property
    def cranfield(self):
        """40 queries of Cranfield."""
        return self.part(self.shared / "cranfield", "cranfield", {"test": 40}, 200)

    @cached_property
    def pydocs(self):
        """Some queries of each split of the sample collection."""
        from bixse.data.collection import save_collection
        from bixse.data.pydocs import load_pydocs

        save_collection(load_pydocs(), self.work / "whole-pydocs")
        return self.part(self.work / "whole-pydocs", "pydocs", {"train": 60, "dev": 12, "guard": 8, "test": 20}, 0)

    @cached_property
    def pairs(self):
        """Training pairs of pydocs."""
        return self.judged_pairs("train")

    def judged_pairs(self, split):
        """Graded pairs of a split of pydocs."""
        words = ("convert", "beir", self.pydocs, "--qrels", split, "--scale", "0", "3")
        return Record(self, "inputs").run(split, *words, "--out", "OUT") / "pairs.parquet"

    def settings(self, name, **changes):
        """A file of training settings."""
        optimizer = {"num_train_epochs": 1, "global_batch_size": 8}
        base = {"pairs": str(self.pairs), "max_length": 32, "optimizer": optimizer, "seed": 0}
        return write(self.work / f"{name}.yaml", {**base, "dev": str(self.pydocs), "merge": None, **changes})

    @cached_property
    def trained(self):
        """The record of a training on pydocs, and its output folder."""
        record = Record(self, "inputs")
        out = record.run("bixse", "train", "--config", self.settings("bixse"), "--out", "OUT")
        training(record, "bixse", out)
        return record, out


QUERIES = ["copy a file", "copy a file", "sort a list", "open the folder", "join the path"]
DOCUMENTS = ["copy the file", "copy the file", "sort the list", "open a folder tree", "split the text"]
OTHERS = ["move the disk", "copy the file", "find a name in the list", "read lines", "match text"]


def evaluation(record):
    """Collections, suites of folders, and two systems with their intervals."""
    inputs = record.inputs
    shared, short = inputs.shared, ("--max-length", "32")
    whole = record.run("cranfield bm25", "evaluate", "bm25", "--collection", shared / "cranfield", "--out", "OUT")
    record.ranking("cranfield bm25", whole / "run.trec")
    record.run("cranfield from 2", "evaluate", "bm25", "--collection", inputs.cranfield, "--min-relevant-grade", "2")
    two = ("evaluate", "demo", "bm25", *short)
    record.run("cranfield", *two, "--collection", inputs.cranfield, "--out", "OUT")
    record.run("pydocs", *two, "--collection", inputs.pydocs, "--out", "OUT")
    record.run("pydocs dev", "evaluate", "demo", *short, "--collection", inputs.pydocs, "--split", "dev")
    record.run("exclude self", "evaluate", "bm25", "--collection", inputs.cranfield, "--exclude-self")
    for task in ("nfcorpus", "scifact"):
        inputs.part(shared / task, f"suite/{task}", {"test": 10}, 50)
    suite = (*two, "--data", inputs.work / "suite", "--tasks", "NFCorpus", "SciFact")
    record.run("suite", *suite, "--suite", "beir", "--out", "OUT")
    record.run("auto precision", *two, "--collection", inputs.cranfield, BIXSE_PRECISION="auto")


def train(record):
    """Short trainings: log, dev figures and weights, with and without merging, with LoRA, and resumed."""
    inputs = record.inputs
    trained, base = inputs.trained
    record.figures.update({name: figure for name, figure in trained.figures.items() if name.startswith("bixse")})
    merge = {"weights": [0.3, 0.7, 1.0], "documents": 300}
    guard = {"guard": str(inputs.pydocs), "guard_split": "guard"}
    lora = {"lora": {"rank": 4}, "optimizer": {"max_steps": 4, "global_batch_size": 8, "learning_rate": 1e-3}}
    cases = {
        "infonce": {"loss": "infonce", "dev": None, "loss_options": {"positive_from": 0.6}},
        "merged": {"merge": merge, **guard},
        "lora": {"dev": None, **lora},
        "cached": {
            "dev": None,
            "loss": "lambdaloss-v2",
            "loss_options": {"gradient_cache": True},
            "train_max_length": 16,
        },
    }
    for name, changes in cases.items():
        out = record.run(name, "train", "--config", inputs.settings(name, **changes), "--out", "OUT")
        training(record, name, out)
    interrupted = record.out / "resumed"
    words = ("train", "--config", inputs.settings("resumed", dev=None, loss="infonce"), "--out", interrupted)
    process = record.start(*words)
    while process.poll() is None and lines_of(interrupted / "log.jsonl") < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate()
    print(f"  interrupted training: exit {process.returncode}", file=sys.stderr)
    training(record, "resumed", record.run("resumed", *words))
    halves = ("merge", "demo", base / "model", "--weights", "0.5", "0.5", "--out", "OUT")
    record.weights("halves", record.run("halves", *halves) / "model")


def training(record, name, out):
    """Keep log and weights of a training run."""
    if (out / "log.jsonl").exists():
        record.put(f"{name}: log", read_rows(out / "log.jsonl"))
        record.weights(name, out / "model")


def lines_of(path):
    """Lines of a file, 0 where there is none."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def calibration(record):
    """Probabilities of a trained model and of the base model, refitted on held-out pairs."""
    from bixse import load_relevance_model

    inputs = record.inputs
    held_out = inputs.judged_pairs("test")
    model = ("calibrate", inputs.trained[1] / "model", "--pairs", held_out)
    record.run("pydocs", *model, "--at-precision", "0.3", "0.5", "--out", "OUT")
    record.run("prior", *model, "--prior", "0.01", "--out", "OUT")
    record.run("pool", *model[:2], "--collection", inputs.pydocs, "--split", "test", "--out", "OUT")
    rows = (inputs.shared / "sick" / "SICK_trial.txt").read_text().splitlines()[:151]
    sick = write(inputs.work / "sick.tsv", "\n".join(rows) + "\n")
    columns = ("--columns", "query=sentence_A", "document=sentence_B", "grade=relatedness_score")
    pairs = record.run("sick pairs", "convert", "table", sick, "--scale", "1", "5", *columns, "--out", "OUT")
    record.run("sick", "calibrate", "demo", "--pairs", pairs / "pairs.parquet", "--out", "OUT")
    fitted = load_relevance_model(str(record.out / "pydocs" / "model"))
    record.put("relevance", [float(p) for p in fitted.relevance("copy a folder", ["shutil.copytree", "os.remove"])])


ONE_FILE = ("flagembedding", "tevatron", "sentence-transformers", "umbrela", "trec", "table", "pairs")
COLUMNS = "--columns query=search document=item grade=stars task=department --scale 0 5"
CONVERSIONS = """
lightblue | lightblue | LIGHTBLUE data/train.parquet |
e5 | e5 | E5 | --dedup
flagembedding | flagembedding | BGE nq.jsonl | --score-map prob
flagembedding platt | flagembedding | BGE nq.jsonl | --score-map platt:2,-1
flagembedding binary | flagembedding | BGE nq.jsonl | --score-map binary
tevatron | tevatron | TEVATRON train.jsonl |
tevatron ids | tevatron | TEVATRON_IDS train.jsonl CORPUS corpus.jsonl | --corpus corpus.jsonl
tuples | sentence-transformers | TUPLES nli.jsonl |
umbrela | umbrela | UMBRELA judged.jsonl |
beir | beir | BEIR | --scale 0 2 --skip-invalid
beir off scale | beir | BEIR | --scale 0 2
beir text ids | beir | BEIR | --scale 0 7 --text-ids
trec | trec | TREC | --scale 0 3 --queries topics.tsv --corpus collection.tsv.gz --skip-invalid
table | table | TABLE mine.csv | COLUMNS
pairs | pairs | PAIRS pairs.jsonl |
transforms | pairs | PAIRS pairs.jsonl | --dedup --noise 0.6 --cutoff 0.2 --size 30 --seed 5
split | pairs | PAIRS pairs.jsonl | --binarise 0.5 --noise 0.3 --split train=0.6 test=0.4
"""
"""Name, source, tables of `source_files` (with the file each is written to, or a folder of files), options."""


def conversion(record):
    """Every source, every transform, pairs and collections: counts, and the rows that are written."""
    tables = vars(import_module("helpers.source_files"))
    for line in CONVERSIONS.strip().splitlines():
        name, source, contents, options = (part.strip() for part in line.split("|"))
        folder, words = record.work / "sources" / name, contents.split()
        if len(words) == 1:
            files = {file if "." in file else f"{file}.jsonl": content for file, content in tables[words[0]].items()}
        else:
            files = {file: tables[table] for table, file in zip(words[::2], words[1::2], strict=True)}
        for file, content in files.items():
            write(folder / file, content)
        record.figures[f"{name}: input"] = digest([[file, repr(content)] for file, content in files.items()])
        path = folder / next(iter(files)) if source in ONE_FILE else folder
        flags = [folder / word if word in files else word for word in options.replace("COLUMNS", COLUMNS).split()]
        out = record.run(name, "convert", source, path, *flags, "--out", "OUT")
        for path in sorted(path for path in out.rglob("*") if path.suffix in (".parquet", ".jsonl", ".tsv")):
            if ".part" not in path.parts:
                record.table(f"{name}/{path.relative_to(out)}", path)


RUBRIC = """[short]
labels = ["0", "1", "2"]
[[short.orders]]
name = "query-document"
system = "Rate from 0 to 2."
user = "Query: {query}\\nPassage: {document}"
"""


def grading(record):
    """Judges that run here, audits of published judges, maps to probabilities, and ranking by a judge."""
    inputs, work = record.inputs, record.work
    shared, cranfield = inputs.shared, inputs.cranfield
    rubric = write(work / "short.toml", RUBRIC)
    ask = write(work / "ask.jsonl", [{"query": q, "document": d} for q in QUERIES[1:] for d in OTHERS])
    human = [row.split("\t") for row in (cranfield / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    draw = random.Random(1)
    noisy = [[q, d, str(min(3, max(0, int(grade) + draw.choice([-1, 0, 0, 1]))))] for q, d, grade in human]
    labels = write(work / "judge.txt", "".join(f"{q} 0 {d} {grade}\n" for q, d, grade in noisy))
    official = write(work / "human.txt", "".join(f"{q} 0 {d} {grade}\n" for q, d, grade in human))
    replay = ("--judge", f"replay:qrels:{labels}", "--scale", "0", "3")
    asked = [{"query_id": q, "query": q, "document_id": d, "document": d} for q, d, _ in noisy]
    judges = {
        "qrels": (*replay, "--pairs", write(work / "asked.jsonl", asked)),
        "cross-encoder": ("--judge", f"cross-encoder:{inputs.reranker}", "--pairs", ask),
        "local": ("--judge", inputs.decoder, "--pairs", ask, "--rubric", rubric),
    }
    for name, words in judges.items():
        out = record.run(name, "grade", *words, "--out", "OUT")
        for table in ("pairs", "judgements"):
            record.table(f"{name}/{table}", out / f"{table}.parquet")
    qrels = shared / "llmjudge" / "human.qrels.txt"
    published = sorted((shared / "llmjudge" / "judges").glob("*.txt"))
    audit = ("grade", "audit", "--human", qrels, "--scale", "0", "3", "--out", "OUT", "--judge")
    record.json("audit", record.run("audit", *audit, *published) / "audit.json")
    maps = ("grade", "calibrate", "--human", qrels, "--scale", "0", "3", "--out", "OUT")
    record.json("map", record.run("map", *maps, "--judgements", published[0]) / "map.json")
    graded = record.out / "qrels"
    apply = ("--judgements", graded / "judgements.parquet", "--apply", graded / "pairs.parquet")
    mapped = record.run("map applied", "grade", "calibrate", "--human", official, *apply, "--out", "OUT")
    record.table("map applied/pairs", mapped / "pairs.parquet")
    for candidates in ("bm25", "judged"):
        rank = ("grade", "rank", "--collection", cranfield, *replay, "--candidates", candidates, "--depth", "20")
        record.run(f"rank {candidates}", *rank, "--out", "OUT")


def mining(record):
    """The pairs that are mined, by strategy and retriever."""
    cases = {
        "spread": ("--retriever", "bm25", "--per-query", "4"),
        "spread both": ("--retriever", "bm25", "demo", "--per-query", "4", "--depth", "40", "--max-length", "32"),
        "top": ("--strategy", "top", "--per-query", "3"),
        "split": ("--strategy", "top", "--split", "test"),
        "one": ("--strategy", "one", "--max-queries", "20", "--seed", "3"),
    }
    for name, words in cases.items():
        out = record.run(name, "mine", "--collection", record.inputs.cranfield, *words, "--out", "OUT")
        record.table(name, out / "pairs.parquet")


def search(record):
    """Documents found in a collection and in an index."""
    inputs, work = record.inputs, record.work
    query, texts = "heat transfer in a laminar boundary layer", inputs.cranfield / "queries.jsonl"
    record.run("collection", "search", inputs.trained[1] / "model", query, "--collection", inputs.cranfield)
    index = record.run("exact", "index", "demo", "--collection", inputs.cranfield, "--max-length", "32", "--out", "OUT")
    record.run("exact queries", "search", index, "--queries", texts, "--out", work / "exact.trec")
    record.ranking("exact", work / "exact.trec")
    record.run("query", "search", index, query)


def study(record):
    """One study of the smoke preset, and a sweep of two trainings."""
    smoke = ("study", "losses", "--preset", "smoke", "--jobs", "1", "--seeds", "0", "--out", "OUT")
    record.values("losses", record.run("losses", *smoke), ["runs.csv", "summary.csv", "findings.csv"])
    inputs = record.inputs
    texts = {"pairs": str(inputs.pairs), "dev": str(inputs.pydocs), "max_length": 32}
    base = {**texts, "merge": None, "optimizer": {"max_steps": 3}}
    settings = write(record.work / "sweep.yaml", {"base": base, "vary": {"loss": ["bixse", "infonce"]}})
    record.values("sweep", record.run("sweep", "sweep", "--config", settings, "--out", "OUT"), ["sweep.csv"])


def quickstart(record):
    """The table of the quick start; only on demand, as it takes minutes."""
    record.run("quickstart", "quickstart", "--out", "OUT")


SECTIONS = [evaluation, train, calibration, conversion, grading, mining, search, study, quickstart]
WITHOUT_DATA = ["train", "conversion", "study", "quickstart"]


def record_all(out, shared, only):
    """Write the figures of the sections; 1 if one of them failed."""
    import torch

    torch.set_num_threads(1)
    print(f"bixse of {Path(importlib.util.find_spec('bixse').origin).parent}", file=sys.stderr)
    failed, figures = [], {}
    with tempfile.TemporaryDirectory(prefix="behaviour-") as folder:
        inputs = Inputs(Path(folder).resolve(), shared)
        for section in SECTIONS:
            name = section.__name__
            if name not in (only or [section.__name__ for section in SECTIONS if section is not quickstart]):
                continue
            if shared is None and name not in WITHOUT_DATA:
                print(f"{name}: left out, as it needs --shared", file=sys.stderr)
                continue
            began = time.monotonic()
            record = Record(inputs, name)
            try:
                section(record)
            except Exception:
                traceback.print_exc()
                failed.append(name)
            figures[name] = record.figures
            print(f"{name}: {len(record.figures)} figures, {time.monotonic() - began:.0f} s", file=sys.stderr)
    Path(out).write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"failed: {', '.join(failed) or 'none'}", file=sys.stderr)
    return int(bool(failed))


def same(a, b, tolerance):
    """Whether two figures agree, numbers up to a share of the larger one (of 0.001 where both are smaller)."""
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return abs(a - b) <= tolerance * max(1e-3, abs(a), abs(b)) if numbers else type(a) is type(b) and a == b


def compare(before, after, tolerance):
    """Print every figure that differs; 1 if there is one."""
    records = [json.loads(Path(path).read_text(encoding="utf-8")) for path in (before, after)]
    old, new = ({(s, name): x for s, part in record.items() for name, x in part.items()} for record in records)
    counts = Counter()
    for section, name in sorted({*old, *new}):
        a, b = (record.get((section, name), "(absent)") for record in (old, new))
        counts["figures"] += 1
        if not same(a, b, tolerance):
            counts["differ"] += 1
            print(f"{section} | {name}: {a} -> {b}")
    print(f"{counts['figures']} figures, {counts['differ']} differ")
    return int(counts["differ"] > 0)


def main():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("out")
    recording.add_argument("--shared", type=lambda path: Path(path).resolve(), help="folder of the development data")
    recording.add_argument("--only", nargs="+", choices=[section.__name__ for section in SECTIONS])
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before")
    comparing.add_argument("after")
    comparing.add_argument("--tolerance", type=float, default=1e-6)
    args = parser.parse_args()
    if args.verb == "record":
        return record_all(args.out, args.shared, args.only)
    return compare(args.before, args.after, args.tolerance)


if __name__ == "__main__":
    sys.exit(main())
