from __future__ import annotations

import pytest


@pytest.fixture
def router_model(tiny_model_path):
    """Two encoders that differ, one for queries and one for documents, behind one router."""
    import torch
    from sentence_transformers.base.modules import Router

    from bixse.encoders.relevance_model import RelevanceModel

    query, document = (list(RelevanceModel(str(tiny_model_path), device="cpu").children()) for _ in range(2))
    with torch.no_grad():
        for parameter in query[0].parameters():
            parameter.mul_(1.5)
    router = Router.for_query_document(query, document)
    return RelevanceModel(modules=[router], device="cpu").eval()
