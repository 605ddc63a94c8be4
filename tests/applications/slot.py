"""A place for an application that is disturbed, ended and started again, as a schedule asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

from tests.applications.running_application import Pace, RunningApplication, wait_patiently
from tests.applications.schedule import Event, Kind

_SLOW = {"processingTime": "2 minutes"}
_EXIT_S = 210.0
"""Time limit for an exit; a slow application notices its planner's end at its next micro-batch."""
_MEMBER_S = 270.0
"""Time limit to become a member; a slow application may claim its queues only in its second micro-batch."""
_LOG_TAIL = 2500


class Slot:
    """A place for an application, and the one that has it now."""

    def __init__(
        self,
        name: str,
        start: Callable[..., RunningApplication],
        owners: Callable[[], Collection[str]],
        paces: Iterator[Pace],
        *,
        say: Callable[[str], None],
        problem: Callable[[str], None],
    ) -> None:
        """Prepare a place that is empty.

        Args:
            name: Name of the place, with which the names of its applications begin.
            start: Starts an application, as ``RunningApplication`` does: with its name and ``pace``.
            owners: Returns the client ids of the members that have queues now.
            paces: Paces of the applications, one after the other.
            say: Prints what happens.
            problem: Gets what is wrong.
        """
        self._name = name
        self._start = start
        self._owners = owners
        self._say = say
        self._problem = problem
        self._paces = paces
        self._starts = 0
        self.application: RunningApplication | None = None

    def do(self, event: Event) -> None:
        """Do what the schedule asks of the application."""
        if event.kind is Kind.JOIN:
            self.join(same_name=event.same_name, is_slow=event.is_slow)
            return
        assert self.application is not None
        {
            Kind.STOP: self.application.ask_to_stop,
            Kind.KILL: self.application.kill,
            Kind.KILL_DRIVER: self.application.kill_driver,
            Kind.KILL_JVM: self.application.kill_jvm,
            Kind.KILL_PLANNER: self.application.kill_planner,
            Kind.KILL_WORKER: self.application.kill_worker,
            Kind.PAUSE: self.application.pause,
            Kind.RESUME: self.application.resume,
            Kind.PAUSE_WORKER: self.application.pause_worker,
            Kind.RESUME_WORKER: self.application.resume,
        }[event.kind]()

    def join(self, *, same_name: bool, is_slow: bool = False) -> None:
        """Start the next application at the next pace, once the one before it is gone; ``is_slow``:
        with minutes between micro-batches.
        """
        before = self.application
        if before is not None:
            self._await_end_of(before)
            before.close()
        if before is None or not same_name:
            self._starts += 1
        pace, instance = next(self._paces), f"{self._name}-{self._starts}"
        if is_slow:
            pace = pace._replace(trigger=_SLOW)
        self._say(f"{instance} begins: {pace}")
        self.application = self._start(instance, pace=pace)

    def away(self, gone: Barrier, done: Barrier, within_s: float) -> None:
        """Stop, wait until all others are away, too, and the work is ``done``; then start again."""
        self.stop()
        # The thread that waits with this one reports it.
        with suppress(BrokenBarrierError):
            gone.wait(within_s)
            done.wait(within_s)
        self.join(same_name=True)

    def await_member(self) -> None:
        """Wait until the application has queues."""
        application = self.application
        assert application is not None

        def has_queues() -> bool:
            self.look()
            return self.application is not application or application.client_id in self._owners()

        try:
            wait_patiently(has_queues, _MEMBER_S, reason=f"queues of {application.instance}")
        except AssertionError as error:
            self._problem(f"{error}\n{tail(application)}")

    def look(self) -> None:
        """Report an application that ended unasked, and start it again.

        A worker that is killed while Spark plans with it ends the query as a planner does.
        """
        application = self.application
        if application is None or application.was_ended or application.exit_code is None:
            return
        if not application.ended_planning and not application.ended_before_offsets:
            self._problem(
                f"{application.instance} ended by itself with code "
                f"{application.exit_code}:\n{tail(application)}"
            )
        application.was_ended = True
        self.join(same_name=True)

    def stop(self) -> None:
        """Stop the application in good order."""
        if self.application is not None:
            self.application.ask_to_stop()
            code = self._await_end_of(self.application)
            if code != 0:
                problem = f"{self.application.instance} was asked to stop and exited with code {code}:"
                self._problem(f"{problem}\n{tail(self.application)}")

    def close(self) -> None:
        """Leave nothing behind."""
        if self.application is not None:
            self.application.close()

    def _await_end_of(self, application: RunningApplication) -> int | None:
        try:
            wait_patiently(
                lambda: not application.is_alive, _EXIT_S, reason=f"the end of {application.instance}"
            )
        except AssertionError as error:
            self._problem(f"{error}\n{tail(application)}")
            application.kill()
        return application.exit_code


def tail(application: RunningApplication) -> str:
    """Return the end of an application's log."""
    return application.log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
