"""A process of a Ray cluster that does shards, and what is checked of its machine before it begins."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.files.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def worker_class() -> type:
    """The class of the actors: made in a function, so that Ray sends its code to machines without bixse too."""

    class ShardWorker:
        def begin(self, version: str, path: Any, folder: str, sent: list[Any]) -> Any:
            """Say what this machine has; set up where that is right, in the folder of the one that asks."""
            import os
            import socket
            from contextlib import suppress
            from importlib import metadata

            try:
                import bixse.scale.engines.job  # noqa: F401

                found = metadata.version("bixse")
            except (ImportError, metadata.PackageNotFoundError):
                return socket.gethostname(), None, None
            try:
                content = path.read_text() if path is not None else ""
            except OSError:
                content = None
            if found == version and content is not None:
                import ray

                with suppress(OSError):
                    os.chdir(folder)

                from bixse.errors import BixseError

                self.job = ray.get(sent[0])
                try:
                    self.kept = self.job.setup()
                except BixseError as error:
                    return error
            return socket.gethostname(), found, content

        def work(self, shard: Any) -> Any:
            from bixse.errors import BixseError
            from bixse.scale.engines.job import attempt

            try:
                return attempt(self.job, shard, self.kept)
            except BixseError as error:
                return error

    return ShardWorker


@dataclass(frozen=True)
class Check:
    """What a machine must have: this version of bixse, and the file that was written beside the outputs."""

    version: str
    path: Path | None
    content: str

    @classmethod
    @contextmanager
    def beside(cls, output: Path | None) -> Iterator[Check]:
        """Inside the block the file is there; of a job without outputs none is needed."""
        content = secrets.token_hex(16) if output is not None else ""
        path = output.absolute().with_name(f".shared-{content}") if output is not None else None
        if path is not None:
            write_atomically(path, content)
        try:
            yield cls(metadata.version("bixse"), path, content)
        finally:
            if path is not None:
                path.unlink(missing_ok=True)

    def hold(self, machine: tuple[str, str | None, str | None]) -> None:
        """Refuse, by an InputError, a machine (its name, version of bixse, content of the file) that is not so."""
        name, version, content = machine
        if version != self.version:
            raise InputError(
                f"{name}: got a machine of the cluster with {f'bixse {version}' if version else 'no bixse'}; expected "
                f"bixse {self.version}, as here; fix: install it there, in the environment of its `ray start`"
            )
        if content != self.content:
            raise InputError(
                f"{name}: got no file {self.path}, which was written here; expected a folder that all machines share; "
                "fix: choose an output folder that is mounted on all of them under the same path"
            )
