"""Share of padding in what the encoder computes on the sample collection, by length limit and batch size.

    python benchmarks/padding.py

`by length` cuts batches as training does (`passes_by_length`); `of 32` takes passes of 32 texts sorted by length;
`whole` pads a batch to its longest text. Four documents per query, the demo model's tokenizer, one epoch.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.embedding import positions_computed
from bixse.encoders.loading.build import build_encoder
from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset, shortened_preprocess

if TYPE_CHECKING:
    from torch import Tensor


def positions_of_fixed_passes(mask: Tensor, texts: int) -> int:
    """Positions of passes of `texts` texts, sorted by length, each padded to its own longest one."""
    lengths = mask.sum(dim=1).sort().values
    return sum(len(part) * int(part.max()) for part in lengths.split(texts))


def main() -> None:
    """Print one row a limit and batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one limit and batch size: a look, not a measurement")
    quick = parser.parse_args().quick
    model = build_encoder("demo")
    pairs = GradedPairs.from_collection(load_pydocs(), "train", PYDOCS_SCALE)
    dataset = GroupDataset(pairs, 4)
    print(f"{'tokens':>6} {'batch':>5} {'by length':>10} {'of 32':>7} {'whole':>7}")
    for limit in (64,) if quick else (64, 128, 256):
        for batch_size in (64,) if quick else (16, 64):
            collate = GradedCollator(shortened_preprocess(model, limit), pairs)
            tokens, computed = 0, [0, 0, 0]
            for batch in BatchPlan(pairs, batch_size):
                features = collate([dataset[index] for index in batch])
                for mask in (features["query_attention_mask"], features["document_attention_mask"]):
                    tokens += int(mask.sum())
                    ways = (positions_computed(mask), positions_of_fixed_passes(mask, 32), mask.numel())
                    computed = [total + new for total, new in zip(computed, ways, strict=True)]
            waste = [f"{1 - tokens / positions:.3f}" for positions in computed]
            print(f"{limit:>6} {batch_size:>5} {waste[0]:>10} {waste[1]:>7} {waste[2]:>7}")


if __name__ == "__main__":
    main()
