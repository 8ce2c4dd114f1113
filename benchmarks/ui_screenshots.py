"""Screenshots of `bixse ui` for the documentation, from a folder that `bixse quickstart` made.

    python benchmarks/ui_screenshots.py --quickstart runs/quickstart --out docs/ui

Needs playwright and a Chromium. The folder is read; labels go to a temporary one. `--graded` is an output folder of
`bixse grade` with people's labels: Label and Disagreements are taken too.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from bixse.data.collection import load_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.transforms import with_random_negatives
from bixse.relevance import GradeScale
from measuring import Option, options

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.ui_browser import running, started_chromium

if TYPE_CHECKING:
    from collections.abc import Sequence

READY = ".message, .desk, .counts, .versus, .matrix-plot, .changes, .panels, figure"
SECONDS = 300
"""Seconds within which models are loaded and a corpus is encoded."""


def main() -> None:
    """Start a server and take the pictures."""
    given = options(
        __doc__,
        quickstart=Option(Path, "output folder of `bixse quickstart`"),
        graded=Option(Path, "output folder of `bixse grade`, with labels"),
        out=Option(Path("docs/ui"), "folder of the pictures"),
        split="dev",
    )
    if given.quickstart is None:
        raise SystemExit("--quickstart: got nothing; expected the folder of a quick start")
    out, quickstart = given.out.resolve(), given.quickstart.resolve()
    out.mkdir(parents=True, exist_ok=True)
    collection = load_collection(quickstart / "collection", [given.split])
    query = sorted(collection.qrels[given.split])[12]
    graded = given.graded and given.graded.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # so that the pages show short paths
        pairs = GradedPairs.from_collection(collection, given.split, GradeScale(0, 3))
        save_graded_pairs(with_random_negatives(pairs, collection, 5, 0), Path("held-out.parquet"))
        run = Path("runs/mine")
        run.mkdir(parents=True)
        for name in ("run.json", "log.jsonl", "model"):
            (run / name).symlink_to(quickstart / "bixse" / name)
        Path("my-collection").symlink_to(quickstart / "collection")
        words = ["--split", given.split, "--held-out", "held-out.parquet", "--collection", "my-collection", "--systems",
                 "demo", "runs/mine/model"]  # fmt: skip
        take(run, words, [("compare", f"compare?query={query}&p=0.3", "light"), ("training", "training", "dark")], out)
        if graded is not None:
            shutil.copytree(graded, "runs/grade")
            shots = [(name, name, "light") for name in ("label", "disagreements")]
            take(Path("runs/grade"), ["--planned", "120"], shots, out)


def take(run: Path, words: Sequence[str], shots: Sequence[tuple[str, str, str]], out: Path) -> None:
    """Start a server and write NAME.webp of each page."""
    with running(run, *words) as server, started_chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{server.address}&person=ann")
        page.wait_for_url(lambda url: "/enter" not in url)
        for name, path, scheme in shots:
            page.emulate_media(color_scheme=scheme)
            page.goto(f"{server.origin}/{path}")
            page.wait_for_selector(READY, timeout=1000 * SECONDS)
            page.wait_for_load_state("networkidle") if name != "training" else page.wait_for_timeout(3000)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").save(out / f"{name}.webp", quality=80, method=6)
            print(out / f"{name}.webp", (out / f"{name}.webp").stat().st_size)


if __name__ == "__main__":
    main()
