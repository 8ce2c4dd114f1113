"""Label in `bixse ui` as a person would, in Chromium and by its keys, with grades that a file holds back.

    python docs/reference/ui/played_labels.py ADDRESS --qrels runs/quickstart/collection/qrels/dev.tsv --labels 60

ADDRESS is what `bixse ui` printed. A pair that the file does not judge gets "cannot tell".
"""

import argparse
import csv
import os
import shutil
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

OPEN = "[data-open] input[name=query_id]", "[data-open] input[name=document_id]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--qrels", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = parser.parse_args()
    with given.qrels.open(encoding="utf-8", newline="") as file:
        grades = {(row["query-id"], row["corpus-id"]): row["score"] for row in csv.DictReader(file, delimiter="\t")}
    origin, keys, start = given.address.partition("/enter")[0], [], time.monotonic()
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        page = playwright.chromium.launch(executable_path=given.chromium, args=options).new_page()
        page.goto(f"{given.address}&person=ann")
        page.wait_for_url(lambda url: "/enter" not in url)
        page.goto(f"{origin}/label")
        while sum(key != "c" for key in keys) < given.labels and page.locator(OPEN[0]).count():
            query, document = (page.locator(field).first.input_value() for field in OPEN)
            keys.append(grades.get((query, document), "c"))
            with page.expect_navigation():
                page.keyboard.press(keys[-1])
        print(page.locator(".notes").inner_text())
    counts = {key: keys.count(key) for key in sorted(set(keys))}
    print(f"{len(keys)} answers in {time.monotonic() - start:.0f} s: {counts}")


if __name__ == "__main__":
    main()
