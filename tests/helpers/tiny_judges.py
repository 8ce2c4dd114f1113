"""Tiny random language models that judges are tested on: real architectures, real tokenizers, milliseconds to run."""

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bixse.judging.judge import Question

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.25}  # fmt: skip
STRETCH = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
           "original_max_position_embeddings": 48}  # fmt: skip
ARCHITECTURES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-sliding": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    "mistral": ("MistralConfig", {"sliding_window": 12}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "sliding_window": 12, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": 12}),
    "neox": ("GPTNeoXConfig", {}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.25}),
    "bloom": ("BloomConfig", {"n_layer": 3, "n_head": 4}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "phi3": ("Phi3Config", {"rope_parameters": STRETCH, "original_max_position_embeddings": 48}),
    "granite": ("GraniteConfig", {"logits_scaling": 0.5, "embedding_multiplier": 2.0}),
    "mamba": ("MambaConfig", {"state_size": 4}),
    "bidirectional": ("LlamaConfig", {"is_causal": False}),
}


def tiny_tokenizer(template=TEMPLATE, spaced=""):
    """Bytes as tokens; of the characters in `spaced` also one with a space before it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, *(f"Ġ{letter}" for letter in spaced)])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", letter) for letter in spaced]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    inner.add_tokens(["<think>", "</think>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(kind, seed=0, vocabulary=300, **changes):
    """A random causal language model whose answers depend on what it reads."""
    name, options = ARCHITECTURES[kind]
    torch.manual_seed(seed)
    tokens = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, name)(**{**SIZES, **tokens, **options, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.std() < 0.1:
                parameter.normal_(0, 0.25)  # an architecture with an initialisation of its own
    return model.eval()


def save_judge(folder, kind="llama", tokenizer=None, model=None, **changes):
    """A folder as `save_pretrained` leaves it."""
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    model = tiny_model(kind, vocabulary=len(tokenizer), **changes) if model is None else model
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def questions_of(rubric, texts):
    return [
        Question(f"q{query}", f"d{number}", query, document, variant.name, variant.messages(query, document))
        for number, (query, document) in enumerate(texts)
        for variant in rubric.variants
    ]


def some_texts(queries=3, documents=4):
    return [
        (f"how to copy {'a tree of ' * q}files", f"shutil {d} " + "copies what is there. " * (d * 3 % 5) + str(q * d))
        for q in range(queries)
        for d in range(documents)
    ]


def small_rubric():
    from bixse.judging.rubrics import Rubric

    order = {"name": "query-document", "system": "Rate from 0 to 2.", "user": "Query: {query}\nPassage: {document}"}
    return Rubric.model_validate({"name": "small", "labels": ["0", "1", "2"], "orders": [order]})
