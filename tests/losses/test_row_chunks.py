"""What holds for every loss: blocks, permutations, duplicates, masks and the cached form change no gradient."""

import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from bixse import losses
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import InputError
from bixse.losses.catalogue import LOSSES, build_loss
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.row_chunks import RowWiseLoss
from helpers.batches import QUICK, assert_all_close, random_batch

ROW_WISE = [word for word in LOSSES if issubclass(getattr(losses, LOSSES[word].name), RowWiseLoss)]


def options(word):
    return {"bias": -1.3} if word in ("bixse", "bixse-binarised") else {}


def value_and_gradients(loss, queries, documents, targets):
    leaves = [x.detach().clone().requires_grad_() for x in (queries, documents)]
    value = loss.compute_loss_from_embeddings(*leaves, targets)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.fixture
def batch():
    return random_batch(9, 14, known=0.35)


@pytest.fixture
def loss(tiny_model, word):
    return build_loss(word, tiny_model, scale=4.0, **options(word))


@pytest.mark.parametrize("word", LOSSES)
class TestEveryLoss:
    def test_permuted_rows_and_columns_permute_the_gradients(self, loss, batch):
        rows, columns = torch.randperm(9), torch.randperm(14)
        known = batch.targets
        positions = torch.argsort(rows)[known.rows], torch.argsort(columns)[known.columns]
        moved = GradedTargets(*positions, known.relevance, known.shape)
        value, *gradients = value_and_gradients(loss, batch.queries, batch.documents, known)
        permuted = value_and_gradients(loss, batch.queries[rows], batch.documents[columns], moved)
        assert_all_close(permuted, [value, gradients[0][rows], gradients[1][columns]], rtol=1e-9, atol=1e-12)

    def test_a_masked_column_equals_a_missing_document(self, loss, batch):
        inside = batch.targets.columns < 13
        known = [part[inside] for part in (batch.targets.rows, batch.targets.columns, batch.targets.relevance)]
        masked = [torch.arange(9), torch.full((9,), 13), torch.full((9,), math.nan, dtype=torch.float64)]
        with_mask = GradedTargets(*(torch.cat(pair) for pair in zip(known, masked, strict=True)), (9, 14))
        ours = value_and_gradients(loss, batch.queries, batch.documents, with_mask)
        without = value_and_gradients(loss, batch.queries, batch.documents[:13], GradedTargets(*known, (9, 13)))
        assert_all_close([*ours[:2], ours[2][:13]], without, rtol=1e-9, atol=1e-12)
        assert ours[2][13].abs().max() == 0.0

    def test_a_batch_without_grades_gives_finite_numbers_and_0_but_for_bixse(self, loss, batch, word):
        nothing = GradedTargets.from_entries([], [], [], (9, 14))
        parts = value_and_gradients(loss, batch.queries, batch.documents, nothing)
        assert all(bool(x.isfinite().all()) for x in parts)
        assert word.startswith("bixse") or all(x.abs().max() == 0.0 for x in parts)

    def test_extreme_scores_give_finite_numbers(self, tiny_model, batch, word):
        loss = build_loss(word, tiny_model, scale=2000.0, **options(word))
        parts = value_and_gradients(loss, *batch.as_type(torch.float32).leaves[:2], batch.targets)
        assert all(bool(x.isfinite().all()) for x in parts)

    def test_a_document_given_twice_is_one_column(self, tiny_model, loss):
        texts = ["copy a file", "sort a list"], ["shutil copy", "sorted list"], ["move file", "shutil copy"]
        twice = loss([tiny_model.preprocess(column) for column in texts], torch.tensor([[1.0, 0.4], [0.7, 0.2]]))
        distinct = [tiny_model.preprocess(column) for column in (texts[0], ["shutil copy", "sorted list", "move file"])]
        targets = GradedTargets.from_entries([0, 0, 1, 1], [0, 2, 1, 0], [1.0, 0.4, 0.7, 0.2], (2, 3))
        torch.testing.assert_close(twice, loss(distinct, targets.tensors()))

    def test_shares_of_the_queries_weighed_by_their_counts_are_the_global_batch(self, loss):
        batch = random_batch(10, 14, known=0.5)
        value, *gradients = value_and_gradients(loss, batch.queries, batch.documents, batch.targets)
        parts, counts = [], []
        for block, _, known in batch.targets.tiles(5):
            parts.append(value_and_gradients(loss, batch.queries[block], batch.documents, known))
            counts.append(loss.denominator.item())
        shares = [count / sum(counts) for count in counts]
        weighed = ([share * x for x in part] for share, part in zip(shares, parts, strict=True))
        values, queries, documents = zip(*weighed, strict=True)
        assert_all_close([sum(values), torch.cat(queries), sum(documents)], [value, *gradients], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("word", ROW_WISE)
@pytest.mark.parametrize("entries", [1, 14, 40, 10**6])
def test_the_size_of_a_block_does_not_matter(loss, batch, entries, monkeypatch):
    results = []
    for size in (entries, 9 * 14):
        monkeypatch.setattr("bixse.losses.tiles.row_chunks.ENTRIES_PER_CHUNK", size)
        results.append(value_and_gradients(loss, batch.queries, batch.documents, batch.targets))
    assert_all_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("word", ["infonce"])
@pytest.mark.parametrize("factor", [1.0, -2.5])
@pytest.mark.parametrize("alone", [0, 1])
def test_the_gradient_of_one_side_alone_is_the_same_and_multiplied_with_the_loss(loss, batch, alone, factor):
    expected = value_and_gradients(loss, batch.queries, batch.documents, batch.targets)[1 + alone]
    leaves = [batch.queries.detach(), batch.documents.detach()]
    leaves[alone].requires_grad_()
    value = factor * loss.compute_loss_from_embeddings(*leaves, batch.targets)
    torch.testing.assert_close(torch.autograd.grad(value, leaves[alone])[0], factor * expected)


@pytest.mark.parametrize("word", ["infonce", "bixse"])
@pytest.mark.parametrize("shape", [(3, 14), (10, 14), (9, 13)])
def test_targets_of_another_batch_are_refused(loss, batch, shape):
    targets = GradedTargets.from_entries([shape[0] - 1], [0], [1.0], shape)
    with pytest.raises(InputError, match=r"expected \(9, 14\)"):
        loss.compute_loss_from_embeddings(batch.queries, batch.documents, targets)


@pytest.mark.parametrize(
    "word", [pytest.param(word, marks=() if word in QUICK else pytest.mark.slow) for word in LOSSES]
)
def test_cached_equals_uncached(tiny_model, word):
    texts = [f"{a} {b}" for a in ("copy", "sort", "open") for b in ("a file", "a list", "a page of the web", "it")]
    features = [tiny_model.preprocess(column) for column in (texts[:6], texts)]
    table = torch.tensor([[i, j, ((i * 5 + j * 3) % 4) / 3] for i in range(6) for j in (i, i + 2, (i * 7) % 3 + 8)])
    labels = GradedTargets.from_entries(*table.T, (6, 12)).tensors()
    for module in tiny_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    tiny_model.train()
    learned = {"learn_scale": True} if word.startswith("bixse") else {}
    results = []
    for cached in (False, True):
        cache = {"mini_batch_size": 5, "gradient_cache": cached}
        loss = build_loss(word, tiny_model, scale=4.0, **cache, **options(word), **learned)
        loss.zero_grad()
        torch.manual_seed(1)
        for _ in range(4):  # accumulated and scaled, as a loss scaler does
            (loss(features, labels) / 4 * 1024).backward()
        results.append({name: p.grad.clone() / 1024 for name, p in loss.named_parameters() if p.grad is not None})
    assert set(results[0]) == set(results[1])
    assert len(results[0]) > (2 if word.startswith("bixse") else 1)
    for name, gradient in results[0].items():
        torch.testing.assert_close(
            results[1][name], gradient, rtol=1e-4, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}"
        )


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def loss_and_extra_mib(folder, word, cached):
    """Return the loss of a large batch and the most memory that it took, in a process of its own."""
    torch.manual_seed(0)
    model = RelevanceModel(folder, device="cpu").train()
    more = {"bias": -3.0, "learn_scale": True} if word == "bixse" else {}
    loss = build_loss(word, model, scale=10.0, mini_batch_size=64, gradient_cache=cached, **more)
    for size in (64, 16384):  # the first loads the kernels
        loss.zero_grad()
        texts = [torch.randint(5, 100, (size, 12), generator=torch.Generator().manual_seed(n)) for n in range(2)]
        features = [{"input_ids": text, "attention_mask": torch.ones_like(text)} for text in texts]
        rows = torch.arange(size).repeat_interleave(2)
        columns = (rows + torch.arange(2).repeat(size)) % size
        targets = {"rows": rows, "columns": columns, "relevance": torch.tensor([1.0, 0.3]).repeat(size)}
        level = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        torch.manual_seed(0)
        value = loss(features, targets)
        value.backward()
    return value.item(), resident("VmHWM") - level


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of the memory is read from /proc")
@pytest.mark.parametrize("word", ["bixse", "infonce"])
def test_a_cached_batch_of_16384_queries_takes_a_fraction_of_the_memory(tiny_model_path, word):
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        forms = [pool.submit(loss_and_extra_mib, str(tiny_model_path), word, form) for form in (True, False)]
        (cached, least), (uncached, most) = (form.result() for form in forms)
    assert cached == pytest.approx(uncached, rel=1e-6)
    assert least < most / 4
