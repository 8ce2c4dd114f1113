"""`Regrading`: a `GradedTrainer` that grades the ungraded entries with the highest scores between passes.

The setting `regrade` of version 1.0.0rc1 does this, with any judge, in several processes, and after a stop.
"""

import json
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import torch
from transformers import TrainerCallback

from bixse.data.graded_pairs import Pairs
from bixse.training.loop.batches import KnownGrades
from bixse.training.loop.trainer import GradedTrainer

BUDGET = 300
ASKED = "asked.json"
"""File of the run: a list per pass of (query id, document id)."""
COLUMNS = ["query_id", "query", "document_id", "document", "relevance"]


class Regrading(GradedTrainer, TrainerCallback):
    """Train on what `judge`, (query id, document id) -> relevance, says of the likely false negatives so far."""

    judge: ClassVar = {}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked, self.highest, self.compute = [], {}, self.loss.compute_loss_from_embeddings
        self.loss.compute_loss_from_embeddings = self.look
        self.add_callback(self)

    def training_step(self, model, inputs, *args, **kwargs):
        self.numbers = [part.tolist() for part in inputs["numbers"]]
        return super().training_step(model, inputs, *args, **kwargs)

    def look(self, queries, documents, targets):
        loss = self.compute(queries, documents, targets)  # the first batch sets the bias
        logits = (self.loss.logit_scale * queries @ documents.T + self.loss.logit_bias).detach()
        logits[targets.rows, targets.columns] = -torch.inf
        for position in logits.flatten().topk(min(8 * BUDGET, logits.numel())).indices.tolist():
            row, column = divmod(position, len(documents))
            entry = self.numbers[0][row], self.numbers[1][column]
            self.highest[entry] = max(float(logits[row, column]), self.highest.get(entry, -torch.inf))
        return loss

    def on_epoch_begin(self, args, state, control, **kwargs):
        if not state.global_step:
            return
        pairs, table = self.pairs, self.pairs.to_arrow().select(COLUMNS)
        queries, documents = pairs.groups().first_rows, pairs.distinct("document")
        asked = {pair for earlier in self.asked for pair in earlier}
        ranked = [(queries[q], documents[d]) for q, d in sorted(self.highest, key=lambda e: -self.highest[e])]
        rows = {(pairs.query_ids[q], pairs.document_ids[d]): (q, d) for q, d in ranked}
        self.asked.append([pair for pair in rows if pair not in asked][:BUDGET])
        self.highest.clear()
        Path(args.output_dir).with_name(ASKED).write_text(json.dumps(self.asked))
        graded = [(*rows[pair], self.judge[pair]) for pair in self.asked[-1] if pair in self.judge]
        q, d, relevance = zip(*graded, strict=True)
        columns = [table[name].take(list(map(int, d if "document" in name else q))) for name in COLUMNS[:4]]
        more = pa.table([*columns, relevance], COLUMNS).cast(table.schema)
        self.pairs = Pairs.from_arrow(pa.concat_tables([table, more]))
        self.data_collator.pairs, self.data_collator.known = self.pairs, KnownGrades(self.pairs)
        drawn = self.callback_handler.train_dataloader.dataset
        drawn.pairs, drawn.groups = self.pairs, self.pairs.groups()
