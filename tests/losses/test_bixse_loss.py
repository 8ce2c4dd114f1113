import inspect
import math
import re
import textwrap

import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn.functional import normalize

import bixse.losses
from bixse.encoders.embedding import embed_features
from bixse.errors import ConfigError, InputError
from bixse.losses.bixse import BiXSELoss, fit_bias, prior_bias
from bixse.losses.catalogue import LOSSES, build_loss, check_loss_options
from bixse.losses.targets import GradedTargets
from helpers.batches import padded_left

QUERIES = ["how do i copy a file", "how do i sort a list", "find the path"]
DOCUMENTS = [["copy the file", "move the file"], ["sort the list", "copy the file"], ["the path name", "move the file"]]
GRADES = [[1.0, 0.5], [0.75, 0.125], [0.5, 0.25]]
COLUMNS = ["copy the file", "move the file", "sort the list", "the path name"]
KNOWN = [[1.0, 0.5, 0.0, 0.0], [0.125, 0.0, 0.75, 0.0], [0.0, 0.25, 0.0, 0.5]]


def loss_of(model, texts, labels, **options):
    loss = BiXSELoss(model, **{"scale": 20.0, "bias": -3.0, **options})
    return loss([model.preprocess(column) for column in texts], labels), loss


def unit(model, texts):
    return normalize(model(model.preprocess(texts))["sentence_embedding"], dim=1)


def by_hand(model, queries, columns, relevance):
    """Return the loss by two Python loops over embeddings of the plain model."""
    q, d = (unit(model, texts).double() for texts in (queries, columns))
    total = 0.0
    for i, row in enumerate(relevance):
        for j, z in enumerate(row):
            s = 20.0 * (q[i] @ d[j]).item() - 3.0
            total += math.log1p(math.exp(s)) - z * s
    return total / len(queries)


@pytest.mark.parametrize(
    ("columns", "labels", "got"),
    [
        (0, torch.ones(3), "1 text columns and some labels"),
        (1, None, "2 text columns and no labels"),
        *((1, torch.zeros(shape), "labels of shape") for shape in [(2,), (6,), (3, 2), (), (2, 3, 1)]),
        (1, torch.tensor([5.0, 0.0, 1.0]), "a relevance outside [0, 1]"),
    ],
)
def test_columns_and_labels_that_do_not_fit_are_refused(tiny_model, columns, labels, got):
    with pytest.raises(InputError) as caught:
        loss_of(tiny_model, [QUERIES, *[COLUMNS[:3]] * columns], labels)
    assert caught.value.got.startswith(got)


class TestForms:
    def test_columns_and_table_give_the_loss_computed_by_hand(self, tiny_model):
        expected = by_hand(tiny_model, QUERIES, COLUMNS, KNOWN)
        table = torch.tensor([[i, j, z] for i, row in enumerate(KNOWN) for j, z in enumerate(row) if z])
        grades = torch.tensor(GRADES)
        # six flat rows are six queries, each of which stands twice: the sum over entries doubles, and so does B
        flat = [q for q in QUERIES for _ in range(2)], [d for row in DOCUMENTS for d in row]
        for texts, labels in (
            ([QUERIES, *zip(*DOCUMENTS, strict=True)], grades),
            ([QUERIES, COLUMNS], GradedTargets.from_entries(*table.T, (3, 4)).tensors()),
            (flat, grades.flatten()),
        ):
            assert loss_of(tiny_model, texts, labels)[0].item() == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(("in_batch_labels", "other"), [("known", 1.0), ("paper", 0.0)])
    def test_grades_of_another_row_count_when_known(self, tiny_model, in_batch_labels, other):
        texts = [QUERIES[0], QUERIES[1], QUERIES[0]], ["copy the file", "copy the file", "move the file"]
        value, _ = loss_of(tiny_model, texts, torch.tensor([1.0, 0.25, 0.5]), in_batch_labels=in_batch_labels)
        entries = [[1.0, 0.5 * other], [0.25, 0.0], [other, 0.5]]
        assert value.item() == pytest.approx(by_hand(tiny_model, texts[0], texts[1][1:], entries), rel=1e-5)

    def test_duplicates_across_columns_are_found_when_padding_is_on_the_left(self, tiny_model):
        columns = QUERIES[:2], ["copy", "move the file"], ["move the file", "sort the list of words in a file"]
        queries, narrow, wide = (padded_left(tiny_model.preprocess(texts)) for texts in columns)
        assert narrow["input_ids"].shape != wide["input_ids"].shape
        labels = torch.tensor([[1.0, 0.5], [0.25, 0.125]])
        first, targets = BiXSELoss(tiny_model).targets_of_labels(queries, [narrow, wide], labels)
        assert first.tolist() == [0, 1, 3]
        assert targets.dense()[0].tolist() == [[1.0, 0.5, 0.0], [0.0, 0.25, 0.125]]

    def test_autocast_keeps_the_arithmetic_after_the_encoder_in_float32(self, tiny_model, monkeypatch):
        features = [tiny_model.preprocess(QUERIES), tiny_model.preprocess(COLUMNS[:3])]
        fixed = {id(f): embed_features(tiny_model, f).detach() for f in features}
        monkeypatch.setattr("bixse.losses.base.embed_features", lambda _, f, *__: fixed[id(f)])
        labels, biases = torch.tensor([1.0, 0.0, 0.5]), []
        for enabled in (False, True):
            loss = BiXSELoss(tiny_model)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                value = loss(features, labels)
            biases.append((loss.logit_bias.item(), value.item(), float(loss.statistics["mean_logit_irrelevant"])))
        assert biases[0] == biases[1]


class TestBiasStart:
    @pytest.mark.parametrize("bias", ["fit", "prior"])
    def test_a_large_batch_is_sampled_and_starts_nearly_the_same(self, tiny_model, monkeypatch, bias):
        generator = torch.Generator().manual_seed(0)
        q, d = (normalize(torch.randn(400, 8, generator=generator), dim=1) for _ in range(2))
        rows = torch.arange(400)
        targets = GradedTargets(rows, rows, torch.rand(400, generator=generator), (400, 400))
        starts = []
        for entries in (400 * 400, 400 * 50):
            monkeypatch.setattr("bixse.losses.targets.ENTRIES_SAMPLED", entries)
            loss = BiXSELoss(tiny_model, scale=20.0, bias=bias)
            loss.start_bias(q, d, targets)
            starts.append(loss.logit_bias.item())
        assert starts[0] != starts[1]
        assert starts[1] == pytest.approx(starts[0], abs=0.5)

    def test_a_bias_that_is_not_learned_gets_no_gradient(self, tiny_model):
        value, loss = loss_of(tiny_model, [QUERIES, COLUMNS[:3]], torch.ones(3), learn_bias=False, learn_scale=True)
        value.backward()
        assert loss.scaled_bias.grad is None
        assert loss.logit_scale.grad is not None


def test_a_loaded_bias_is_not_started_again(tiny_model):
    batch = [QUERIES, COLUMNS[:3]], torch.tensor([1.0, 0.5, 0.25])
    _, trained = loss_of(tiny_model, *batch, bias="fit")
    fresh = BiXSELoss(tiny_model)
    fresh.load_state_dict({**trained.state_dict(), "logit_bias": torch.tensor(-5.0)})
    fresh([tiny_model.preprocess(texts) for texts in batch[0]], batch[1])
    assert fresh.logit_bias.item() == -5.0


def test_the_statistics_of_a_batch_and_its_start(tiny_model):
    _, loss = loss_of(tiny_model, [QUERIES, *zip(*DOCUMENTS, strict=True)], torch.tensor(GRADES), bias="fit")
    q, d = (unit(tiny_model, texts) for texts in (QUERIES, COLUMNS))
    s, relevant = 20.0 * q @ d.T + loss.logit_bias, torch.tensor(KNOWN) >= 0.5
    mean_target = torch.tensor(KNOWN).mean().item()
    assert torch.sigmoid(s).mean().item() == pytest.approx(mean_target, abs=1e-5)
    assert {name: float(value) for name, value in loss.statistics.items()} == {
        "logit_bias": loss.logit_bias.item(),
        "cosine_at_half": pytest.approx(loss.logit_bias.item() / -20.0),
        "logit_scale": 20.0,
        "mean_logit_relevant": pytest.approx(s[relevant].mean().item(), abs=1e-4),
        "mean_logit_irrelevant": pytest.approx(s[~relevant].mean().item(), abs=1e-4),
        "mean_target": pytest.approx(mean_target, abs=1e-6),
    }
    assert not any(value.requires_grad for value in loss.statistics.values())


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_batch_of_one_kind_gives_a_finite_start_that_can_still_learn(value):
    cosines, relevance, weight = torch.zeros(2, 3), torch.full((2, 3), value), torch.ones(2, 3)
    expected = math.copysign(math.log(1e6 - 1), value - 0.5)
    assert fit_bias(cosines, relevance, weight, 20.0) == pytest.approx(expected, rel=1e-3)
    assert prior_bias(relevance, weight) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("scale", [1.0, 20.0, 50.0])
def test_fit_equals_an_independent_root_finder_and_ignores_masked_entries(scale):
    generator = torch.Generator().manual_seed(3)
    cosines = torch.rand(12, 30, generator=generator) * 1.4 - 0.4
    relevance = (torch.rand(12, 30, generator=generator) < 0.1) * torch.rand(12, 30, generator=generator)
    weight = (torch.rand(12, 30, generator=generator) < 0.8).float()
    counted = weight.bool()
    s, z = (scale * cosines.double())[counted].numpy(), relevance.double()[counted].numpy()
    expected = brentq(lambda b: (1 / (1 + 2.718281828459045 ** -(s + b))).mean() - z.mean(), -90, 90, xtol=1e-12)
    assert fit_bias(cosines, relevance, weight, scale) == pytest.approx(expected, abs=1e-5)
    changed = torch.where(counted, cosines, 1.0)
    assert fit_bias(changed, relevance, weight, scale) == fit_bias(cosines, relevance, weight, scale)


def test_prior_is_the_log_odds_of_the_mean_target_that_counts():
    relevance = torch.tensor([[1.0, 0.0, 0.5, 0.9]])
    weight = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert prior_bias(relevance, weight) == pytest.approx(0.0, abs=1e-6)
    assert prior_bias(relevance[:, :2] * 0.2, weight[:, :2]) == pytest.approx(math.log(0.1 / 0.9), rel=1e-6)


TWICE = [["copy a file", "copy a file", "sort a list", "copy a file"],
         ["copy the file", "copy the file", "sort the list", "move the file"]]  # fmt: skip


@pytest.fixture
def value(tiny_model):
    """Return the loss of a batch of flat pairs, with a bias that does not depend on the targets."""

    def value_of(word, texts, labels, **options) -> float:
        bias = {"bias": -3.0} if word in ("bixse", "bixse-binarised") else {}
        loss = build_loss(word, tiny_model, **bias, **options)
        return loss([tiny_model.preprocess(column) for column in texts], torch.tensor(labels)).item()

    return value_of


@pytest.mark.parametrize("word", LOSSES)
@pytest.mark.parametrize("in_batch_labels", ["known", "paper"])
def test_two_labels_of_a_pair_count_as_their_mean_in_any_order(value, word, in_batch_labels):
    if in_batch_labels == "paper" and word in ("margin-mse", "distill-kl"):
        pytest.skip("a row's document alone, which is all that paper knows of flat rows, has no order")
    orders = [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]
    (mean,) = {value(word, TWICE, [*twice, 0.75, 1.0], in_batch_labels=in_batch_labels) for twice in orders}
    assert math.isfinite(mean)


def test_documents_that_are_equal_after_truncation_are_one(tiny_model, value):
    tiny_model.max_seq_length = 6
    texts = [["copy a file"] * 2, ["copy the file in the folder", "copy the file in the path"]]
    assert len({value("bixse", texts, labels) for labels in ([1.0, 0.0], [0.0, 1.0], [0.5, 0.5])}) == 1


def test_a_masked_label_masks_the_pair(value):
    texts = [column[:3] for column in TWICE]
    masked = [math.nan] * 2, [math.nan, 1.0], [0.0, math.nan]
    assert len({value("bixse", texts, [*labels, 1.0]) for labels in masked}) == 1


@pytest.mark.parametrize(
    ("loss", "option", "hint"),
    [
        ("infonce", "positive_fro", "did you mean 'positive_from'?"),
        ("infonce", "bias", "in_batch_labels, scale"),
        ("bixse", "model", "an unknown key"),
        ("bixse-without-bias", "bias", "loss 'bixse-without-bias' sets it to 0.0"),
        ("lambdarank", "weighting", "choose another loss"),
        ("lamdarank", "scale", "did you mean 'lambdarank'"),
    ],
)
def test_an_unknown_loss_or_option_is_refused(loss, option, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)):
        check_loss_options(loss, {option: 1})


@pytest.mark.parametrize(
    ("loss", "option", "values"),
    [
        ("infonce", "positive_from", ["high", True, 0.0, -0.1, 1.01, math.nan]),
        ("bixse", "learn_scale", ["no", 1]),
        ("bixse", "positive_from", ["x", 0.0, 1.5]),
        ("bixse", "bias", [[1.0], "middle", "", None, True, math.nan, math.inf]),
        ("bixse", "reduction", ["sum"]),
        ("bixse", "products", ["float16"]),
        ("bixse", "in_batch_labels", ["all"]),
        ("bixse", "unlabelled", ["zero", "base"]),
        ("soft-infonce", "mini_batch_size", [0, -1, True, 1.5]),
        ("margin-mse", "scale", [0.0, -20.0, math.nan, math.inf]),
        ("margin-mse", "margin", [0.0, -1.0, 2.1, math.nan]),
        ("lambdarank", "top_grade", [0.0, 33, math.nan]),
        ("infonce", "hardness", [-1.0, math.nan]),
    ],
)
def test_an_option_of_the_wrong_kind_or_outside_its_range(loss, option, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"{option}.*: got .*; expected .*; fix: "):
            build_loss(loss, nn.Identity(), **{option: value})


@pytest.mark.parametrize("word", LOSSES)
def test_every_word_builds_what_it_names_and_the_model_card_says_how(word):
    options = {"scale": 7.0, "gradient_cache": True, "mini_batch_size": 5}
    loss = build_loss(word, nn.Identity(), **options)
    assert type(loss) is getattr(bixse.losses, LOSSES[word].name)
    assert loss.get_config_dict().items() >= {**LOSSES[word].fixed, **options}.items()


def test_a_loss_over_lengths_has_the_options_that_its_batches_are_made_with():
    options = {"in_batch_labels": "paper", "gradient_cache": True, "mini_batch_size": 5}
    model = nn.Identity()
    model.get_embedding_dimension = lambda: 8
    assert build_loss("bixse", model, [4], **options).options.model_dump().items() >= options.items()


@pytest.mark.parametrize(
    ("word", "options", "requires", "informative", "not_informative"),
    [
        ("bixse", {}, "relevance above 0", [[0.2]], [[0.0, 0.0]]),
        ("infonce", {"positive_from": 0.6}, "relevance of at least 0.6", [[0.0, 0.6]], [[0.59, 0.0], []]),
        ("margin-mse", {}, "two graded documents", [[0.0, 0.0]], [[1.0]]),
        ("distill-kl", {}, "two graded documents", [[0.0, 0.0]], [[1.0]]),
        ("pairwise-bce", {}, "relevance above 0", [[0.2]], [[0.0, 0.0]]),
    ],
)
def test_what_a_query_must_bring(word, options, requires, informative, not_informative):
    loss = build_loss(word, nn.Identity(), **options)
    assert loss.requires.endswith(requires)
    assert all(loss.is_informative(group) for group in informative)
    assert not any(loss.is_informative(group) for group in not_informative)


@pytest.mark.parametrize("word", ["BiXSELoss", pytest.param("LambdaLoss", marks=pytest.mark.slow)])
def test_the_example_in_the_docstring_trains(word, tmp_path, monkeypatch):
    """sentence-transformers' own trainer, the real encoder, the text a user reads; another loss in its place."""
    text = (inspect.getdoc(bixse.losses.BiXSELoss) or "").partition("trainer::\n\n")[2]
    code = textwrap.dedent(text[: text.index("trainer.train()") + len("trainer.train()")])
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace("BiXSELoss", word), names)
    assert names["trainer"].state.global_step > 0
    untrained = names["build_encoder"]("demo")
    pairs = zip(untrained.parameters(), names["model"].parameters(), strict=True)
    assert any(not torch.equal(before.cpu(), after.cpu()) for before, after in pairs)


def test_a_common_shift_of_all_cosines_moves_the_cut_and_not_infonce(tiny_model):
    share = 0.8  # of a direction that all texts have: logits of scale 20 / (1 - share) are those of scale 20, plus 80
    q, d = (normalize(torch.randn(number, 6, generator=torch.manual_seed(number)), dim=1) for number in (3, 4))
    shifted = [torch.cat([part * (1 - share) ** 0.5, torch.full((len(part), 1), share**0.5)], dim=1) for part in (q, d)]
    rows, columns, z = zip(*[(i, j, z) for i, row in enumerate(KNOWN) for j, z in enumerate(row) if z], strict=True)
    targets = GradedTargets.from_entries(torch.tensor(rows), torch.tensor(columns), torch.tensor(z), (3, 4))

    def value_and_cut(parts, scale, loss="bixse", **options):
        built = build_loss(loss, tiny_model, scale=scale, **options)
        return built.compute_loss_from_embeddings(*parts, targets).item(), built.statistics.get("cosine_at_half")

    (plain, cut), (moved, moved_cut) = value_and_cut((q, d), 20.0), value_and_cut(shifted, 100.0)
    assert moved == pytest.approx(plain, rel=1e-4)  # "fit" finds the shift
    assert float(moved_cut) == pytest.approx(share + (1 - share) * float(cut), abs=1e-4)
    assert value_and_cut(shifted, 100.0, bias=-10.0)[0] > 5 * value_and_cut((q, d), 20.0, bias=-10.0)[0]
    infonce = [value_and_cut(parts, scale, "infonce")[0] for parts, scale in (((q, d), 20.0), (shifted, 100.0))]
    assert infonce[1] == pytest.approx(infonce[0], rel=1e-4)
