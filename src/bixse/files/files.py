"""Read and write small files: a file is written completely or not at all, and every error has a fix."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, BinaryIO, Literal, TypeAlias

from bixse.errors import BixseError, InputError, OutputExistsError, StorageError

Use: TypeAlias = Literal[
    "model", "system", "index", "training", "graded", "pairs", "judgements", "scores", "corpus", "queries", "collection"
]  # fmt: skip
"""The use of a file: a model; also an index, a run or bm25; an index or model; pairs with and without relevance."""
PACKED = {
    b"\x1f\x8b": ("gzip", "unpack it with `gunzip < FILE > NEW`"),
    b"\xff\xfe": ("UTF-16", "convert it with `iconv -f utf-16 -t utf-8`"),
    b"\xfe\xff": ("UTF-16", "convert it with `iconv -f utf-16 -t utf-8`"),
    b"PK\x03\x04": ("a ZIP archive or a spreadsheet", "unpack it, or save the sheet as .csv"),
    b"PAR1": ("Parquet", "name it with the suffix .parquet"),
    b"BZh": ("bzip2", "unpack it with `bunzip2 < FILE > NEW`"),
    b"\xfd7zXZ": ("xz", "unpack it with `unxz < FILE > NEW`"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unpack it with `unzstd < FILE > NEW`"),
}
"""First bytes of a file -> the format that is not UTF-8 text, and the command that converts it to text."""
LOCK_FILE = ".lock"
NO_SPACE = (
    "No space left",
    "Not enough free space",
    "Disk quota exceeded",
    "PytorchStreamWriter",  # torch.save
    "unexpected pos",  # torch.save, when it closes the file
    "iostream error",  # torch.save of a small file
)
"""Words for a full disk in the errors of libraries that raise no OSError."""
OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""Error number of the operating system in the text of a safetensors error, which is no OSError."""
CACHE_VARIABLE, NO_CACHE = "BIXSE_CACHE_DIR", "none"
"""Environment variable that holds the path of the cache folder, or that nothing is cached."""
EMBEDDINGS_FOLDER, TOKENS_FOLDER = "embeddings", "tokens"
HASHES_FILE = "SHA256SUMS"
"""Name of the hash file inside a folder; `sha256sum -c SHA256SUMS` reads it too."""
FOR_PEOPLE = (".md",)
"""Suffixes of pages for people, such as a model card. They may be edited, so they have no hash."""
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


class RepeatedKeyError(ValueError):
    """The error for an object that has a key twice."""

    def __init__(self, key: str, line: int | None = None) -> None:
        self.key = key
        super().__init__(f"the key {key!r} is there twice" + ("" if line is None else f", again in line {line}"))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise RepeatedKeyError for an object with a key twice."""
    return _DECODER.decode(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)  # json alone would silently keep the last of two equal keys
    if len(unique) < len(pairs):
        raise RepeatedKeyError(next(key for position, (key, _) in enumerate(pairs) if key in dict(pairs[:position])))
    return unique


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def not_text(start: bytes) -> str | None:
    """Return an error message if the first bytes are those of a known format that is not text, else None."""
    for magic, (name, fix) in PACKED.items():
        if start.startswith(magic):
            return f"got {name}; expected UTF-8 text; fix: {fix}"
    if b"\0" in start[:6]:
        return "got bytes of 0; expected UTF-8 text; fix: if it is UTF-16, convert it with `iconv -f utf-16le -t utf-8`"
    return None


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file. A byte order mark is dropped; line ends become newlines."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: got {reason!r}; expected a readable file; fix: check the path") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte, line = error.object[error.start], error.object[: error.start].count(b"\n") + 1
        message = (
            f"got byte {byte:#04x} in line {line}; expected UTF-8 text; "
            "fix: convert it, for example with `iconv -f latin1 -t utf-8`"
        )
        raise InputError(f"{path}: {not_text(data) or message}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_unicode(text: str) -> bool:
    """Return True if UTF-8 can encode the text. It cannot encode half of a surrogate pair, which JSON can spell."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a failed write below `path` into a StorageError that says how to fix it.

    Errors of torch (full disk) and of safetensors (every system error) are recognised too. They are no OSError.
    """
    try:
        yield
    except BixseError:
        raise
    except Exception as error:
        quoted = OS_ERROR.search(str(error))
        number = error.errno if isinstance(error, OSError) else int(quoted[1]) if quoted else None
        full = number in (errno.ENOSPC, errno.EDQUOT) or any(sign in str(error) for sign in NO_SPACE)
        if not isinstance(error, OSError) and number is None and not full:
            raise
        reason, name = getattr(error, "strerror", None) or str(error), getattr(error, "filename", None)
        where = "" if name is None or Path(str(name)) == path else f" ({name})"
        other = "TMPDIR" if path == Path(gettempdir()) else "--out folder"
        closed = number in (errno.EACCES, errno.EPERM, errno.EROFS)
        fix = "free disk space" if full else "make the folder writable" if closed else "check that the path is right"
        raise StorageError(
            f"{path}: got {reason}{where}; expected to write there; fix: {fix} or choose another {other}"
        ) from error


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears complete or not at all: a temporary file next to it is renamed at the end.

    An existing file keeps its mode, and a link stays a link. A new file gets the mode of the umask. The content is on
    the disk before the name is.
    """
    with storage_errors(path):
        target = Path(os.path.realpath(path))  # the rename would replace a link by a plain file
        old = target.stat().st_mode if target.exists() else None
        if old is not None and not stat.S_ISREG(old):  # for root, the rename would replace even a device
            raise StorageError(
                f"{path}: got {'a folder' if stat.S_ISDIR(old) else 'a device'}; expected a file or a free name; "
                "fix: choose another --out folder"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with part.open("xb") as file:
                if old is not None:
                    part.chmod(stat.S_IMODE(old))
                yield file
                file.flush()
                os.fsync(file.fileno())  # without it, a crash after the rename could leave an empty file
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that appears complete or not at all: a temporary one next to it is renamed at the end.

    `folder` must be new or empty.
    """
    folder = folder.resolve()
    with storage_errors(folder):
        part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        part.mkdir(parents=True)
        try:
            yield part
            part.replace(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file completely or not at all, as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and sync it. After a StorageError no part of the line is in the file."""
    rest = memoryview(f"{line}\n".encode())
    with storage_errors(path), path.open("ab", buffering=0) as file:  # a buffer would be written again by close()
        end = file.tell()
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, end)
            raise


@contextmanager
def alone_in(
    out: Path, lock: str = LOCK_FILE, wait: bool = False, fix: str = "wait for it, or choose another --out"
) -> Iterator[None]:
    """Make a folder and hold a lock in it; the operating system releases the lock of a killed process.

    If `wait` is True, wait for the lock of another process; else raise an error that ends with `fix`.
    """
    from filelock import FileLock, Timeout

    held = FileLock(out / lock, timeout=-1 if wait else 0)
    with storage_errors(out):
        (out / lock).parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire()
        except Timeout as error:
            raise OutputExistsError(
                f"{out}: got a folder that another process writes to; expected a free folder; fix: {fix}"
            ) from error
    try:
        yield
    finally:
        held.release()


@contextmanager
def usual_modes(folder: Path) -> Iterator[None]:
    """Make a folder; afterwards give the weights below it their earlier mode, or that of the umask.

    safetensors writes a temporary file that nobody else may read, and renames it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mode for path in folder.rglob("*.safetensors")}
    yield
    probe = folder / f".{secrets.token_hex(4)}"
    probe.touch(exist_ok=False)  # os.umask returns the mask only by setting it, for all threads
    usual = probe.stat().st_mode
    probe.unlink()
    for path in folder.rglob("*.safetensors"):
        path.chmod(stat.S_IMODE(before.get(path, usual)))


def move_into(part: Path, target: Path) -> None:
    """Rename a finished file to its final name, once its content is on the disk."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)


def json_hash(content: object) -> str:
    """Return the SHA-256 of plain data as JSON with sorted keys, in hexadecimal."""

    def plain(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else dict(value)  # NumPy's numbers, other mappings

    return hashlib.sha256(json.dumps(content, sort_keys=True, default=plain).encode()).hexdigest()


def file_hash(path: Path, step: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal; `step` is called with the number of bytes per read.

    The hash of a folder covers the names and hashes of its files, without hidden files.
    """
    digest = hashlib.sha256()
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith("."):
                digest.update(f"{entry.name} {file_hash(entry, step)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            if step is not None:
                step(len(block))
    return digest.hexdigest()


def hash_files(files: Mapping[str, Path], step: Callable[[int], None] | None = None) -> dict[str, str]:
    """Return name -> SHA-256 of the file, see `file_hash`."""
    try:
        return {name: file_hash(path, step) for name, path in files.items()}
    except OSError as error:
        raise InputError(
            f"{error.filename}: got {error.strerror or error}; expected a file; fix: check the path"
        ) from error


def write_hashes(folder: Path) -> None:
    """Write the hashes of all files below a folder, as the last step of writing the folder."""
    with storage_errors(folder):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        hashes = {
            path.relative_to(folder).as_posix(): file_hash(path)
            for path in files
            if path.suffix not in FOR_PEOPLE and path != folder / HASHES_FILE
        }
    _save(folder, hashes)


def damage(folder: Path) -> str | None:
    """Return the first damage of a folder with hashes, in words, or None.

    Files that were added later are not checked. A folder without hashes has no damage.
    """
    try:
        hashes = _load(folder)
        for name, expected in (hashes or {}).items():
            if not (folder / name).is_file():
                return f"no {name}"
            if file_hash(folder / name) != expected:
                return f"{name} with other bytes than were written"
    except (OSError, ValueError) as error:
        return f"a file that cannot be read ({error})"
    return None


def write_with_hash(path: Path, content: str, folder: Path | None = None) -> None:
    """Replace a file atomically, and its hash if `folder` (default: the parent) has hashes.

    If the process stops between the two writes, the file has no hash, and the folder can still be read.
    """
    folder = folder or path.parent
    name = path.relative_to(folder).as_posix()
    try:
        hashes = _load(folder)
    except (OSError, ValueError):
        hashes = None  # damaged: the next reader of the folder reports it
    if hashes is None:
        write_atomically(path, content)
        return
    if hashes.pop(name, None) is not None:
        _save(folder, hashes)
    write_atomically(path, content)
    _save(folder, {**hashes, name: file_hash(path)})


def drop_hashes(folder: Path) -> None:
    """Delete the hashes of a folder, before its files are replaced."""
    with storage_errors(folder):
        (folder / HASHES_FILE).unlink(missing_ok=True)


def _save(folder: Path, hashes: Mapping[str, str]) -> None:
    write_atomically(folder / HASHES_FILE, "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)))


def _load(folder: Path) -> dict[str, str] | None:
    if not (folder / HASHES_FILE).is_file():
        return None
    hashes = {}
    for line in (folder / HASHES_FILE).read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        match = _LINE.fullmatch(line)
        path = PurePosixPath(match[2] if match else "/")
        if match is None or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{HASHES_FILE}: no hash and path inside the folder in a line")
        hashes[match[2]] = match[1]
    return hashes


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C: duckdb turns one that comes during a query into a plain RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is RuntimeError and str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def cache_folder(choice: str | Path | None = None) -> Path | None:
    """Return the cache folder, which need not exist; None if nothing is to be cached.

    `choice` is a folder or "none". The default is BIXSE_CACHE_DIR, then the cache folder of the user.
    """
    folder = str(choice) if choice is not None else os.environ.get(CACHE_VARIABLE, "")
    if folder == NO_CACHE:
        return None
    if folder:
        return Path(folder).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("bixse", appauthor=False)


@contextmanager
def work_folder(out: str | Path | None, name: str) -> Iterator[Path]:
    """Yield the folder of a run. Without `out` it is temporary, and so is the cache: work on objects leaves no file."""
    if out is not None:
        yield Path(out)
        return
    before = os.environ.get(CACHE_VARIABLE)
    with TemporaryDirectory(prefix=f"bixse-{name}-") as temporary:
        os.environ[CACHE_VARIABLE] = str(Path(temporary, "cache"))
        try:
            yield Path(temporary, "run")
        finally:
            del os.environ[CACHE_VARIABLE]
            os.environ.update({} if before is None else {CACHE_VARIABLE: before})
