"""A query's hub: the driver's end of the connections of its planner and its tasks.

Decisions are :class:`~pyspark_rocketmq.hub.state.HubState`'s, which the hub's thread alone touches; other
threads leave calls with it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.hub.connections import LineLoop, Link
from pyspark_rocketmq.hub.session import HubAddress, Message, queue_list
from pyspark_rocketmq.hub.state import Action, Beginning, Commit, Ended, HubState, Part, Slots, Tell
from pyspark_rocketmq.model import MessageQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_S: Final = 10.0
"""Far longer than the hub's thread takes for anything."""
_BACKLOG: Final = 128


class QueryHub:
    """Listens from its making on, until it is closed."""

    def __init__(
        self,
        host: str,
        bind_host: str,
        *,
        must_ask: bool,
        slots: Slots,
        commit: Callable[[Part], None],
        look: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Listen.

        Args:
            host: Where planner and tasks find this process.
            bind_host: Where it listens.
            must_ask: See :class:`HubState`.
            slots: See :class:`HubState`.
            commit: Begins to commit a part, after which :meth:`committed` is called; returns at once.
            look: Has the offset store compared with the batch soon; returns at once.
            clock: The system's, but in tests.

        Raises:
            OSError: If nothing can listen there.
        """
        listening = socket.create_server(
            (bind_host, 0), family=socket.AF_INET6 if ":" in bind_host else socket.AF_INET, backlog=_BACKLOG
        )
        self.address = HubAddress.new(host, listening.getsockname()[1])
        """What planner and tasks connect with."""
        self._state = HubState(must_ask=must_ask, slots=slots)
        self._commit = commit
        self._look = look
        self._clock = clock
        self._loop = LineLoop("rocketmq-hub", self, clock)
        self._loop.listen(listening, self.address.key)
        self._loop.start()

    def close(self) -> None:
        """End all connections; tasks stop after the call in hand."""
        self._loop.close()

    # --- the driver, from any of its threads ----------------------------------------------------------------

    def slots_are(self, slots: Slots) -> None:
        """See :meth:`HubState.slots_are`."""
        self._loop.call(lambda: self._act(self._state.slots_are(slots)))

    def batch_begins(self, batch_id: int) -> bool:
        """Before the job of a batch; see :meth:`HubState.batch_begins`."""
        return self._answered(lambda: self._state.batch_begins(batch_id))

    def batch_ends(self, *, could_ask: bool | None) -> Ended:
        """After the job; see :meth:`HubState.batch_ends`."""

        def end() -> Ended:
            self._act(self._state.end_idle())
            return self._state.batch_ends(could_ask=could_ask)

        return self._answered(end)

    def batch_committed(self, plan: int) -> None:
        """Tell the planner that the batch of a plan is over."""
        self._loop.call(lambda: self._act(self._state.batch_committed(plan)))

    def committed(self, part: Part) -> None:
        """Report that a part is committed, or was dropped because its queues are somebody else's."""
        self._loop.call(lambda: self._act(self._state.committed(part)))

    def moved(self, epochs: Mapping[MessageQueue, int]) -> None:
        """Report the epochs that are stored."""
        self._loop.call(lambda: self._act(self._state.moved(epochs)))

    def is_watched(self) -> bool:
        """Whether there are queues whose epochs are to be reported."""
        return self._answered(lambda: self._state.is_watched)

    def stop(self) -> None:
        """Have all tasks stop after the calls in hand."""
        self._loop.call(lambda: self._act(self._state.stop()))

    def _answered(self, question: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001 - who asked raises it
                answer.set_exception(error)

        self._loop.call(ask)
        return answer.result(_ANSWER_S)

    # --- the hub's thread -----------------------------------------------------------------------------------

    def opened(self, link: Link) -> None:
        """See ``Handler``: who it is it says next."""

    def received(self, link: Link, message: Message) -> None:
        """See ``Handler``."""
        try:
            actions = self._heard(link, message)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteProtocolError(
                f"{link.peer}: a message of the kind {message.get('is')!r} is not complete: {error!r}."
            ) from error
        self._act(actions)

    def lost(self, link: Link) -> None:
        """See ``Handler``."""
        self._act(self._state.lost(link, self._clock.monotonic_s()))

    def tick(self, now_s: float) -> None:
        """See ``Handler``."""
        self._act(self._state.tick(now_s))

    def _heard(self, link: Link, message: Message) -> list[Action]:
        match message["is"]:
            case "planner":
                logger.info("planner connected peer=%s", link.peer)
                return self._state.planner_came(link)
            case "plan":
                self._state.plan_made(int(message["plan"]), queue_list(message["queues"], link.peer))
            case "leaving":
                return self._state.must_leave(int(message["plan"]), queue_list(message["queues"], link.peer))
            case "look":
                self._look()
            case "begin":
                return self._state.task_begins(link, _beginning(message))
            case _:
                return self._heard_of_task(link, str(message["task"]), message)
        return []

    def _heard_of_task(self, link: Link, task: str, message: Message) -> list[Action]:
        match message["is"]:
            case "handed":
                return self._state.handed_over(link, task, _part(message["part"], link.peer))
            case "released":
                return self._state.released(link, task, queue_list(message["queues"], link.peer))
            case "idle":
                return self._state.task_idles(link, task, self._clock.monotonic_s())
            case "failed":
                return self._state.task_failed(link, task, self._clock.monotonic_s())
            case "done":
                part = None if message["part"] is None else _part(message["part"], link.peer)
                return self._state.task_done(link, task, part, self._clock.monotonic_s())
            case other:
                raise RemoteProtocolError(f"{link.peer}: a message of the kind {other!r} is not known.")

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Tell(link, message):
                    assert isinstance(link, Link)
                    self._loop.send(link, message)
                case Commit(part):
                    self._commit(part)


def _beginning(message: Message) -> Beginning:
    return Beginning(
        task=str(message["task"]),
        batch_id=int(message["batch"]),
        partition=int(message["partition"]),
        epochs={
            MessageQueue(str(topic), str(broker_name), int(queue_id)): int(epoch)
            for topic, broker_name, queue_id, epoch in message["queues"]
        },
        tasks=int(message["tasks"]),
    )


def _part(facts: Mapping[str, Any], peer: str) -> Part:
    return Part(str(facts["id"]), queue_list(facts["queues"], peer), dict(facts["result"]))
