"""Make the fixture of `test_compat.py`: what an earlier version of bixse left on the disk of its users.

Commit 97e2dd0c made it (1.0.0rc1, before the verdict "cannot tell"). The YAML files are written by hand and stay:

    git worktree add old 97e2dd0c
    PYTHONPATH=old/src:tests python tests/compat/make.py

Never make it again with newer code: its worth is that an older version wrote it. Commit a67d2594 made the folders of
`FINISHED`, before records were read by pydantic.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from string import ascii_lowercase

FIXTURE = Path(__file__).with_name("fixture")
VALUES = "values.json"
"""What the older version parsed, counted and computed."""
KINDS = ("reranker", "late-interaction", "sparse")
ENCODER = "train-finished/model"
QUERY, DOCUMENTS = "copy a file please", ["how to copy a file", "copy how to copy a folder", "how to wait an archive"]
SHORTER = ("--dimensions", "8")
"""Of the finished training. A stopped one with a scale and bias per length was continued by its version alone."""
UNINTERRUPTED = "train-interrupted.jsonl"
"""The log of `train-interrupted`, had it not been stopped."""
STOPPED_AT = 6
"""Step of the interrupted training, in the second of three passes of four steps."""
ANSWERED, WITH_GRADE = "judged.jsonl", [0.05, 0.15, 0.3, 0.5]
ODD_ENDS = ("none", "refuse", "off", "filter", "message-refusal")
"""Answers without a grade."""
FINISHED = {
    "calibrate": ["tiny-static", "--pairs", "pairs.jsonl", "--anyway", "--precision", "float32"],
    "convert": ["pairs", "pairs.jsonl", "--dedup", "--cutoff", 0.1],
    "mine": ["--collection", "collection", "--retriever", "bm25", "--precision", "float32"],
}
"""Verb -> words of a finished run in the folder `VERB-finished`."""
SLOW = """
import sys, time
from bixse.cli.main import main
from bixse.index.make_index import EncodeShards
from bixse.training.loop.checkpoints import StepLog
def slowed(method):
    def slow(*arguments, **options):
        time.sleep(0.3)
        return method(*arguments, **options)
    return slow
StepLog.on_log, EncodeShards.run = slowed(StepLog.on_log), slowed(EncodeShards.run)
sys.exit(main())
"""
"""The command, slow enough to be stopped at a certain place."""


def bixse(*words):
    """Run the command to its end."""
    done = subprocess.run([sys.executable, "-m", "bixse", *map(str, words)], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)


def interrupt(words, reached, number):
    """Send a signal to the slow command once `reached`, given its process id, is true."""
    process = subprocess.Popen([sys.executable, "-c", SLOW, *map(str, words)])
    while not reached(process.pid):
        if process.poll() is not None:
            raise RuntimeError(f"ended too early: {words}")
        time.sleep(0.01)
    process.send_signal(number)
    process.wait()


def steps_in(folder):
    log = folder / "log.jsonl"
    return sum('"loss"' in line for line in log.read_text().splitlines()) if log.exists() else 0


def save_inputs():
    """Save a collection, its training pairs, and pairs whose documents tell the server how to answer."""
    from bixse.data.collection import save_collection
    from bixse.data.graded_pairs import Pairs
    from bixse.data.pairs_files import save_graded_pairs
    from bixse.relevance import GradeScale
    from helpers.chat_server import planted
    from helpers.toy import action_collection

    actions = action_collection()
    save_collection(actions, Path("collection"))
    save_graded_pairs(Pairs.from_collection(actions, "train", GradeScale(0, 3)), Path("pairs.jsonl"))
    judged = [planted(f"d{n}", WITH_GRADE[n % 4 :] + WITH_GRADE[: n % 4]) for n in range(24)]
    odd = [planted(f"odd-{end}", WITH_GRADE, end=end) for end in ODD_ENDS]
    for name, documents in {ANSWERED: judged, "odd.jsonl": odd}.items():
        rows = [{"query": f"query {n % 8}", "document": document} for n, document in enumerate(documents)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return sorted({word for text in (*actions.queries.values(), *DOCUMENTS) for word in text.split()})


def save_encoders(words):
    """Save a random BERT and a random static encoder, both of 16 dimensions."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    pieces = [*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]  # any word has tokens
    vocabulary = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *pieces]))
    tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(vocabulary)})
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # the draws of a GPU would differ
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **sizes, **dropout)
    with tempfile.TemporaryDirectory() as backbone:
        tokenizer.save_pretrained(backbone)
        BertModel(config).save_pretrained(backbone)
        bert = [Transformer(backbone, max_seq_length=16), Pooling(16, pooling_mode="mean")]
        static = [StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=16)]
        for name, modules in {"tiny-bert": bert, "tiny-static": static}.items():
            SentenceTransformer(modules=modules, device="cpu").save_pretrained(name, create_model_card=False)


def train():
    command = ["train", "--config", "train.yaml", "--out"]
    bixse(*command, "train-finished", *SHORTER)
    bixse(*command, "made")
    shutil.move("made/log.jsonl", UNINTERRUPTED)
    shutil.rmtree("made")
    for out, more in {"train-interrupted": [], "train-interrupted-cut": SHORTER}.items():  # ends after the next step
        interrupt([*command, out, *more], lambda _, out=Path(out): steps_in(out) == STOPPED_AT - 1, signal.SIGTERM)
    for kind in KINDS:
        few = ["--max-steps", 4, "--global-batch-size", 8, "--learning-rate", 3e-3, "--precision", "float32"]
        bixse("train", "--kind", kind, "--pairs", "pairs.jsonl", "--model", "tiny-bert", *few, "--out", "made")
        shutil.move("made/model", f"models/{kind}")
        shutil.rmtree("made")


def grade():
    from helpers.chat_server import chat_server
    from helpers.command import open_answers

    with chat_server() as server:
        judge = ["--judge", server.scenario(delay=0.05)]
        command = ["grade", "--config", "grade.yaml", *judge, "--out"]
        bixse(*command, "grade-finished")
        # the ledger of three runs that are gone
        for more in (["--max-pairs", 10], [], ["--pairs", "odd.jsonl"]):
            bixse(*command, "made", *more, "--ledger", "ledger")
            shutil.rmtree("made")
        ledger = Path("grade-interrupted/ledger")
        interrupt([*command, "grade-interrupted"], lambda pid: max(open_answers(ledger, pid), default=0) > 9,
                  signal.SIGKILL)  # fmt: skip


def finished():
    for verb, words in FINISHED.items():
        bixse(verb, *words, "--out", f"{verb}-finished")
    head = Path("calibrate-finished/model/relevance_head.json").read_bytes()  # a rerun reads no more of the model
    shutil.rmtree("calibrate-finished/model")
    Path("calibrate-finished/model").mkdir()
    Path("calibrate-finished/model/relevance_head.json").write_bytes(head)
    for path in (Path("calibrate-finished/reliability.svg"), Path("mine-finished/run.bm25.trec")):
        path.unlink()


def study():
    command, second = ["study", "--config", "study.yaml", "--out"], "study-interrupted/runs/loss=infonce/seed-0/train"
    bixse(*command, "study-finished")
    interrupt([*command, "study-interrupted"], lambda _: steps_in(Path(second)) == STOPPED_AT - 1, signal.SIGTERM)
    shutil.rmtree(f"{second}/checkpoints/checkpoint-4")  # only the last one is needed


def index():
    command, out = ["index", "--config", "index.yaml", "--out"], Path("index-interrupted")
    bixse(*command, "index-finished")
    interrupt([*command, out], lambda _: len(list(out.glob("files-*/*.safetensors"))) == 2, signal.SIGKILL)


def scores(model):
    """Return what a loaded model computes: embeddings of an encoder, logits of another kind, and probabilities."""
    if hasattr(model, "logits"):
        computed = {"logits": model.logits([QUERY] * len(DOCUMENTS), DOCUMENTS)}
    else:
        computed = {"query": model.encode_query([QUERY])[0], "documents": model.encode_document(DOCUMENTS)}
    computed["probabilities"] = model.relevance(QUERY, DOCUMENTS)
    return {name: numbers.ravel().tolist() for name, numbers in computed.items()}


def values():
    """Return the values of models and settings, with the counts of the interrupted runs."""
    import bixse
    from bixse.cli.main import parse

    folders = {"encoder": (ENCODER, None), "encoder, cut to 8": (ENCODER, 8)}
    folders |= {kind: (f"models/{kind}", None) for kind in KINDS}
    models = {
        name: {"folder": folder, "cut": cut, "scores": scores(bixse.load_relevance_model(folder, "cpu", cut))}
        for name, (folder, cut) in folders.items()
    }
    settings = {}
    for path in sorted(Path("yaml").iterdir()):
        verb = path.stem.replace("-", " ")
        settings[verb] = parse(verb.split())[1].settings.load(path).model_dump(mode="json", exclude_unset=True)
    with bixse.open_index("index-finished", "tiny-static") as opened:
        hits = {hit.document_id: hit.cosine for hit in opened.search(QUERY, top=5)}
    (segment,) = Path("grade-interrupted/ledger").glob("*.jsonl")
    answered = sum('"graded"' in line for line in segment.read_text().splitlines())
    return {"models": models, "settings": settings, "hits": hits, "answered": answered}


def scrub(built):
    """Take out what is of one machine, and what is for people alone."""
    for path in [*built.rglob("README.md"), *built.rglob("plot.svg"), *built.rglob("*.lock")]:
        path.unlink()
    for path in [*built.rglob("run.json"), *built.rglob(".*.writer")]:
        text = path.read_text().replace(str(built), "/moved").replace(platform.platform(), "Linux")
        if path.suffix == ".writer":  # the id of the kernel's start, and of the process
            text = f"{'0' * 8}-0000-0000-0000-{'0' * 12}/1\n"
        path.write_text(text)


def main():
    os.environ |= {"BIXSE_PRECISION": "float32", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder).resolve() / "fixture"
        os.environ["BIXSE_CACHE_DIR"] = f"{folder}/cache"
        shutil.copytree(FIXTURE / "yaml", built / "yaml")
        for path in FIXTURE.glob("*.yaml"):
            shutil.copy(path, built)
        (built / "models").mkdir()
        with chdir(built):  # all paths in the records are relative to the fixture
            save_encoders(save_inputs())
            for made in (train, grade, finished, study, index):
                made()
            scrub(built)
            Path(VALUES).write_text(json.dumps(values(), indent=1) + "\n")
        shutil.rmtree(FIXTURE)
        shutil.copytree(built, FIXTURE)


if __name__ == "__main__":
    main()
