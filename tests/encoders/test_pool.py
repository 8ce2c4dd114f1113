"""Encoding in several real processes: refusals, the embeddings of one process, and no process left behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

from bixse.encoders import encode as encode_module
from bixse.encoders.encode import POOLS, check_devices, encode_on, encode_texts, encoding_device, warn_of_too_many
from bixse.errors import BixseError, InputError

WORDS = "copy move delete open read write list file folder tree".split()  # noqa: SIM905
TEXTS = [" ".join(WORDS[(n + step) % 10] for step in range(n % 25)) + f" {n % 7}" for n in range(150)]


@pytest.fixture(scope="module")
def spread(tiny_model_path):
    """A model whose texts two processes encode; they start once for all tests."""
    from bixse.encoders.relevance_model import RelevanceModel

    model = RelevanceModel(str(tiny_model_path), device="cpu").eval()
    with encode_on(model, ["cpu", "cpu"]):
        yield model
    assert model not in POOLS


@pytest.mark.parametrize("device", ["gpu", "cuda:97", ""])
def test_a_device_that_is_not_there(tiny_model, device):
    with pytest.raises(InputError, match=r"device: got .*expected one of cpu"), encode_on(tiny_model, ["cpu", device]):
        pass
    with pytest.raises(InputError, match="device: got"):
        check_devices([device])
    assert tiny_model not in POOLS


@pytest.mark.parametrize(
    ("cores", "threads", "processes", "said"),
    [
        (4, "", 4, None),
        (4, "2", 2, None),
        (8, "x", 4, None),
        (2, "2", 2, "2 processes of 2 threads on 2 cores"),
        (4, "", 6, "6 processes of 1 thread on 4 cores"),
        (8, "8", 4, "4 processes of 8 threads on 8 cores"),
    ],
)
def test_too_many_processes_are_said(monkeypatch, cores, threads, processes, said):
    monkeypatch.setattr(encode_module, "cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    found = warn_of_too_many(["cpu"] * processes)
    assert (found == []) if said is None else (said in found[0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_processes_give_the_embeddings_of_one(spread, tiny_model, precision, bf16_distance):
    """In bf16 up to rounding: texts are padded in other company. Two layers have eight products each."""
    done = []
    texts = [*TEXTS, *TEXTS[:3], ""]
    found = encode_texts(spread, texts, "document", precision, progress=done.append)
    apart = np.linalg.norm(found - encode_texts(tiny_model, texts, "document", precision), axis=1).max()
    exact = np.linalg.norm(found - encode_texts(tiny_model, texts, "document", "float32"), axis=1).max()
    assert apart < (1e-6 if precision == "float32" else bf16_distance(2 * 8, computations=2))
    assert (exact > 1e-5) == (precision == "bfloat16"), "the processes compute in what they are told"
    assert sum(done) == len(texts)
    assert POOLS[spread]._executor is not None, "the processes were used"
    assert encoding_device(spread).type == "cpu"


@pytest.mark.precision("float32")
def test_a_prompt_that_was_changed_later_is_used(spread, tiny_model):
    before = spread.prompts
    try:
        for model in (spread, tiny_model):
            model.prompts = {"document": "find the number of ", "query": ""}
        found = encode_texts(spread, TEXTS, "document")
        np.testing.assert_allclose(found, encode_texts(tiny_model, TEXTS, "document"), atol=1e-6)
    finally:
        spread.prompts = before


def test_an_error_in_a_process_is_raised_here(spread):
    with pytest.raises(Exception, match="int"):
        encode_texts(spread, [*TEXTS, 5], "document")
    assert encode_texts(spread, TEXTS, "document").shape == (len(TEXTS), 32)


def test_no_process_is_started_without_need(tiny_model):
    with encode_on(tiny_model, ["cpu", "cpu"]):
        encode_texts(tiny_model, TEXTS[:3], "query")
        assert POOLS[tiny_model]._executor is None
    for devices in (["cpu"], None):
        with encode_on(tiny_model, devices):
            assert tiny_model not in POOLS


@pytest.mark.slow
def test_a_killed_process_is_said_and_later_ones_are_started(spread):
    encode_texts(spread, TEXTS, "document")
    for process in psutil.Process().children():
        if "spawn_main" in " ".join(process.cmdline()):
            process.kill()
    with pytest.raises(BixseError, match="fewer processes"):
        encode_texts(spread, TEXTS, "document")
    assert encode_texts(spread, TEXTS, "document").shape == (len(TEXTS), 32)


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tiny_model_path, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            from bixse.encoders.encode import encode_on, encode_texts
            from bixse.encoders.relevance_model import RelevanceModel

            if __name__ == "__main__":
                model = RelevanceModel({str(tiny_model_path)!r}, device="cpu")
                with encode_on(model, ["cpu", "cpu"]):
                    encode_texts(model, [f"copy {{n}}" for n in range(200)], "document")
                    print("ready", flush=True)
                    time.sleep(60)
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children = psutil.Process(parent.pid).children(recursive=True)
    assert len(children) >= 2
    parent.kill()
    parent.wait()
    ended = time.monotonic() + 20
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
        assert time.monotonic() < ended, "a process is left"
        time.sleep(0.2)
