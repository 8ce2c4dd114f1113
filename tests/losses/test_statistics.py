from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from bixse.losses.engines.batch_statistics import mean_logits
from bixse.losses.targets import GradedTargets


class TestStatistics:
    def test_equal_the_dense_computation(self, random_batch):
        batch = random_batch(23, 31, known=0.2).as_type(torch.float32)
        z, weight = batch.targets.dense()
        assert not bool(weight.all())
        cosines = cosine_similarity(batch.queries.detach()[:, None], batch.documents.detach()[None], dim=2)
        s = 20.0 * cosines - 5.0
        relevant, others = mean_logits(batch.queries, batch.documents, batch.targets, 20.0, -5.0)
        assert float(relevant) == pytest.approx(float(s[z >= 0.5].mean()), abs=1e-4)
        assert float(others) == pytest.approx(float(s[(z < 0.5) & weight.bool()].mean()), abs=1e-4)

    def test_more_relevant_cells_than_one_block(self, monkeypatch):
        monkeypatch.setattr("bixse.losses.engines.batch_statistics.NUMBERS_AT_ONCE", 100)
        q = torch.nn.functional.normalize(torch.arange(1.0, 5001.0)[:, None].expand(-1, 2) % 7 - 3.3, dim=1)
        rows = torch.arange(5000)
        targets = GradedTargets(rows, torch.zeros_like(rows), torch.ones(5000), (5000, 1))
        relevant, others = mean_logits(q, q[:1], targets, 2.0, 1.0)
        assert float(relevant) == pytest.approx(float((2.0 * q @ q[0] + 1.0).mean()), abs=1e-4)
        assert math.isnan(float(others))

    def test_no_relevant_cell_is_nan(self, random_batch):
        batch = random_batch(3, 4, known=0.0)
        relevant, others = mean_logits(batch.queries, batch.documents, batch.targets, 20.0, 0.0)
        assert math.isnan(float(relevant))
        assert math.isfinite(float(others))
