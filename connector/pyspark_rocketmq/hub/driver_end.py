"""The driver's end of the connections to planner and tasks, with the commits that are made while a job runs.

Tasks send parts of their results before the job ends for two reasons: a queue is given up or, with a
``commit_interval``, the driver asks for them. The server to which planner and tasks connect is the *hub*.

| thread | does |
|---|---|
| ``rocketmq-hub`` | communicates with planner and tasks, decides |
| ``rocketmq-early-commits`` | commits the groups of parts that tasks hand over, one after the other |
| ``rocketmq-batch-over`` | notifies the planner that a batch is over, once the brokers have its offsets |
| ``rocketmq-hub-watch`` | compares epochs, counts slots, logs long commits, closes the hub with the query |

A *part* is a piece of a task's result; parts that get one commit are a *group*. Parts are accepted until the
Spark job of the batch is over. A commit that fails is tried again for a minute, and no other commit is made
in that time. If it still fails, the batch fails. Without ``commit_interval`` the batch fails only once its
job is over. The batch's end waits until the accepted parts are committed. The caller then commits the rest of
the job's result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, NamedTuple

from pyspark_rocketmq.clock import Clock, Deadline
from pyspark_rocketmq.consume.part import Group, Part
from pyspark_rocketmq.consume.recent_offsets import AgedOffset
from pyspark_rocketmq.display import masking_logger
from pyspark_rocketmq.errors import RocketMQError
from pyspark_rocketmq.hub.server import HubServer
from pyspark_rocketmq.hub.state import CALLS_END_S, Commit, HubState, Queues, Slots
from pyspark_rocketmq.hub.task_end import ControlEndpoint
from pyspark_rocketmq.model import MessageQueue

logger = masking_logger(__name__)

_LOOK_EVERY_S: Final = 1.0
_LONG_COMMIT_S: Final = 10.0
"""Time after which a commit that is under way is reported, in seconds; at most once a minute."""
_REPORT_EVERY_S: Final = 60.0
_MOST_HELD_BACK: Final = 3
"""Number of batches in a row with held-back tasks after which the query ends (Spark Connect)."""


class Committed(NamedTuple):
    """Outcome of a commit that has not failed."""

    refused: Queues = frozenset()
    """Queues of which not everything was committed, for example because the sink or the offset store has
    refused them; see ``GroupResult.refused``."""
    took_s: float = 0.0
    """How long it took to store the offsets, in seconds; 0 if they were not stored."""


MakeCommit = Callable[[Commit], Committed]
"""Makes one commit of a batch: data, offsets or both."""
LatelyArrived = Callable[[Queues], Mapping[MessageQueue, Sequence[AgedOffset]]]
"""Returns the offsets of queues that have lately arrived at their brokers, oldest first."""


class BatchEnd(NamedTuple):
    """Result of :meth:`DriverControl.end`: number of the batch's plan, and results that are not committed."""

    plan: int = 0
    """Number of the batch's plan; 0 if the planner has reported none."""
    rest: Group | None = None
    """Results in the job's output that no task had sent to the driver before; None if there are none. The
    caller commits them."""
    failure: RocketMQError | None = None
    """Error with which the query ends once the caller has committed the batch; None if the query goes on."""


class HeldBackTasks:
    """Decides when tasks that could not connect end a query whose tasks must be connected; no I/O, no clock.

    Such a task is *held back*: it delivers nothing, and the next batch continues its queues. A failure of the
    network ends soon; after three batches in a row with held-back tasks, a machine seems to be cut off, which
    would keep queues from being consumed.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self.has_connected = False
        """Whether a task of the query was ever connected."""

    def batch_ends(self, *, could_ask: bool | None, could_any_ask: bool) -> bool:
        """Note whether all or any tasks of a batch were connected; return whether to go on.

        ``could_ask`` is None if no task had to be connected.
        """
        self.has_connected |= could_any_ask
        if could_ask is not None:
            self._in_a_row = 0 if could_ask else self._in_a_row + 1
        return self._in_a_row < _MOST_HELD_BACK


class DriverControl:
    """One query's *hub*: the server for planner and tasks in the driver, with commits while a job runs.

    It lives until :meth:`close` or the query's end.
    """

    def __init__(
        self,
        host: str,
        bind_host: str,
        *,
        must_ask: bool,
        slots: Callable[[], Slots],
        read_epochs: Callable[[], Mapping[MessageQueue, int]],
        clock: Clock,
        storage_options: Callable[[], Mapping[str, str]] = dict,
        look_every_s: float = _LOOK_EVERY_S,
        ends_tasks: bool = False,
        calls_end_s: float = CALLS_END_S,
        interval_s: float | None = None,
        may_offsets_wait: bool = False,
        is_encrypted: bool = False,
    ) -> None:
        """Open a port for planner and tasks, and start the threads.

        Args:
            host: Host name under which planner and tasks reach this process.
            bind_host: Host name on which this process opens the port.
            must_ask: Whether a task of the first batch may begin only after an answer of this process. Give
                True only if every task can reach this process.
            slots: Returns how many tasks can run at the same time now.
            read_epochs: Returns the epochs in the offset store.
            clock: The system's clock, except in tests.
            storage_options: Returns the options with which the planner reaches the offset store.
            look_every_s: Pause between two comparisons of the batch with the offset store, in seconds.
            ends_tasks: Whether tasks must end by themselves when their connection breaks, because Spark does
                not end them when this process ends. If True, a task that cannot connect is held back in each
                batch: it delivers nothing (``HeldBackTasks``). Requires ``must_ask``.
            calls_end_s: Time for which Spark lets a Python worker go on after its job has ended, in seconds.
            interval_s: Shortest time between two commits while a job runs, in seconds. If it is None, a
                running job commits only results of queues that are given up.
            may_offsets_wait: Whether offsets may be stored less often than rows are committed, because the
                sink records how far its rows go.
            is_encrypted: Whether to encrypt the connections.

        Raises:
            OSError: If the port cannot be opened, or the connections cannot be encrypted.
        """
        self._clock = clock
        self._slots = slots
        self._read_epochs = read_epochs
        self._look_every_s = look_every_s
        self._ends_tasks = ends_tasks
        self._calls_end_s = calls_end_s
        self._wants_cuts = interval_s is not None
        self._is_warned = False
        self._held_back = HeldBackTasks()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._over: SimpleQueue[tuple[int, int, Callable[[], None]] | None] = SimpleQueue()
        self._batches = 0
        """Number of batches that have begun."""
        self._is_under_way = False
        """Whether the newest batch has begun, and is neither over nor failed."""
        self._newest_over = 0
        """Number of the plan of the newest batch that is over."""
        self._make: MakeCommit | None = None
        """Makes the commits of the batch under way."""
        self._failing = ""
        """Id of the group of parts whose last commit has failed, or "offsets"; empty after a success. The
        traceback of each is logged once."""
        self._began_s = float("inf")
        self._commit_began_s = float("inf")
        """Monotonic time at which the commit under way began; infinite without one."""
        self._reported_s = float("-inf")
        """Monotonic time at which a commit that took long was last reported."""
        self._has_no_batch = threading.Event()
        """Set while no batch, and no commit of one, is under way."""
        self._has_no_batch.set()
        self._has_failed = False
        """Whether the newest batch has failed, or could not begin."""
        self._is_look_wanted = threading.Event()
        self._is_closed = False
        self._is_drained = False
        self._is_alive: Callable[[], bool] = lambda: True
        self._stop: Callable[[], None] | None = None
        self._on_end: Callable[[], None] = lambda: None
        self._on_leaving: Callable[[], None] = lambda: None
        self._lately_arrived: LatelyArrived = lambda _: {}
        self._hub = HubServer(
            host,
            bind_host,
            must_ask=must_ask,
            slots=slots(),
            commit=lambda commit: self._work.put(lambda: self._commit(commit)),
            look=self._is_look_wanted.set,
            storage_options=storage_options,
            arrivals=self._arrivals_of,
            drained=self._drained,
            leaving=self._queues_leave,
            calls_end_s=calls_end_s,
            interval_s=interval_s,
            may_offsets_wait=may_offsets_wait,
            is_encrypted=is_encrypted,
            clock=clock,
        )
        for name, run in (
            ("rocketmq-early-commits", self._run_commits),
            ("rocketmq-batch-over", self._run_over),
            ("rocketmq-hub-watch", self._run_watch),
        ):
            threading.Thread(target=run, name=name, daemon=True).start()

    @property
    def secret(self) -> str:
        """The hub's address with the query's secret key, as the value of option ``hubSecret``."""
        return self._hub.address.to_text()

    def lives_with(self, is_alive: Callable[[], bool], stop: Callable[[], None] | None = None) -> None:
        """Let the hub live as long as its query: close it soon after ``is_alive`` returns False.

        ``is_alive`` must also return False when the Spark session has ended: Spark does not end an idle query
        with its session, and the query's planner would keep its queues. ``is_alive`` is called about once a
        second and must raise nothing.

        ``stop`` stops the query. Whenever the hub closes, also by :meth:`close`, ``stop`` is called once no
        batch is under way. If ``stop`` is given, the hub of a query with ``availableNow`` also closes when
        everything is consumed.
        """
        self._is_alive = is_alive
        self._stop = stop

    def when_ended(self, ended: Callable[[], None]) -> None:
        """Set the function to call when the hub closes and the last batch is over; it must not wait.

        The hub closes when the query has ended, or after :meth:`close`.
        """
        self._on_end = ended

    def when_leaving(self, leaving: Callable[[], None]) -> None:
        """Set the function to call whenever the planner reports queues to give up to other members.

        The function must not wait.
        """
        self._on_leaving = leaving

    def answers_by(self, lately_arrived: LatelyArrived) -> None:
        """Set the function that is called when the planner asks which offsets brokers have got.

        The function must not wait.
        """
        self._lately_arrived = lately_arrived

    def close(self) -> None:
        """Close the hub; return immediately.

        Tasks end after their current calls; once their batch is over, the connections and the threads end.
        """
        self._is_closed = True
        self._is_look_wanted.set()

    def held_up(self, reason: str) -> None:
        """Report to the planner what keeps queues from being consumed; return immediately.

        ``reason``: the cause in words; empty if all queues can be consumed.
        """
        self._hub.report(partial(HubState.held_up, reason=reason))

    def stop_tasks(self, within_s: float) -> bool:
        """End tasks after their current calls, and wait until their batch is committed.

        Tasks that connect later do not begin. Return whether the batch is committed within ``within_s``
        seconds; False if it has failed.
        """
        self._stop_tasks()
        return self._has_no_batch.wait(within_s) and not self._has_failed

    def _stop_tasks(self) -> None:
        self._hub.report(lambda state: state.stop(self._clock.monotonic_s()))

    # --- a batch --------------------------------------------------------------------------------------------

    def begin(self, batch_id: int, make: MakeCommit) -> ControlEndpoint | None:
        """Begin a batch; call this before the batch's Spark job starts.

        Return the address and rules with which its tasks connect; None if the hub is closed. Call :meth:`end`
        or :meth:`cut_short` after the job, then :meth:`over` or :meth:`failed`. Until :meth:`end` or
        :meth:`cut_short` returns, another thread calls ``make`` for each commit, one at a time.
        """
        self._has_no_batch.clear()
        if self._is_closed:
            self._has_no_batch.set()
            return None
        self._make = make
        self._has_failed = False
        self._is_under_way = True
        must_ask, self._batches = self._hub.query(lambda state: (state.batch_begins(batch_id), state.batches))
        self._began_s = self._clock.monotonic_s()
        return ControlEndpoint(self._hub.address, batch_id, must_ask, self._ends_tasks, self._wants_cuts)

    def end(self, parts: Sequence[Part], *, could_ask: bool | None, could_any_ask: bool = False) -> BatchEnd:
        """End a batch whose job is complete.

        Accept no further result, and wait until the accepted ones are committed.

        Args:
            parts: The results in the job's output. Those that no task has sent before are returned.
            could_ask: Whether all tasks of the batch with ranges were connected to the hub; None if no task
                had ranges.
            could_any_ask: Whether at least one of these tasks was connected.

        Raises:
            RocketMQError: If no task was connected although Spark does not end tasks with this process (Spark
                Connect), or if a task has failed with an error that would occur again in each attempt.
            BaseException: The error of a commit that was given up.
        """
        # Over Spark Connect tasks must always ask. Without this, those of the next batch would not have to.
        asked = (could_ask or None) if self._ends_tasks else could_ask
        failure = self._end_job(could_ask=asked, is_whole=True)
        goes_on = not self._ends_tasks or self._held_back.batch_ends(
            could_ask=could_ask, could_any_ask=could_any_ask
        )
        if self._ends_tasks and could_ask is False and not self._held_back.has_connected:
            raise self._unconnected("No task of the query could connect to")
        if failure is not None:
            raise failure
        if could_ask is False:
            self._warn_of_unconnected()
        last_error = None
        if not goes_on:
            last_error = self._unconnected(
                f"In {_MOST_HELD_BACK} batches one after the other, some tasks could not connect to",
                "What the other tasks have delivered is committed. ",
            )
        return self._hub.query(lambda state: BatchEnd(state.plan, state.rest(parts), last_error))

    def _unconnected(self, what: str, others: str = "") -> RocketMQError:
        return RocketMQError(
            f"{what} {self._hub.address.host}:{self._hub.address.port}, the process in which Spark Connect "
            "runs foreachBatch. Spark does not end tasks when the query ends, so tasks without this "
            f"connection deliver nothing. {others}Let executors reach that host (spark.driver.host), or use "
            "a classic session."
        )

    def _warn_of_unconnected(self) -> None:
        """Log what it costs that tasks of a batch could not connect."""
        host, port = self._hub.address.host, self._hub.address.port
        if self._ends_tasks:
            logger.warning(
                "some tasks of the batch could not connect to %s:%d and have delivered nothing, so their "
                "queues wait for the next batch. If this occurs again, let executors reach that host "
                "(spark.driver.host)",
                host,
                port,
            )
        elif self._wants_cuts and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "each micro-batch is committed at its end, without regard to commit_interval: tasks could "
                "not connect to %s:%d. Let executors reach that host (spark.driver.host)",
                host,
                port,
            )

    def cut_short(self) -> None:
        """End a batch whose job has failed or was cancelled.

        Wait until the results that tasks have sent are committed. A commit that fails is not tried again, and
        its error is not raised.
        """
        self._end_job(could_ask=None, is_whole=False)

    def _end_job(self, *, could_ask: bool | None, is_whole: bool) -> BaseException | None:
        self._began_s = float("inf")
        failure = self._hub.batch_ends(could_ask=could_ask, is_whole=is_whole)
        self._make = None
        return failure

    def over(self, plan: int, is_shown: Callable[[], None]) -> None:
        """Note that the batch of ``plan`` is committed or dropped; return immediately.

        Another thread then calls ``is_shown``, which waits until the brokers have the batch's offsets. When
        ``is_shown`` has returned or failed, the thread reports to the planner that the batch is over. If a
        newer batch is over before ``is_shown`` is called, only the newer batch is reported.
        """
        self._newest_over = plan
        self._is_under_way = False
        # Do this first: the thread that takes it may end as soon as no batch is under way.
        self._over.put((plan, self._batches, is_shown))
        self._has_no_batch.set()

    def failed(self) -> None:
        """Note that a batch could not begin, or could not be committed, so that its query ends."""
        # Do this first: a thread that waits for the batch's end then asks how the batch has ended.
        self._has_failed = True
        self._has_no_batch.set()
        if self._is_under_way:
            self._is_under_way = False
            self._hub.report(HubState.batch_failed)
        self._is_look_wanted.set()

    # --- threads --------------------------------------------------------------------------------------------

    def _queues_leave(self) -> None:
        """Call the function of :meth:`when_leaving`: queues are to be given up. Runs on the hub's thread."""
        self._on_leaving()

    def _arrivals_of(self, queues: Queues) -> Mapping[MessageQueue, Sequence[AgedOffset]]:
        """Call the function of :meth:`answers_by`. Runs on the hub's thread."""
        return self._lately_arrived(queues)

    def _drained(self) -> None:
        """Note that an ``availableNow`` query has consumed everything; called by the hub's thread."""
        self._is_drained = True
        self._is_look_wanted.set()

    def _commit(self, commit: Commit) -> None:
        assert self._make is not None, "commits are made between begin and end"
        group = commit.group
        name = "offsets" if group is None else group.id
        self._commit_began_s = self._clock.monotonic_s()
        try:
            refused, took_s = self._make(commit)
        except BaseException as error:
            # Catch BaseException, because a panic of delta-rs is not an Exception.
            logger.warning(
                "%s of the batch could not be committed while its job runs parts=%d queues=%d: %s",
                "offsets" if group is None else "parts",
                0 if group is None else len(group.parts),
                0 if group is None else len(group.queues),
                error,
                exc_info=name != self._failing,
            )
            failure, self._failing = error, name
            self._hub.report(lambda state: state.commit_failed(failure, self._clock.monotonic_s()))
        else:
            self._failing = ""
            self._hub.report(lambda state: state.committed(refused, self._clock.monotonic_s(), took_s=took_s))
        finally:
            self._commit_began_s = float("inf")

    def _run_commits(self) -> None:
        while (do := self._work.get()) is not None:
            try:
                do()
            except BaseException:
                # Nobody watches this thread, and a batch's end waits for it.
                logger.exception("failure of a thread that commits while a job runs, going on")

    def _run_over(self) -> None:
        while (over := self._over.get()) is not None:
            plan, batches, is_shown = over
            if plan < self._newest_over:
                # Only the newest plan matters.
                continue
            try:
                is_shown()
            except Exception:
                logger.exception(
                    "failure of the thread that notifies the planner of finished batches, going on"
                )
            self._hub.report(partial(HubState.batch_committed, plan=plan, batches=batches))

    def _run_watch(self) -> None:
        while not self._is_closed:
            is_asked = self._is_look_wanted.wait(self._look_every_s)
            self._is_look_wanted.clear()
            # Check the query before the offset store, which may not answer: tasks of a query that has ended
            # go on delivering until this is noticed.
            if self._has_ended():
                break
            self._report_long_commit(self._clock.monotonic_s())
            try:
                self._look(is_asked=is_asked)
                # Executors come and go. Count slots here, not when a batch begins: it takes milliseconds.
                slots = self._slots()
                self._hub.report(partial(HubState.slots_are, slots=slots))
                if self._is_drained and self._stop is not None and self._has_no_batch.is_set():
                    self._is_closed = True
            except BaseException:
                # A panic of delta-rs is not an Exception. With its session stopped, nothing can be read.
                if not self._has_ended():
                    logger.info(
                        "epochs could not be compared with the running batch's, trying again", exc_info=True
                    )
        self._end()

    def _report_long_commit(self, now_s: float) -> None:
        """Log a commit that takes long: it may wait for a task slot that it never gets."""
        lasts_s = now_s - self._commit_began_s
        if lasts_s > _LONG_COMMIT_S and now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            logger.warning(
                "a commit within the batch has taken %.0f s so far, and no other one can begin. If Spark "
                "writes the sink's table, this needs a free task slot: give the query more cores, or end "
                "other queries of the application",
                lasts_s,
            )

    def _has_ended(self) -> bool:
        """Return whether the query has ended, or :meth:`close` was called.

        A lost connection of the planner does not count: Spark ends the planner, and lets a batch fail, before
        Spark notes that the query has ended.
        """
        if not self._is_alive():
            self._is_closed = True
        return self._is_closed

    def _end(self) -> None:
        """End the tasks, wait until no batch is under way, stop the query, and close the connections.

        The connections stay until the planner has left, for ``calls_end_s`` at most. Through them the planner
        gets the reports of tasks for which it waits.
        """
        self._stop_tasks()
        # Keep the threads until no batch is under way: the end of a batch needs them.
        while not self._has_no_batch.wait(self._look_every_s):
            continue
        self._on_end()
        self._work.put(None)
        self._over.put(None)
        self._stop_query()
        # Spark keeps this object as long as it keeps the query, which these two functions may hold.
        self._stop, self._is_alive = None, lambda: False
        # Keep the connections for the planner: it waits until tasks have reported their last calls' end here.
        deadline = Deadline.after(self._clock, self._calls_end_s)
        try:
            while not deadline.has_passed and self._hub.query(lambda state: state.has_planner):
                self._is_look_wanted.wait(self._look_every_s)
                self._is_look_wanted.clear()
        except RocketMQError as error:
            logger.warning("the query's connections end: %s", error)
        self._hub.close()

    def _stop_query(self) -> None:
        if self._stop is None:
            return
        try:
            self._stop()
        except Exception as error:  # noqa: BLE001 - with a stopped session Spark raises one, and ends the query
            logger.info("the query was stopped with an error: %s", type(error).__name__)

    def _look(self, *, is_asked: bool) -> None:
        is_long = self._clock.monotonic_s() - self._began_s >= self._look_every_s
        if self._is_closed or not (is_long or is_asked):
            return
        is_watched, batches = self._hub.query(lambda state: (state.is_watched, state.batches))
        if is_watched:
            epochs = self._read_epochs()
            self._hub.report(lambda state: state.moved(epochs, batches, self._clock.monotonic_s()))
