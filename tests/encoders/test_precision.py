import numpy as np
import pytest
import torch

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading import precision as module
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import PRECISION_VARIABLE, precision_setting, resolve_precision, use_precision
from bixse.encoders.weights import upcast_trainable_to_float32
from bixse.errors import InputError

TEXTS = ["copy a file", "sort the list of words by time and date", "open", "wait for the process in a thread"]
LAYERS, PRODUCTS = 2, 8
"""Of the tiny encoders: layers, and matrix products of one (query, key, value, scores, mix, output, two of the MLP)."""


@pytest.mark.parametrize("value", ["bf16", "Float32"])
def test_an_unknown_precision_is_refused(monkeypatch, value):
    for resolve in (lambda: resolve_precision(value), lambda: use_precision(value).__enter__()):
        with pytest.raises(InputError, match=f"precision: got '{value}'"):
            resolve()
    monkeypatch.setenv(PRECISION_VARIABLE, value)
    for resolve in (precision_setting, resolve_precision, lambda: use_precision(None).__enter__()):
        with pytest.raises(InputError, match=f"{PRECISION_VARIABLE}: got '{value}'"):
            resolve()
    assert resolve_precision("float32") == "float32", "an explicit setting does not read the variable"


@pytest.mark.parametrize("variable", [None, "", "auto"])
@pytest.mark.parametrize(("fast", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_without_a_setting_the_device_decides(monkeypatch, variable, fast, expected):
    monkeypatch.delenv(PRECISION_VARIABLE)
    if variable is not None:
        monkeypatch.setenv(PRECISION_VARIABLE, variable)
    monkeypatch.setattr(module, "bf16_is_fast", lambda device: fast)
    assert resolve_precision(device="cpu") == resolve_precision("auto", "cpu") == expected


@pytest.mark.parametrize(("value", "other"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_setting_precedes_the_variable(monkeypatch, value, other):
    monkeypatch.setenv(PRECISION_VARIABLE, value)
    assert resolve_precision() == resolve_precision("auto") == value
    assert resolve_precision(other) == other
    with use_precision(other), use_precision("auto"):  # auto changes nothing
        assert resolve_precision() == other
    assert resolve_precision() == value


class TestBfloat16:
    def test_embeddings_differ_by_rounding_alone(self, tiny_model, bf16_distance):
        exact, rounded = (encode_texts(tiny_model, TEXTS, "document", precision=p) for p in ("float32", "bfloat16"))
        apart = np.linalg.norm(exact - rounded, axis=1)
        assert rounded.dtype == np.float32
        assert 1e-5 < apart.max() < bf16_distance(LAYERS * PRODUCTS)

    @pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
    def test_weights_that_are_stored_in_half_are_float32_where_that_is_computed_in(self, tiny_model, tmp_path, stored):
        tiny_model.to(stored).save_pretrained(str(tmp_path))
        for wanted, dtype in (("float32", torch.float32), ("bfloat16", stored)):
            with use_precision(wanted):
                model = build_encoder(tmp_path, device="cpu")
                assert {parameter.dtype for parameter in model.parameters()} == {dtype}

    def test_frozen_weights_stay_as_they_are(self, tiny_model):
        tiny_model.bfloat16()
        frozen, *trained = tiny_model.parameters()
        frozen.requires_grad = False
        upcast_trainable_to_float32(tiny_model)
        assert frozen.dtype == torch.bfloat16
        assert {parameter.dtype for parameter in trained} == {torch.float32}
