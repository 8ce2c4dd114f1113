"""The engine `ray`: shards over the machines of a Ray cluster, one at a time per process (actor)."""

from __future__ import annotations

import logging
import re
import secrets
import signal
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.errors import BixseError, InputError
from bixse.files.files import write_atomically
from bixse.scale.engines.job import Ended, Engine, Job, check_pickles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.scale.engines.job import Result, Shard


PATIENCE = 1800.0
"""Seconds for a process to begin, its model loaded, while no shard runs."""
SECONDS_TO_ANSWER = 10.0
"""Seconds for the machine of an address to answer."""
PLACE = re.compile(r"(?:.*://)?(?P<host>.+):(?P<port>\d+)$")
START_TRIES = 3
"""Number of processes that may die while they begin."""


class RayEngine(Engine):
    """An engine over a Ray cluster; it uses an existing connection. `processes` None means as many as fit."""

    def __init__(
        self, address: str = "auto", processes: int | None = None, num_cpus: int = 1, num_gpus: int = 0
    ) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError as error:
            raise InputError(
                "engine ray: got no Ray; expected it; fix: pip install 'bixse[ray]' on every machine"
            ) from error
        self.address, self.processes = address, processes
        self.num_cpus, self.num_gpus = num_cpus, num_gpus

    def attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], kept: Any, alone: bool
    ) -> Iterator[Ended[Shard, Result]]:
        for first in shards:  # without a shard no cluster is needed
            check_pickles(job)
            with self._connected(), Check.beside(job.output(first)) as check:
                head = [first, *islice(shards, self._room(alone) - 1)]
                yield from self._spread(job, chain(head, shards), len(head), check)

    def _spread(
        self, job: Job[Shard, Result], shards: Iterator[Shard], number: int, check: Check
    ) -> Iterator[Ended[Shard, Result]]:
        ray = self._ray
        make = ray.remote(num_cpus=self.num_cpus, num_gpus=self.num_gpus, scheduling_strategy="SPREAD")(worker_class())
        sent, new, tries, at_work = ray.put(job), object(), START_TRIES, 0
        running: dict[Any, tuple[Any, Any]] = {}

        def start() -> None:
            actor = make.remote()
            running[actor.begin.remote(check.version, check.path, str(Path.cwd()), [sent])] = actor, new

        try:
            for _ in range(number):
                start()
            while running:
                done, _ = ray.wait([*running], timeout=None if at_work else PATIENCE)
                if not done:
                    raise _no_start(f"none that began within {PATIENCE:g} s")
                actor, shard = running.pop(done[0])
                at_work -= shard is not new
                try:
                    found = ray.get(done[0])
                except ray.exceptions.RayError as error:
                    said = " ".join(str(error).split())[:300]
                    if shard is not new:
                        yield Ended(shard, error=f"its process died: {said}")
                    elif (tries := tries - 1) < 1 and not running:
                        raise _no_start(f"{START_TRIES} that died ({said})") from error
                    if not running:
                        rest = list(islice(shards, 1))
                        if not rest and shard is not new:
                            return
                        shards = chain(rest, shards)
                        start()
                    continue
                if isinstance(found, BixseError):
                    raise found
                if shard is new:
                    check.hold(found)
                for following in islice(shards, 1):
                    running[actor.work.remote(following)] = actor, following
                    at_work += 1
                    break
                else:
                    ray.kill(actor)  # frees its resources for an actor that waits for them
                if shard is not new:
                    yield found
                if not at_work:
                    return
        finally:
            for actor, _ in running.values():
                ray.kill(actor)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        ray = self._ray
        if ray.is_initialized():
            yield
            return
        at_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            if place := PLACE.search(self.address):  # Ray itself would try for minutes
                socket.create_connection((place["host"], int(place["port"])), SECONDS_TO_ANSWER).close()
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200]
            raise InputError(
                f"ray_address: got {self.address!r}, where no Ray cluster answers ({said}); expected one; fix: "
                "`ray start --head` on one machine, `ray start --address HOST:PORT` on the others, then its HOST:PORT"
            ) from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, at_sigterm or signal.SIG_DFL)  # ray.init replaces it
        try:
            yield
        finally:
            ray.shutdown()

    def _room(self, alone: bool) -> int:
        """Return the number of processes that fit on the cluster; with `alone` one per machine."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = {"num_cpus": ("CPU", self.num_cpus), "num_gpus": ("GPU", self.num_gpus)}
        for name, (resource, number) in wanted.items():
            most = max((node.get(resource, 0) for node in nodes), default=0)
            if number > most:
                raise InputError(
                    f"{name}: got {number}; expected at most {most:g}, what one machine of the cluster has; fix: a "
                    "smaller number, or a machine that has more"
                )
        fits = [min(node.get(name, 0) // number for name, number in wanted.values() if number) for node in nodes]
        room = max(1, int(sum(min(fit, 1) if alone else fit for fit in fits)))
        return min(room, self.processes or room)


def _no_start(found: str) -> BixseError:
    return BixseError(
        f"engine ray: got no process on the cluster, {found}; expected one that begins; fix: look at `ray status` (is "
        "there room for num_cpus and num_gpus?)"
    )


def worker_class() -> type:
    """Return the class of the actors, made in a function: Ray then sends its code to machines without bixse too."""

    class ShardWorker:
        def begin(self, version: str, path: Any, folder: str, sent: list[Any]) -> Any:
            """Return name, version and file content of this machine; if right, set up in the folder of the caller."""
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
    """The requirements for a machine: this version of bixse, and the file that was written next to the outputs."""

    version: str
    path: Path | None
    content: str

    @classmethod
    @contextmanager
    def beside(cls, output: Path | None) -> Iterator[Check]:
        """Write the file for the duration of the block; a job without outputs needs none."""
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
        """Raise InputError for a machine (name, version of bixse, content of the file) that does not meet them."""
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
