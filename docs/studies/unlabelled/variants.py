"""Train with another target of unlabelled entries, or another bias: `bixse train`, with one piece replaced.

    python docs/studies/unlabelled/variants.py base --config data/pydocs-1-base-0.yaml --out runs/pydocs-1-base-0

The first word is one of VARIANTS, the others are those of `bixse train`, in one process. `merged` and `tuned` take the
model that was trained with `base` and the same seed (its folder is next to --out) for their teacher. measure.py calls
this. Version 1.0.0rc1 has `base` and `half` as settings, for many tasks and processes, and computes p in blocks.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bixse.cli.main import main
from bixse.encoders.encode import encode_texts
from bixse.encoders.platt import fit_platt
from bixse.losses import GradedTargets
from bixse.training import recipe
from bixse.training.loop.trainer import GradedTrainer

VARIANTS = ("base", "half", "prior", "graded", "merged", "tuned", "bias-per-batch")
"""All of the probability, half of it, only above the prior, graded entries too, two teachers, a bias fitted anew."""


class Variant(GradedTrainer):
    """Give an entry without a grade the probability p = sigmoid(a cos + b) by the model before training."""

    def train(self, *args, **kwargs):
        self.compute, self.loss.compute_loss_from_embeddings = self.loss.compute_loss_from_embeddings, self.replaced
        if sys.argv[1] != "bias-per-batch":
            out, pairs, model = Path(self.args.output_dir).parent, self.pairs, self.model
            if sys.argv[1] in ("merged", "tuned"):
                folder = out.with_name(out.name.replace(sys.argv[1], "base")) / sys.argv[1].replace("merged", "model")
                model = SentenceTransformer(str(folder))
            rows = {"query": pairs.groups().first_rows, "document": pairs.distinct("document")}
            self.base = [torch.from_numpy(encode_texts(model, pairs.texts(kind, rows[kind]), kind)) for kind in rows]
            cosines, relevance = [], []
            for batch in self._loader(self.plan.of_epoch(0), self.data_collator):
                cosines.append(self.base[0][batch["numbers"][0]] @ self.base[1][batch["numbers"][1]].T)
                relevance.append(GradedTargets(**batch["label"], shape=cosines[-1].shape).dense()[0])
            x, z = (torch.cat([part.flatten() for part in parts]).numpy() for parts in (cosines, relevance))
            self.curve, self.prior = fit_platt(x, z), float(np.mean(z))
        return super().train(*args, **kwargs)

    def training_step(self, model, inputs, *args, **kwargs):
        self.numbers = [part.cpu() for part in inputs["numbers"]]
        return super().training_step(model, inputs, *args, **kwargs)

    def replaced(self, queries, documents, targets):
        if sys.argv[1] == "bias-per-batch":  # then no gradient moves all cosines of a batch together
            self.loss.has_bias = False
            return self.compute(queries, documents, targets)
        q, d = (table[numbers].to(queries.device) for table, numbers in zip(self.base, self.numbers, strict=True))
        p = (0.5 if sys.argv[1] == "half" else 1.0) * torch.sigmoid(self.curve[0] * q @ d.T + self.curve[1])
        mixed = 0.3 * p[targets.rows, targets.columns] if sys.argv[1] == "graded" else 0.0
        p = p.where(p > self.prior, 0.0) if sys.argv[1] == "prior" else p
        p[targets.rows, targets.columns] = (0.7 if sys.argv[1] == "graded" else 1.0) * targets.relevance + mixed
        rows, columns = torch.ones_like(p).nonzero(as_tuple=True)
        return self.compute(queries, documents, GradedTargets(rows, columns, p.flatten(), targets.shape))


if __name__ == "__main__":
    recipe.GradedTrainer = Variant
    sys.exit(main(["train", *sys.argv[2:]]))
