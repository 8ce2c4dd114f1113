import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bixse.adapters import adapt as module
from bixse.adapters.adapt import BASE, adapt, adapted, cross_difference, read_pairs, read_vectors, train_map
from bixse.adapters.adapt_settings import AdaptSettings
from bixse.errors import OutputExistsError
from bixse.files.rows import write_rows
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce
from helpers.command import call, refused
from helpers.row_files import faults

MODEL = "a model, 16 dimensions"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "adapters.md"
SIZE = 16
ROTATION = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, SIZE)))[0]


def unit(rows, width=SIZE, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, width))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def save_vectors(path, vectors, name="d"):
    rows = [{"id": f"{name}{row}", "vector": list(map(float, vector))} for row, vector in enumerate(vectors)]
    write_rows(pa.Table.from_pylist(rows), path)


def save_pairs(path, queries, relevance=1.0):
    """Query n is relevant to document n, and irrelevant to the next one."""
    rows = [
        {"query_id": f"q{query}", "document_id": f"d{query + step}", "relevance": relevance * (1 - step)}
        for query in queries
        for step in (0, 1)
    ]
    write_rows(pa.Table.from_pylist(rows), path)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Words of a command over 300 documents; queries are rotated documents with a little noise."""
    monkeypatch.chdir(tmp_path)
    documents = unit(300)
    save_vectors(tmp_path / "documents.parquet", documents)
    save_vectors(tmp_path / "queries.parquet", (documents[:260] + 0.02 * unit(260, seed=2)) @ ROTATION, "q")
    save_pairs(tmp_path / "pairs.parquet", range(200))
    save_pairs(tmp_path / "dev.parquet", range(200, 260))
    files = {"--vectors": "documents.parquet", "--queries": "queries.parquet", "--pairs": "pairs.parquet"}
    files |= {"--dev": "dev.parquet", "--vectors-of": MODEL, "--out": "out", "--rank": SIZE, "--learning-rate": 0.03}

    def made(**changes):
        changed = files | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        return ["adapt", *(word for pair in changed.items() if pair[1] is not None for word in pair)]

    return made


@pytest.mark.parametrize(
    ("vector", "name"),
    [
        ([1.0, 2.0, 3.0], "vectors.jsonl"),
        ([0.0, 0.0], "vectors.parquet"),
        ([], "vectors.jsonl"),
        ([float("nan"), 1.0], "vectors.parquet"),
        ([float("inf"), 1.0], "vectors.parquet"),
        ("[1, x]", "vectors.csv"),
    ],
)
def test_vectors_that_have_no_direction_or_another_length_are_refused(tmp_path, vector, name):
    rows = {"id": ["a", "b"], "vector": [[1.0, 2.0] if isinstance(vector, list) else "[1, 2]", vector]}
    write_rows(pa.table(rows), tmp_path / name)
    assert faults(read_vectors, tmp_path / name) == [(2, "vector")]


def test_vectors_of_any_size_and_format_have_length_one(tmp_path):
    vectors = np.array([[3e300, 4e300], [3e-300, -4e-300], [0.6, 0.8]])
    for name in ("vectors.parquet", "vectors.jsonl", "vectors.csv"):
        save_vectors(tmp_path / name, vectors)
        rows, read = read_vectors(tmp_path / name)
        assert rows == {"d0": 0, "d1": 1, "d2": 2}
        assert np.allclose(read.numpy(), [[0.6, 0.8], [0.6, -0.8], [0.6, 0.8]])


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([("q0", "d0", 1.0), ("q9", "d0", 1.0)], (None, None)),
        ([("q0", "d9", 1.0)], (None, None)),
        ([("q0", "d0", 1.0), ("q0", "d0", 0.5)], (2, "relevance")),
        ([("q0", "d0", 3.0)], (1, "relevance")),
    ],
)
def test_pairs_without_vectors_or_with_two_relevances_are_refused(tmp_path, rows, wrong):
    names = ("query_id", "document_id", "relevance")
    write_rows(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), tmp_path / "pairs.csv")
    assert faults(read_pairs, tmp_path / "pairs.csv", {"q0": 0}, {"d0": 0, "d1": 1}) == [wrong]


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": SIZE + 1},
        {"queries": "short.parquet"},
        {"pairs": "one.parquet", "dev": None},
        {"pairs": "irrelevant.parquet"},
        {"dev": "irrelevant.parquet"},
        {"dev": "pairs.parquet"},
        {"vectors": "no.parquet"},
        {"vectors": "damaged.parquet"},
        {"vectors_of": ""},
        {"learning_rate": 1.5},
    ],
)
def test_what_cannot_be_used_is_refused_and_leaves_no_folder(capsys, tmp_path, words, changes):
    save_vectors(tmp_path / "short.parquet", unit(260, SIZE - 1), "q")
    save_pairs(tmp_path / "one.parquet", [0])
    save_pairs(tmp_path / "irrelevant.parquet", range(200, 260) if "dev" in changes else range(20), relevance=0.0)
    content = bytearray((tmp_path / "documents.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged.parquet").write_bytes(content)
    refused(capsys, *words(**changes))
    assert not (tmp_path / "out").exists()


def test_queries_that_have_nothing_to_do_with_documents_get_no_adapter(capsys, tmp_path, words):
    save_vectors(tmp_path / "noise.parquet", unit(260, seed=4), "q")
    for _ in range(2):  # the second call shows the finished run
        code, envelope = call(capsys, *words(queries="noise.parquet", steps=20))
        assert code == 1 and envelope["errors"] and not envelope["artifacts"]
        assert envelope["metrics"]["gain"]["verdict"] != "better"
    assert envelope["metrics"]["reused"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"


def test_planted_rotation_is_recovered(capsys, tmp_path, words):
    code, first = call(capsys, *words())
    metrics = first["metrics"]
    assert code == 0 and metrics["gain"]["verdict"] == "better" and metrics["gain"]["low"] > 0.5
    assert metrics["base"]["ndcg@10"] < 0.2 and metrics["base"]["recall@100"] < metrics["ceiling"] + 1e-9
    adapter, alpha, beta = page_loader()(tmp_path / "out" / "adapter.safetensors", MODEL)
    _, documents = read_vectors(tmp_path / "documents.parquet")
    _, queries = read_vectors(tmp_path / "queries.parquet")
    cosines = adapter(queries.numpy()[200:]) @ documents.numpy().T
    assert (cosines.argmax(axis=1) == np.arange(200, 260)).mean() > 0.95
    probability = 1 / (1 + np.exp(-(alpha * cosines + beta)))
    assert probability.mean() == pytest.approx(1 / 300, rel=0.1)
    assert call(capsys, *words())[1]["metrics"] == metrics | {"reused": True}
    with pytest.raises(OutputExistsError):
        adapt(settings_of(tmp_path, seed=1), tmp_path / "out")
    (tmp_path / "out" / "adapter.safetensors").unlink()
    refused(capsys, *words())


def test_map_that_goes_too_far_is_saved_shrunk(capsys, monkeypatch, tmp_path, words):
    down, up = torch.eye(SIZE), torch.tensor(2 * (ROTATION - np.eye(SIZE)), dtype=torch.float32)
    monkeypatch.setattr(module, "train_map", lambda *given: iter([(160, down, up)]))
    assert call(capsys, *words())[1]["metrics"]["shrinkage"] == 0.5
    assert np.array_equal(load_file(tmp_path / "out" / "adapter.safetensors")["B"], 0.5 * up.numpy())


def settings_of(folder, **changes):
    files = {name: folder / f"{file}.parquet" for name, file in
             (("vectors", "documents"), ("queries", "queries"), ("pairs", "pairs"))}  # fmt: skip
    return AdaptSettings(**files, vectors_of=MODEL, **{"rank": 4, "steps": 3, **changes})


def page_loader():
    """Return the function that the page shows."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(code, names)
    return names["load_adapter"]


def test_the_loader_of_the_page_refuses_other_models_other_dimensions_and_damage(tmp_path):
    path, up = tmp_path / "adapter.safetensors", torch.zeros(3, 2)
    module.save_adapter(path, torch.ones(2, 3), up, 20.0, -12.0, MODEL)
    adapter, *head = page_loader()(path, MODEL)
    assert head == [20.0, -12.0] and np.allclose(adapter(np.array([[3.0, 0.0, 4.0]])), [[0.6, 0.0, 0.8]])
    with pytest.raises(ValueError):
        adapter(np.ones((1, 4)))
    with pytest.raises(ValueError):
        page_loader()(path, "another model")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError):
        page_loader()(path, MODEL)
    path.write_bytes(content[:40])
    with pytest.raises(SafetensorError):
        page_loader()(path, MODEL)


def test_loss_of_a_step_equals_a_float64_loop():
    generator = np.random.default_rng(0)
    q, d, down, up = unit(3, 4), unit(5, 4, 1), generator.normal(size=(2, 4)), generator.normal(size=(4, 2))
    z = {(0, 1): 1.0, (1, 4): 0.5, (2, 0): 0.0}
    total = 0.0
    for row in range(3):
        moved = q[row] + up @ (down @ q[row])
        for column in range(5):
            s = 7.0 * float(moved @ d[column]) / float(np.sqrt(moved @ moved)) - 2.0
            total += np.log1p(np.exp(s)) - z.get((row, column), 0.0) * s
    targets = GradedTargets.from_entries(*zip(*z, strict=True), list(z.values()), (3, 5))
    queries, documents, down, up = map(torch.tensor, (q, d, down, up))
    loss = graded_bce(adapted(queries, down, up), documents, targets, 7.0, -2.0)
    assert float(loss) == pytest.approx(total / 3, abs=1e-12)
    assert torch.equal(adapted(queries, down, 0 * up), torch.nn.functional.normalize(queries, dim=1))


def test_steps_depend_on_the_seed_alone(tmp_path):
    queries, documents = (torch.tensor(unit(*shape)).float() for shape in ((30, 8, 0), (40, 8, 1)))
    targets = GradedTargets.from_entries(range(30), range(30), [1.0] * 30, (30, 40))

    def last(seed):
        settings = settings_of(tmp_path, seed=seed)
        return [(down.clone(), up.clone()) for _, down, up in train_map(settings, queries, documents, targets)][-1]

    assert all(map(torch.equal, last(0), last(0)))
    assert not torch.equal(last(0)[1], last(1)[1])


def test_the_gain_is_not_that_of_the_luckiest_candidate():
    generator = np.random.default_rng(0)
    names = [f"q{n}" for n in range(60)]
    lucky = {(n, 1.0): dict(zip(names, generator.normal(size=60), strict=True)) for n in range(1, 25)}
    scores = {BASE: dict.fromkeys(names, 0.0)} | lucky
    best = max(np.mean(list(values.values())) for values in lucky.values())
    gains = [cross_difference(scores, seed).mean for seed in range(10)]
    assert best > 0.15 and abs(np.mean(gains)) < best / 2


def test_share_of_the_queries_is_held_out_without_dev(capsys, tmp_path, words):
    code, envelope = call(capsys, *words(dev=None, steps=80))
    assert code == 0 and envelope["metrics"]["gain"]["queries"] == 60 and envelope["metrics"]["train_queries"] == 140
    tensors = load_file(tmp_path / "out" / "adapter.safetensors")
    assert {name: part.shape for name, part in tensors.items()} == {"A": (SIZE, SIZE), "B": (SIZE, SIZE)}


def test_useless_maps_are_rarely_better():
    """In 2.5 % of samples at most; two standard errors of 400 are 1.6 %."""
    generator, better = np.random.default_rng(0), 0
    for sample in range(400):
        base = dict(enumerate(generator.random(60)))
        common, scores = generator.normal(size=60), {BASE: base}
        for steps in range(1, 7):
            noise = generator.normal(size=60)
            for factor in (0.5, 1.0):
                moved = 0.05 * steps * factor * (0.5 * common + 0.87 * noise) * (generator.random(60) > 0.4)
                scores[steps, factor] = {query: base[query] + moved[query] for query in base}
        better += cross_difference(scores, sample).verdict == "better"
    assert better / 400 < 0.025 + 0.016
