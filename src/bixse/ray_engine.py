"""The engine that runs shards on Ray: on this machine, or on the machines of a cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import cached_property
from importlib import import_module, metadata
from itertools import chain, islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from bixse.engine import THREAD_VARIABLES, Ended, Engine, Job, Result, Shard, attempt, environment, spread
from bixse.errors import InputError, needs_extra
from bixse.machine import cores

if TYPE_CHECKING:
    from concurrent.futures import Future

HERE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # also on Linux, Ray then listens on 127.0.0.1 alone
    "RAY_prestart_worker_first_driver": "0",  # idle processes that delay the start by 0.5 s on two cores
    "RAY_worker_niceness": "0",
}
"""Environment of Ray on one machine."""
STORE_BYTES = 80 * 2**20
"""Size of Ray's object store on one machine, just above Ray's minimum: shards and results are small."""
ADDRESS_SECONDS = 10.0
"""Seconds for the machine of an address to answer."""
log = logging.getLogger(__name__)


class RayEngine(Engine):
    """An engine whose processes are actors of Ray. Ray assigns machines, cores and GPUs to them.

    Without an address Ray starts on this machine alone, and ends with the shards. With an address, or in a program that
    is connected to Ray, the cluster stays as it is. A process has one GPU if the cluster has any, and the cores of the
    cluster are divided among the processes. `processes` None means as many as fit. An InputError refuses a machine
    with another version of bixse, or one that does not see the folder of the outputs.
    """

    def __init__(self, processes: int | None = 1, address: str | None = None) -> None:
        super().__init__(processes if address is None else 1)
        if address is not None and "://" in address:
            raise InputError(
                f"address: got {address}; expected auto or HOST:PORT; fix: start it on a machine of the cluster"
            )
        with needs_extra("ray", "engine ray"), environment(HERE if address is None else {}):
            self._ray: Any = import_module("ray")
        self.address, self.here = address, False
        if address is not None:
            self.processes = processes or 0  # 0: as many as fit the cluster, which is not known yet

    def _attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], state: Any, processes: int
    ) -> Iterator[Ended[Shard, Result]]:
        first = list(islice(shards, 1))
        if not first:  # no cluster is needed
            return
        connected = self._ray.is_initialized()
        try:
            self._connect()
            threads, resources, number = self._room()
            output = job.output(first[0])
            folder = output and next(path for path in output.absolute().parents if path.is_dir())
            with NamedTemporaryFile(prefix=".shared-", dir=folder) if folder else nullcontext() as file:
                begin = [self._ray.put(job)], metadata.version("bixse"), threads, str(Path.cwd()), file and file.name
                yield from spread(
                    chain(first, shards), lambda slot: RayWorker(self._ray, resources, begin), processes or number
                )
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        finally:
            if not connected:
                self._ray.shutdown()  # ends Ray on this machine; leaves a cluster as it is

    def _connect(self) -> None:
        ray = self._ray
        if ray.is_initialized():
            return
        handler = signal.getsignal(signal.SIGTERM)
        shared = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.address is None:
                with environment(HERE | {"PYTHONPATH": os.pathsep.join(sys.path)}):  # of Ray's processes
                    ray.init("local", num_cpus=max(cores(), self.processes), include_dashboard=False,
                             object_store_memory=STORE_BYTES, **shared)  # fmt: skip
                return
            host, _, port = self.address.rpartition(":")
            if host:  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), ADDRESS_SECONDS).close()
            ray.init(self.address, **shared)
            total, free = ray.cluster_resources(), ray.available_resources()
            if busy := [name for name in ("CPU", "GPU") if total.get(name) and free.get(name, 0) < 1]:
                log.warning("engine ray: no %s of the cluster is free: shards wait (`ray status` shows it)", busy[-1])
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise InputError(
                f"address: got {self.address}, with this answer: {' '.join(str(error).split())[:300]}; expected a Ray "
                "cluster that this machine belongs to; fix: `ray start --head` on one machine, and `ray start "
                "--address HOST:PORT` on the others"
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # ray.init replaces it

    def _room(self) -> tuple[str, dict[str, int], int]:
        """Return the number of threads of a process, the resources that it reserves, and how many processes fit."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        cpus, gpus = [int(node.get("CPU", 0)) for node in nodes], [int(node.get("GPU", 0)) for node in nodes]

        def room(threads: int) -> int:
            fitting = [number // threads for number in cpus]
            return sum(map(min, fitting, gpus) if any(gpus) else fitting)

        number = self.processes or max(1, room(1))
        threads = max((threads for threads in range(1, max(cpus) + 1) if room(threads) >= number), default=1)
        return str(threads), {"num_cpus": threads, "num_gpus": int(any(gpus))}, number


class RayWorker:
    """A worker that is an actor of Ray."""

    def __init__(self, ray: Any, resources: Mapping[str, float], begin: tuple[Any, ...]) -> None:
        self.ray = ray
        errors = ray.exceptions
        self.died: tuple[type[BaseException], ...] = (
            errors.RayActorError, errors.ActorUnschedulableError, errors.OutOfMemoryError
        )  # fmt: skip
        actor = ray.remote(**resources, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(ShardActor)
        self.actor = actor.remote()
        self.begun: Future[Any] = self.actor.begin.remote(*begin).future()

    def submit(self, shard: Any) -> Future[Ended[Any, Any]]:
        future: Future[Ended[Any, Any]] = self.actor.run.remote(shard).future()
        return future

    def send(self, number: int) -> None:
        node, process = self.begun.result()
        strategies = import_module("ray.util.scheduling_strategies")
        on_node = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        # ray.cancel interrupts tasks, but not the methods of actors
        self.ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=on_node)(send_signal).remote(process, number)

    def close(self) -> None:
        self.ray.kill(self.actor)

    def refusal(self, error: BaseException) -> InputError | None:
        if not getattr(error, "actor_init_failed", True):  # its machine was lost
            return None
        return InputError(
            f"engine ray: got a process that died at its start ({str(error).strip().splitlines()[-1]}); expected "
            "bixse on all machines; fix: pip install 'bixse[ray]' in the environment of `ray start`"
        )


class ShardActor:
    """A process of Ray that does one shard at a time."""

    job: Job[Any, Any]

    def begin(self, sent: list[Any], version: str, threads: str, folder: str, shared: str | None) -> tuple[str, int]:
        """Check this machine, and return the node and the number of this process, by which a signal reaches it."""
        ray, machine = import_module("ray"), f"engine ray: got machine {socket.gethostname()}"
        if (here := metadata.version("bixse")) != version:
            raise InputError(f"{machine} with bixse {here}; expected {version}; fix: install that version there")
        if shared is not None and not Path(shared).exists():
            raise InputError(
                f"{machine}, which does not see {Path(shared).parent}; expected a folder that all machines share; "
                "fix: choose an --out that is mounted on all machines under the same path"
            )
        with suppress(OSError):
            os.setsid()  # the engine passes Ctrl-C on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # Ray blocks it in its processes
        with suppress(OSError):
            os.chdir(folder)  # for relative paths, for example of a model
        os.environ |= dict.fromkeys(THREAD_VARIABLES, threads)
        try:
            self.job = ray.get(sent[0])  # not an argument: it may import torch, which reads the number of threads
        except ray.exceptions.RaySystemError as error:
            line = str(error).strip().splitlines()[-1]
            raise InputError(
                f"{machine}, which cannot load the job ({line}); expected the packages of this machine; fix: install "
                "them there"
            ) from error
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def run(self, shard: Any) -> Ended[Any, Any]:
        return attempt(self.job, shard, self.state)

    @cached_property
    def state(self) -> Any:
        return self.job.setup()


def send_signal(process: int, number: int) -> None:
    """Send a signal to a process of the machine that runs this."""
    with suppress(ProcessLookupError):
        os.kill(process, number)
