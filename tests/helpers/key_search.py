"""Looks for a key in what was written, by undoing every encoding; knows nothing of how it is blotted out."""

import base64
import html
import re
from urllib.parse import unquote


def holds_key(text, key):
    """Whether a text holds a key, plain or in any encoding that can be undone."""
    wanted, seen, left = key.lower(), set(), [text]
    while left:
        found = left.pop()
        if found in seen or len(seen) > 1000:
            continue
        seen.add(found)
        if wanted in found.lower():
            return True
        left += [unquote(found), html.unescape(found)]
        left.append(re.sub(r"\\+(?:u00|x)([0-9a-fA-F]{2})", lambda hit: chr(int(hit[1], 16)), found))
        left += [bytes.fromhex(run).decode("latin-1") for run in re.findall(r"(?:[0-9a-fA-F]{2}){6,}", found)]
        joined = re.sub(r"\s|\\+[rn]", "", found)
        for run in re.findall(r"[\w+/-]{8,}", joined):
            letters = run.replace("-", "+").replace("_", "/")
            if letters.isascii():
                left += [_decoded(letters[start:]) for start in range(4)]
    return False


def _decoded(letters):
    whole = letters[: len(letters) - (len(letters) % 4 == 1)]
    return base64.b64decode(whole + "=" * (-len(whole) % 4)).decode("latin-1")
