"""A broker that loses the end of its log, just after an application was killed between its two commits."""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
from pathlib import Path

from broker_sim.cluster import SimCluster
from broker_sim.message_store import MessageStore
from pyspark_rocketmq.model import MessageQueue
from tests.applications.order_flow import OrderFlow, Step, stored_steps
from tests.applications.running_application import DIE, Group, wait_patiently
from tests.applications.schedule import LOSING
from tests.helpers.cluster import ClusterUnderTest
from tests.real_broker.harness import RealCluster

_TAIL_S = 5.0
"""How long messages that will be lost are sent."""
_DIES_WITHIN_S = 90.0


class TailLoss:
    """Remembers the lost messages: the sink may have them, and must have all others."""

    def __init__(self, cluster: ClusterUnderTest, group: Group) -> None:
        """Begin with nothing lost."""
        self._cluster = cluster
        self._wanted = group.folder / DIE
        self.flow: OrderFlow | None = None
        """Producer that sends to the broker."""
        self.lost: list[Step] = []
        self._times = self._killed = 0

    def counts(self) -> str:
        """Losses so far, for the summary."""
        return (
            f"tails lost: {self._times}, {self._killed} of them after a kill between sink and offsets, "
            f"{len(self.lost)} messages"
        )

    def happen(self) -> str:
        """Have an application killed between its commits, and lose the messages stored for some seconds.

        Raises:
            AssertionError: If nobody may send to the broker, or it does not come back.
        """
        assert self.flow is not None
        backend = self._cluster.backend
        log = _SavedLog(backend) if isinstance(backend, SimCluster) else _SavedFiles(self._cluster)
        try:
            time.sleep(_TAIL_S)
            is_killed = self._kill()
            with self.flow.paused(LOSING):
                before, _ = self._stored()
                self._cluster.stop_broker(LOSING)
                log.put_back()
                self._cluster.start_broker(LOSING)
                _, ends = self._stored()
        finally:
            log.forget()
        lost = [step for step in before if step.queue_offset >= ends[MessageQueue(*step[:3])]]
        self.lost += lost
        self._times += 1
        self._killed += is_killed
        return f"{len(lost)} messages of {LOSING}" + ("" if is_killed else ", nobody was killed")

    def _kill(self) -> bool:
        self._wanted.write_text(LOSING)
        try:
            wait_patiently(lambda: not self._wanted.exists(), _DIES_WITHIN_S, reason="A kill between commits")
        except AssertionError:
            self._wanted.unlink(missing_ok=True)
            return False
        return True

    def _stored(self) -> tuple[list[Step], dict[MessageQueue, int]]:
        assert self.flow is not None
        queues = [queue for queue in self.flow.queues if queue.broker_name == LOSING]
        return stored_steps(self._cluster.broker_addresses, queues)


class _SavedLog:
    """The messages of a simulated broker."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._store: MessageStore = cluster.call(lambda: copy.deepcopy(cluster.broker(LOSING).state.store))

    def put_back(self) -> None:
        def replace() -> None:
            self._cluster.broker(LOSING).state.store = self._store

        self._cluster.call(replace)

    def forget(self) -> None:
        """Do nothing: nothing is left to do."""


class _SavedFiles:
    """The files of a real broker, which is stopped to copy them."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        assert isinstance(cluster.backend, RealCluster)
        self._store = cluster.backend.store_of(LOSING)
        self._folder = Path(tempfile.mkdtemp(prefix="saved-log-"))
        cluster.stop_broker(LOSING)
        try:
            _copy(self._store, self._folder / "store")
        finally:
            cluster.start_broker(LOSING)

    def put_back(self) -> None:
        shutil.rmtree(self._store)
        _copy(self._folder / "store", self._store)

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
