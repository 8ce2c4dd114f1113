"""A package `vllm` for machines without one: it takes what the real one takes, and computes with transformers.

Names of arguments and attributes are those of vLLM's own source, kept in `vllm_signatures.json`:
`python tests/helpers/vllm_stand_in.py vllm-X.whl` writes that file anew from a wheel.
"""

from __future__ import annotations

import ast
import json
import sys
import types
import zipfile
from pathlib import Path

import torch
import transformers

SIGNATURES = Path(__file__).with_name("vllm_signatures.json")
CLASSES = {
    "SamplingParams": "vllm/sampling_params.py",
    "EngineArgs": "vllm/engine/arg_utils.py",
    "TokensPrompt": "vllm/inputs/llm.py",
    "RequestOutput": "vllm/outputs.py",
    "CompletionOutput": "vllm/outputs.py",
    "Logprob": "vllm/logprobs.py",
}
METHODS = ("__init__", "generate")


def signatures_of(wheel):
    """Name of a class or method -> the names it takes."""
    with zipfile.ZipFile(wheel) as packed:
        trees = {path: ast.parse(packed.read(path)) for path in {*CLASSES.values(), "vllm/entrypoints/llm.py"}}
    found = {"version": Path(wheel).name.split("-")[1]}
    for name, path in CLASSES.items():
        body = next(node for node in ast.walk(trees[path]) if isinstance(node, ast.ClassDef) and node.name == name).body
        fields = [node.target.id for node in body if isinstance(node, ast.AnnAssign)]
        own = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        found[name] = fields or [argument.arg for argument in own[0].args.args[1:]]
    tree = trees["vllm/entrypoints/llm.py"]
    engine = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "LLM")
    for node in engine.body:
        if isinstance(node, ast.FunctionDef) and node.name in METHODS:
            found[f"LLM.{node.name}"] = [arg.arg for arg in (*node.args.args[1:], *node.args.kwonlyargs)]
    return found


def install(monkeypatch, context=512, forgets=()):
    """Put it in the place of vLLM; gives the list of what its engines were made with. `forgets`: tokens left out."""
    known, made = json.loads(SIGNATURES.read_text()), []

    def taken(name, given):
        unknown = sorted(set(given) - set(known[name]))
        assert not unknown, f"vLLM {known['version']}: {name} takes no {unknown}"
        return types.SimpleNamespace(**given)

    class LLM:
        def __init__(self, model, **given):
            taken("LLM.__init__", {name: value for name, value in given.items() if name not in known["EngineArgs"]})
            assert given.get("logprobs_mode", "raw_logprobs") == "raw_logprobs"
            made.append(given)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=given["dtype"]).eval()
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            self._most = given.get("max_logprobs", 20)
            self.model_config = types.SimpleNamespace(max_model_len=context)

        @torch.no_grad()
        def generate(self, prompts, sampling_params, **given):
            taken("LLM.generate", {"prompts": prompts, "sampling_params": sampling_params, **given})
            wanted = sampling_params.logprob_token_ids
            assert len(wanted) == sampling_params.logprobs <= self._most
            assert (sampling_params.temperature, sampling_params.max_tokens) == (0.0, 1)
            return [self._answer(vars(prompt)["prompt_token_ids"], wanted) for prompt in prompts]

        def _answer(self, ids, wanted):
            assert 0 < len(ids) < context, "vLLM refuses a prompt that leaves no room for a token"
            shares = torch.log_softmax(self._model(torch.tensor([ids])).logits[0, -1].float(), dim=-1)
            best = int(shares.argmax())
            given = {
                token: taken("Logprob", {"logprob": float(shares[token]), "rank": None, "decoded_token": None})
                for token in [best, *wanted]
                if token not in forgets
            }
            written = {"index": 0, "text": self._tokenizer.decode([best]), "token_ids": [best], "logprobs": [given]}
            outputs = [taken("CompletionOutput", written)]
            return taken("RequestOutput", {"request_id": "0", "prompt_token_ids": ids, "outputs": outputs})

    package = types.ModuleType("vllm")
    package.LLM = LLM
    package.SamplingParams = lambda **given: taken("SamplingParams", given)
    package.TokensPrompt = lambda **given: taken("TokensPrompt", given)
    monkeypatch.setitem(sys.modules, "vllm", package)
    return made


if __name__ == "__main__":
    SIGNATURES.write_text(json.dumps(signatures_of(sys.argv[1]), indent=1) + "\n")
