"""Screenshots of `bixse ui` for the documentation, from a folder that `bixse quickstart` made.

python benchmarks/ui_screenshots.py --quickstart runs/quickstart --out docs/ui

Needs playwright and a Chromium (`--chromium PATH`). The folder is read; labels go to a temporary one. `--graded` is an
output folder of `bixse grade` with people's labels: Label and Disagreements are taken too.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from bixse.data.collection import load_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.transforms import with_random_negatives
from bixse.relevance import GradeScale

DESKTOP = {"width": 1280, "height": 900}
READY = ".message, .desk, .counts, .versus, .matrix-plot, .changes, .panels, figure"
SECONDS = 300
"""Models are loaded and a corpus is encoded."""


def main() -> None:
    """Start a server and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quickstart", type=Path, required=True)
    parser.add_argument("--graded", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    collection = load_collection(given.quickstart / "collection", [given.split])
    query = sorted(collection.qrels[given.split])[12]
    shots = (
        ("compare", f"/compare?query={query}&p=0.3", DESKTOP, "light"),
        ("training", "/training", DESKTOP, "dark"),
    )
    with tempfile.TemporaryDirectory() as scratch:
        held_out = Path(scratch) / "held-out.parquet"
        pairs = GradedPairs.from_collection(collection, given.split, GradeScale(0, 3))
        save_graded_pairs(with_random_negatives(pairs, collection, 5, 0), held_out)
        run = Path(scratch) / "runs" / "mine"
        run.mkdir(parents=True)
        for name in ("run.json", "log.jsonl", "model"):
            (run / name).symlink_to((given.quickstart / "bixse" / name).resolve())
        (Path(scratch) / "my-collection").symlink_to((given.quickstart / "collection").resolve())
        words = ["--split", given.split, "--held-out", held_out.name, "--collection", "my-collection", "--systems",
                 "demo", "runs/mine/model"]  # fmt: skip
        take("runs/mine", words, shots, Path(scratch), given.out, given.chromium)
        if given.graded is not None:
            shutil.copytree(given.graded, Path(scratch) / "runs" / "grade")
            shots = tuple((name, f"/{name}", DESKTOP, "light") for name in ("label", "disagreements"))
            take("runs/grade", ["--planned", "120"], shots, Path(scratch), given.out, given.chromium)


def take(run: str, words: list[str], shots: tuple, scratch: Path, out: Path, chromium: str | None) -> None:
    """Start a server and write NAME.webp of each page."""
    command = [sys.executable, "-m", "bixse", "ui", run, "--port", "0", *words]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=scratch)
    try:
        address = re.search(r"http://\S+", server.stderr.readline())[0]
        _take(address, shots, out, chromium)
    finally:
        server.kill()


def _take(address: str, shots: tuple, out: Path, chromium: str | None) -> None:
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        first = browser.new_context()
        page = first.new_page()
        page.goto(f"{address}&person=ann")
        page.wait_for_url(lambda url: "/enter" not in url)
        state = first.storage_state()
        for name, path, viewport, scheme in shots:
            context = browser.new_context(storage_state=state, viewport=viewport, color_scheme=scheme)
            page = context.new_page()
            page.goto(address.partition("/enter")[0] + path)
            page.wait_for_selector(READY, timeout=1000 * SECONDS)
            page.wait_for_load_state("networkidle") if name != "training" else page.wait_for_timeout(3000)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").save(out / f"{name}.webp", quality=80, method=6)
            print(out / f"{name}.webp", (out / f"{name}.webp").stat().st_size)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
