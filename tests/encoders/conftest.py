import pytest
import torch
import transformers

from helpers.toy import BERT_SIZES


@pytest.fixture(scope="session")
def tokenizer(tiny_model_path):
    """The tokenizer of the tiny encoder without token types, which ModernBERT lacks."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(tiny_model_path)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


@pytest.fixture
def modernbert_path(tokenizer, tmp_path):
    """Make the folder of a random ModernBERT as one of transformers' classes leaves it."""

    def make(kind="ModernBertForMaskedLM", **changes):
        torch.manual_seed(0)
        special = dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_token_id)
        special |= dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_token_id)
        sizes = {"vocab_size": len(tokenizer), **BERT_SIZES}
        config = transformers.ModernBertConfig(pad_token_id=0, **sizes, **special, **changes)
        model = getattr(transformers, kind)(config)
        spread_norms(model)
        return save(model, tokenizer, tmp_path / "modernbert")

    return make


@pytest.fixture
def bert_path(tokenizer, tmp_path):
    """Make the folder of a random BERT; `ForMaskedLM` leaves no pooler."""

    def make(kind="BertModel", **changes):
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **BERT_SIZES, **changes)
        return save(getattr(transformers, kind)(config), tokenizer, tmp_path / "bert")

    return make


def spread_norms(model):
    """Move new layer norms away from the identity, so that a missing norm shows."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                if module.bias is not None:
                    module.bias.uniform_(-0.5, 0.5)


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
