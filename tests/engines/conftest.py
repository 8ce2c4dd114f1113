from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


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
