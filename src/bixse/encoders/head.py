"""The relevance head: from a cosine to a probability of relevance."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from bixse.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

HEAD_FILE = "relevance_head.json"
"""Name of the head's file inside a model folder."""

Cosines = TypeVar("Cosines", float, "NDArray[np.float64]")


@dataclass(frozen=True)
class RelevanceHead:
    """p = sigma(slope * (logit_scale * cosine + logit_bias) + intercept).

    Scale and bias come from training (BiXSE paper, section 3); slope and intercept from calibration on held-out
    pairs (Platt 1999), 1 and 0 before it.

    Example:
        >>> head = RelevanceHead(logit_scale=20.0, logit_bias=-10.0)
        >>> head.probability(0.5), round(head.probability(0.6), 3)
        (0.5, 0.881)
    """

    logit_scale: float
    """alpha, above 0."""
    logit_bias: float
    """beta."""
    slope: float = 1.0
    """Calibration slope, 0 or above."""
    intercept: float = 0.0
    """Calibration intercept."""
    calibrated_on: str | None = None
    """What the calibration was fitted on, in words; None: not calibrated."""

    def logit(self, cosine: Cosines) -> Cosines:
        """Calibrated logit of a cosine or of an array of them."""
        return self.slope * (self.logit_scale * cosine + self.logit_bias) + self.intercept

    def probability(self, cosine: Cosines) -> Cosines:
        """Probability of relevance in [0, 1] of a cosine or of an array of them."""
        if isinstance(cosine, float):
            return 0.5 * (1.0 + math.tanh(0.5 * self.logit(cosine)))
        import numpy as np

        return 0.5 * (1.0 + np.tanh(0.5 * self.logit(cosine)))

    def save(self, folder: Path) -> None:
        """Write the head into a model folder (an existing head is replaced whole).

        Raises:
            StorageError: the folder cannot be written.
        """
        from bixse.data.files import write_atomically

        write_atomically(folder / HEAD_FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RelevanceHead | None:
        """The head of a model folder, or None where the model has none.

        Raises:
            ModelError: the file is damaged.
        """
        path = folder / HEAD_FILE
        if not path.is_file():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            head = cls(**{field.name: values[field.name] for field in fields(cls)})
            numbers = (head.logit_scale, head.logit_bias, head.slope, head.intercept)
            usable = all(math.isfinite(number) for number in numbers) and head.logit_scale > 0 and head.slope >= 0
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            usable = False
        if not usable:
            raise ModelError(
                f"{path}: got no readable relevance head; expected a finite logit_scale above 0, logit_bias, slope and "
                "intercept; to mend: delete the file and run `bixse calibrate` on the model"
            )
        return head
