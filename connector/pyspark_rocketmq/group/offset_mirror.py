"""Shows the group's progress to the brokers, for mqadmin, dashboards and Java members.

The offset store is authoritative, and the brokers have a copy. Batches do not wait for the copy, and an error
in sending it does not affect them.

Rule 1: only the newest offset of a queue counts; it replaces one that could not be sent.
Rule 2: an offset is sent again, or late, only if the queue's stored epoch is still the one under which the
offset was committed. Otherwise another member or an operator has moved the queue since, and the old offset
would hide that.
Rule 3: after a while without new offsets, the store records which offsets have arrived at the brokers. If a
broker has a different offset at the queue's next claim, somebody else stored it (``consume.positions``).
Rule 4: offsets are sent at most once a second, unless a queue changes hands or somebody waits for them.
Rule 5: a thread runs only while there is work, so nothing needs to be closed. Offsets that could not be sent
within a minute after the query's end are given up: the cluster may be gone for good.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from pyspark_rocketmq.client.cluster import Cluster, acting_masters
from pyspark_rocketmq.clock import Clock, Deadline, SleepWatch, SystemClock
from pyspark_rocketmq.consume.offset_pace import LONGEST_S
from pyspark_rocketmq.consume.recent_offsets import AgedOffset, PassedOffset, pass_on
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RocketMQError, TransportError
from pyspark_rocketmq.model import BrokerAddress, MessageQueue
from pyspark_rocketmq.offsets.store import OffsetStore, QueueCommit
from pyspark_rocketmq.options.read import ReadOptions

logger = masking_logger(__name__)

_AGAIN_AFTER_S: Final = 5.0
"""Pause before offsets that could not be sent are tried again, in seconds.

It is Java's ``ClientConfig.persistConsumerOffsetInterval``.
"""
_PACE_S: Final = 1.0
"""Shortest time between two rounds in which offsets are sent, in seconds (rule 4)."""
_QUIET_S: Final = LONGEST_S + 1.0
"""Seconds without a new offset after which the store records the offsets that have arrived. This is longer
than the time between two offset commits of a busy query."""
_LATE_S: Final = 0.1
"""Age in seconds from which an offset is late: it is sent only if the queue's epoch is unchanged (rule 2).

An offset that does not wait is sent within milliseconds. One that waits for the pace (rule 4) is late: an
operator's reset may come, and be written to the broker, meanwhile.
"""
_MOST_LATELY: Final = 32
"""Maximum number of offsets that are remembered for each queue after they have arrived; twice as many as are
normally sent in the time after which a broker does not lose them any more."""
_AT_EXIT_S: Final = 2.0
_AFTER_QUERY_S: Final = 60.0
"""Time for which offsets are still sent after the end of their query, in seconds."""

Commits = Mapping[MessageQueue, QueueCommit]


class OffsetMirror:
    """Keeps a copy of one group's progress at the brokers: sends them the offsets that the store accepts."""

    def __init__(
        self,
        options: ReadOptions,
        store: OffsetStore,
        offset_key: str,
        *,
        again_after_s: float = _AGAIN_AFTER_S,
        pace_s: float = _PACE_S,
        quiet_s: float = _QUIET_S,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the mirror without connecting to any broker.

        Args:
            options: Group, topics and access to the cluster.
            store: The authoritative offset store.
            offset_key: Key of the group in the store.
            again_after_s: Pause before offsets that could not be sent are tried again, in seconds.
            pace_s: Shortest time between two rounds in which offsets are sent, in seconds.
            quiet_s: Time without new offsets after which the store records those that have arrived.
            clock: The system's clock if not given.
        """
        assert options.consumer_group is not None
        self._group = options.consumer_group
        self._store = store
        self._offset_key = offset_key
        self._again_after_s = again_after_s
        self._pace_s = pace_s
        self._quiet_s = quiet_s
        self._sent_s = -inf
        """Monotonic second at which offsets were last sent."""
        self._is_hurried = False
        """Whether the store records arrived offsets immediately, without a wait for newer ones."""
        self._clock = clock or SystemClock()
        self._sleeps = SleepWatch(self._clock)
        cluster = Cluster.of(options, self._clock)
        self._timeout_s = cluster.timeout_s
        self._brokers, self._routes = cluster.brokers(), cluster.routes(options)
        self._guard = threading.Lock()
        self._sent = threading.Condition(self._guard)
        self._waiting: dict[MessageQueue, QueueCommit] = {}
        """Commits that are not sent yet."""
        self._arrived: dict[MessageQueue, int] = {}
        """Last offset that each queue's broker has stored."""
        self._lately: dict[MessageQueue, list[PassedOffset]] = {}
        """The offsets that each queue's broker has stored lately, oldest first: a crash may lose the last."""
        self._unnoted: set[MessageQueue] = set()
        """Queues whose arrived offsets the store has not recorded yet."""
        self._shown_at_s: dict[MessageQueue, float] = {}
        """Time (:meth:`_passed_s`) at which :meth:`show` last got a queue's offset."""
        self._until_s = inf
        """Monotonic second at which the offsets that are left are given up."""
        self._news = threading.Event()
        self._urgent = threading.Event()
        """Set when the offsets that wait are to be sent regardless of the pace."""
        self._thread: threading.Thread | None = None
        self._is_in_trouble = False
        """Whether sending has failed since the last complete round, so that a warning was logged."""

    def show(self, accepted: Iterable[QueueCommit]) -> None:
        """Queue the offsets of commits for sending to the brokers; return immediately.

        ``accepted`` are commits that the store has just accepted. A thread sends their offsets, at most once
        a second.
        """
        news = {commit.queue: commit for commit in accepted}
        if not news:
            return
        with self._guard:
            self._waiting |= news
            self._shown_at_s |= dict.fromkeys(news, self._passed_s())
            self._until_s = inf
            if self._thread is None:
                # A daemon, so that the end of the process does not wait for an unreachable broker.
                thread = threading.Thread(target=self._run, name="rocketmq-offset-mirror", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self._at_exit)
        self._news.set()

    def await_shown(self, accepted: Sequence[QueueCommit], timeout_s: float) -> bool:
        """Wait until none of these offsets is left to send; return False after ``timeout_s``.

        True does not mean that all have arrived. An offset may also have been replaced by a newer one,
        dropped because its queue was moved (rule 2), or given up: a minute after the query's end (rule 5), or
        after an unexpected error.
        """
        self._urgent.set()
        with self._sent:
            return self._sent.wait_for(
                lambda: not any(self._waiting.get(commit.queue) == commit for commit in accepted), timeout_s
            )

    def arrived(self, queue: MessageQueue) -> int | None:
        """Return the last offset from this mirror that the queue's broker has stored; None if none."""
        with self._guard:
            return self._arrived.get(queue)

    def lately_arrived(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, tuple[AgedOffset, ...]]:
        """Return the offsets from this mirror that brokers may lose if they crash, oldest first.

        These are the last offset of each queue and those that were replaced in the 15 s before it arrived;
        at most 32. Queues of which none has arrived are left out.
        """
        with self._guard:
            now_s = self._clock.monotonic_s()
            return {
                queue: tuple(
                    AgedOffset(round(now_s - at_s, 3), offset) for at_s, offset in self._lately[queue]
                )
                for queue in queues
                if queue in self._lately
            }

    def hurry(self) -> None:
        """Send the waiting offsets now, because queues go to other members; return immediately."""
        self._urgent.set()

    def query_ended(self) -> None:
        """Note that no newer offsets come; return immediately.

        Offsets that cannot be sent within the next minute are given up.
        """
        with self._guard:
            self._until_s = self._clock.monotonic_s() + _AFTER_QUERY_S
            self._is_hurried = self._thread is not None
        self._news.set()

    def flush(self, timeout_s: float) -> bool:
        """Send the remaining offsets now, and wait until none is left.

        Return False if some are left after ``timeout_s``.
        """
        with self._guard:
            thread = self._thread
            self._is_hurried = thread is not None
        if thread is None:
            return True
        self._urgent.set()
        self._news.set()
        thread.join(timeout_s)
        return not thread.is_alive()

    def _at_exit(self) -> None:
        if not self.flush(_AT_EXIT_S):
            self._warn_of_rest()

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            tried: Commits = {}
            while waiting := self._next():
                self._sent_s = self._clock.monotonic_s()
                self._send(waiting, tried)
                tried = waiting
                self._note_arrivals()
                self._give_up_late()
                # Wait until there are new offsets, or it is time to retry the rest.
                if self._waiting:
                    self._news.wait(self._sent_s + self._again_after_s - self._clock.monotonic_s())
                else:
                    self._is_in_trouble = False
        except BaseException:
            # Nobody watches this thread; the next batch starts another one. A panic of delta-rs is not an
            # Exception.
            logger.exception("offsets could not be sent to the brokers group=%s", self._group)
            with self._guard:
                self._waiting.clear()
                self._sent.notify_all()
                self._end()

    def _next(self) -> Commits:
        rest_s = self._sent_s + self._pace_s - self._clock.monotonic_s()
        if rest_s > 0 and self._waiting:
            self._urgent.wait(rest_s)
        with self._guard:
            self._urgent.clear()
            self._news.clear()
            if not self._waiting:
                self._end()
            return dict(self._waiting)

    def _end(self) -> None:
        self._thread = None
        self._is_hurried = False
        atexit.unregister(self._at_exit)

    def _give_up_late(self) -> None:
        with self._guard:
            if not self._waiting or self._clock.monotonic_s() < self._until_s:
                return
            self._warn_of_rest()
            self._waiting.clear()
            self._sent.notify_all()

    def _warn_of_rest(self) -> None:
        logger.warning("offsets not sent to the brokers group=%s queues=%d", self._group, len(self._waiting))

    def _note_arrivals(self) -> None:
        """Wait a while; then record in the store which offsets have arrived at the brokers.

        If new offsets to send came during the wait, record nothing yet. The offsets of an unreachable broker
        do not delay the record of the others.
        """
        quiet_s = min(self._quiet_s, self._again_after_s) if self._waiting else self._quiet_s
        if not self._is_hurried and self._news.wait(quiet_s) and not self._is_hurried:
            return
        with self._guard:
            arrived = {queue: self._arrived[queue] for queue in self._unnoted}
        if not arrived:
            return
        try:
            self._store.note_arrivals(self._offset_key, arrived)
        except RocketMQError as error:
            logger.info(
                "could not record which offsets arrived at the brokers group=%s: %s", self._group, error
            )
        with self._guard:
            self._unnoted -= {queue for queue, offset in arrived.items() if self._arrived[queue] == offset}

    def _passed_s(self) -> float:
        """Return the monotonic time plus the machine's sleep, in seconds; call it with the guard held.

        While the machine sleeps, another member may get its queues.
        """
        return self._clock.monotonic_s() + self._sleeps.slept_s()

    def _still_true(self, waiting: Commits, tried: Commits) -> Commits:
        """Return the offsets of ``waiting`` that may be sent, and drop the outdated ones.

        An offset that is late, or was ``tried`` before, may be sent only if its queue's stored epoch is still
        that of its commit (rule 2). If the store cannot be read, such an offset waits.
        """
        with self._guard:
            in_time_s = self._passed_s() - _LATE_S
        again = {
            queue: commit
            for queue, commit in waiting.items()
            if self._shown_at_s[queue] < in_time_s or tried.get(queue) == commit
        }
        if not again:
            return waiting
        try:
            rows = self._store.read(self._offset_key)
        except RocketMQError as error:
            self._warn(error)
            return {queue: commit for queue, commit in waiting.items() if queue not in again}
        outdated = {
            queue: commit
            for queue, commit in again.items()
            if queue not in rows or rows[queue].epoch != commit.state.epoch
        }
        self._done(outdated)
        return {queue: commit for queue, commit in waiting.items() if queue not in outdated}

    def _send(self, waiting: Commits, tried: Commits) -> None:
        """Send each offset that may be sent to its broker.

        A broker that did not answer gets no more offsets in this round.
        """
        try:
            routes = self._routes.look(Deadline.after(self._clock, self._timeout_s))
        except RocketMQError as error:
            self._warn(error)
            return
        commits = self._still_true(waiting, tried)
        acting = acting_masters(self._brokers, routes)
        silent: set[str] = set()
        for queue, commit in sorted(commits.items()):
            if queue.broker_name in silent:
                continue
            try:
                self._send_one(routes.masters.get(queue.broker_name), commit)
            except TransportError as error:
                silent.add(queue.broker_name)
                self._routes.invalidate()
                self._warn(error)
            except RocketMQError as error:
                self._warn(error)
            else:
                # A slave does not hand it over to its master, which returns with the offset that it had.
                if queue.broker_name not in acting:
                    with self._guard:
                        self._arrived[queue] = commit.state.next_offset
                        lately = self._lately.setdefault(queue, [])
                        pass_on(lately, commit.state.next_offset, self._clock.monotonic_s())
                        del lately[:-_MOST_LATELY]
                        self._unnoted.add(queue)
                self._done({queue: commit})

    def _send_one(self, address: BrokerAddress | None, commit: QueueCommit) -> None:
        if address is None:
            raise TransportError(
                commit.queue.broker_name, "the route names no master for this broker; start its master"
            )
        self._brokers.update_consumer_offset(address, self._group, commit.queue, commit.state.next_offset)

    def _done(self, commits: Commits) -> None:
        with self._guard:
            for queue, commit in commits.items():
                if self._waiting.get(queue) == commit:
                    del self._waiting[queue]
            self._sent.notify_all()

    def _warn(self, error: RocketMQError) -> None:
        level = logging.INFO if self._is_in_trouble else logging.WARNING
        self._is_in_trouble = True
        logger.log(level, "offsets not sent to the broker, trying again group=%s: %s", self._group, error)
