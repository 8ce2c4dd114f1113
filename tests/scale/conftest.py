from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
VERBS = ("copy", "move", "delete", "open", "read", "write", "list", "find")
NOUNS = ("file", "folder", "tree", "disk", "path", "name", "text", "byte", "line", "word")


@pytest.fixture
def collection(tmp_path):
    """600 documents, of which 512 fill two parts and 88 a third, and a query for each verb and noun."""
    texts = [f"{verb} a {noun} of {number}" for number in range(8) for verb in VERBS for noun in NOUNS][:600]
    queries = [f"how do i {verb} the {noun}" for verb in VERBS for noun in NOUNS]
    folder = tmp_path / "collection"
    folder.mkdir()
    for name, letter, found in (("corpus", "d", texts), ("queries", "q", queries)):
        rows = [
            json.dumps({"_id": f"{letter}{number}", "title": "", "text": text}) for number, text in enumerate(found)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="package")
def cluster():
    """Two nodes, with two cores each by their own account."""
    ray = pytest.importorskip("ray", reason="needs bixse[ray]")
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([before] if before else [])])
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    found.add_node(num_cpus=2)
    yield found
    ray.shutdown()
    found.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before
