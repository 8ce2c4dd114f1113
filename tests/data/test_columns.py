from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.data import columns
from bixse.data.columns import numbered

SMALL = st.integers(-5, 5)
LARGE = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("at_once", [1, 3, 2**20])
@settings(deadline=None)
@given(keys=st.lists(SMALL | LARGE, max_size=40))
def test_numbers_go_up_in_order_of_first_appearance_however_many_keys_are_told_apart_at_once(at_once, keys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "KEYS_AT_ONCE", at_once)
        found = numbered(np.array(keys, dtype=np.int64)).tolist()
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    assert found == [places[key] for key in keys]
