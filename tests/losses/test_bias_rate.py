"""The bias learns k times as fast under every optimizer, as if it were in a group of k times the rate."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from bixse.losses import BiXSELoss, GradedTargets, MatryoshkaLoss

K, STEPS, RATE = 100.0, 50, 1e-3
OPTIMIZERS = {
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.98)}),
    "adam, large eps": (torch.optim.Adam, {"eps": 1e-2}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {}),
    "sgd, momentum": (torch.optim.SGD, {"momentum": 0.9}),
}


class Problem:
    """Embeddings to learn of 6 queries and 9 documents, and batches of graded entries."""

    def __init__(self, lengths=()):
        generator = torch.Generator().manual_seed(5)
        self.queries = nn.Parameter(torch.randn(6, 8, generator=generator))
        self.documents = nn.Parameter(torch.randn(9, 8, generator=generator))
        self.relevance = (torch.rand(STEPS, 6, 9, generator=generator) - 0.6).clamp(min=0)
        self.lengths = (8, *lengths)

    def vectors(self, length):
        return (normalize(part[:, :length], dim=1) for part in (self.queries, self.documents))

    def targets(self, step):
        rows, columns = self.relevance[step].nonzero(as_tuple=True)
        return GradedTargets.from_entries(rows, columns, self.relevance[step][rows, columns].numpy(), (6, 9))

    def dense(self, step, bias):
        """The formula over the whole matrix, with any parameter as the bias."""
        total = 0.0
        for length in self.lengths:
            q, d = self.vectors(length)
            total = total + binary_cross_entropy_with_logits(10 * q @ d.T + bias, self.relevance[step], reduction="sum")
        return total / 6


def biases(problem, value_of, bias, rate_of_bias, optimizer, *, clip=None, schedule=False, accumulate=1, read=None):
    """Train for 50 steps and return the bias after each."""
    kind, options = OPTIMIZERS[optimizer]
    encoder = {"params": [problem.queries, problem.documents], "lr": RATE}
    steps = kind([encoder, {"params": [bias], "lr": rate_of_bias, "weight_decay": 0.0}], lr=RATE, **options)
    rates = torch.optim.lr_scheduler.LambdaLR(
        steps, lambda n: min(1, (n + 1) / 10) * (1 - n / STEPS) if schedule else 1
    )
    history = []
    for step in range(STEPS):
        (value_of(step) / accumulate).backward()
        if (step + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_([problem.queries, problem.documents, bias], clip)
            steps.step()
            steps.zero_grad()
            rates.step()
            history.append((bias if read is None else read()).item())
    return history


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "more",
    [{}, {"clip": 0.5}, {"schedule": True}, {"accumulate": 2}, {"lengths": (4,)}],
    ids="".join,
)
def test_the_bias_moves_as_in_a_group_of_its_own_rate(optimizer, more):
    lengths = more.get("lengths", ())
    settings = {name: value for name, value in more.items() if name != "lengths"}
    grouped, ours = Problem(lengths), Problem(lengths)
    beta = nn.Parameter(torch.tensor(-2.0))
    expected = biases(grouped, lambda step: grouped.dense(step, beta), beta, K * RATE, optimizer, **settings)
    inner = BiXSELoss(model := nn.Identity(), bias=-2.0, bias_lr_multiplier=K)
    loss = MatryoshkaLoss(model, inner, lengths) if lengths else inner
    value = lambda step: loss.compute_loss_from_embeddings(*ours.vectors(8), ours.targets(step))  # noqa: E731
    moved = biases(ours, value, inner.scaled_bias, RATE, optimizer, read=lambda: inner.logit_bias, **settings)
    assert abs(expected[-1] - expected[0]) > 0.02
    assert moved == pytest.approx(expected, abs=1e-5)


def test_a_multiplier_of_0_keeps_the_start():
    for options in ({"bias_lr_multiplier": 0.0}, {"learn_bias": False}):
        loss = BiXSELoss(nn.Identity(), bias=-3.0, **options)
        problem = Problem()
        loss.compute_loss_from_embeddings(*problem.vectors(8), problem.targets(0)).backward()
        assert loss.scaled_bias.grad is None
        assert loss.logit_bias.item() == -3.0


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
def test_the_bias_stays_float32_in_a_loss_of_half_precision(cast):
    loss = BiXSELoss(nn.Linear(2, 2), bias=-7.123456)
    getattr(loss, cast)()
    assert loss.model.weight.dtype != torch.float32
    assert loss.scaled_bias.dtype == torch.float32
    assert loss.logit_bias.item() == pytest.approx(-7.123456, abs=1e-6)


def test_a_state_whose_parameter_was_beta_itself_is_read_as_beta():
    loss = BiXSELoss(nn.Identity())
    old = {"logit_scale": torch.tensor(20.0), "logit_bias": torch.tensor(-9.0), "bias_is_set": torch.tensor(True)}
    loss.load_state_dict(dict(old))
    assert loss.logit_bias.item() == pytest.approx(-9.0)
    twin = copy.deepcopy(loss)
    twin.load_state_dict(loss.state_dict())
    assert torch.equal(twin.scaled_bias, loss.scaled_bias)


@pytest.mark.parametrize("options", [{"bias_lr_multiplier": 10.0}, {"learn_bias": False}])
def test_a_loss_with_another_multiplier_reads_the_same_beta(options):
    saved, loss = BiXSELoss(nn.Identity(), bias=-9.0, **options), BiXSELoss(nn.Identity())
    loss.load_state_dict(saved.state_dict())
    assert loss.logit_bias.item() == pytest.approx(-9.0)
    saved.load_state_dict(loss.state_dict())
    assert saved.logit_bias.item() == pytest.approx(-9.0)
