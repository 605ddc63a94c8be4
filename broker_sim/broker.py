"""One broker without its sockets: a request in, answers and pushes out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker_sim.consumer_requests import notify_members
from broker_sim.dispatch import handle_request
from broker_sim.layout import UNKNOWN_HOST, Host
from broker_sim.peers import Outgoing, Peer
from broker_sim.pull import let_go
from broker_sim.replies import Refused, in_json, reply
from broker_sim.settings import BrokerSettings
from broker_sim.state import BrokerState
from broker_sim.storing import as_run, deliver_due, store_run
from broker_sim.transactions import check_due
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand

_logger = logging.getLogger(__name__)


class Broker:
    """Decides every answer; whoever owns the sockets calls it from one thread and sends what it returns."""

    def __init__(self, name: str, clock: Clock, settings: BrokerSettings | None = None) -> None:
        self.state = BrokerState.create(name, clock, settings or BrokerSettings(), UNKNOWN_HOST)

    @property
    def name(self) -> str:
        """Broker name, part of every message queue."""
        return self.state.name

    def listening_at(self, host: Host) -> None:
        """Take the address that is written into messages from now on."""
        self.state.host = host

    def put(self, queue: MessageQueue, messages: Sequence[Message]) -> int:
        """Store messages without a producer; the first one's queue offset. Held pulls are let go."""
        run = as_run(queue, messages, born_timestamp=int(self.state.clock.now_s() * 1000))
        return store_run(self.state, run).queue_offset

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Answer one request; a held pull is answered by a later call of this or another method."""
        if command.is_response:
            self.state.client_calls.answered(peer, command)
            return [self._in_allowed_form(each) for each in self._drain()]
        answer = self._answer(peer, command)
        outgoing = self._drain()
        if answer is not None and not command.is_oneway:
            outgoing.insert(0, Outgoing(peer, answer, command.code))
        return [self._in_allowed_form(each) for each in outgoing]

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Forget the connection: its held pulls and memberships, but not its locks."""
        self.state.held_pulls.forget(peer)
        self.state.producers.connection_closed(peer)
        self.state.client_calls.connection_closed(peer)
        for group in self.state.membership.connection_closed(peer):
            notify_members(self.state, group)
        return [self._in_allowed_form(each) for each in self._drain()]

    def look_at_clock(self) -> list[Outgoing]:
        """Deliver delayed messages, end held pulls whose time is over, drop silent members and old messages."""
        state = self.state
        deliver_due(state)
        check_due(state)
        if state.settings.retention_s is not None:
            state.store.drop_stored_before(state.now_ms() - int(state.settings.retention_s * 1000))
        for pull in state.held_pulls.expired(state.clock.monotonic_s()):
            state.outbox.append(let_go(state, pull))
        for group in state.membership.expire():
            notify_members(state, group)
        state.producers.expire()
        state.client_calls.expire(state.clock.monotonic_s())
        return [self._in_allowed_form(each) for each in self._drain()]

    def next_deadline_s(self) -> float | None:
        """Monotonic time at which :meth:`look_at_clock` has work, as far as known."""
        state = self.state
        deadlines_s = (
            state.held_pulls.next_deadline_s(),
            state.delayed.next_due_s(),
            state.timers.next_due_s(),
            min((half.due_s for half in state.half_messages.values()), default=None),
            state.client_calls.next_deadline_s(),
        )
        return min((each for each in deadlines_s if each is not None), default=None)

    def restarted(self) -> None:
        """Lose what a real broker keeps only in memory; messages, topics and offsets stay."""
        self.state.locks.clear()
        self.state.membership.clear()
        self.state.producers.clear()
        self.state.client_calls.clear()
        self.state.held_pulls.clear()

    def _answer(self, peer: Peer, command: RemotingCommand) -> RemotingCommand | None:
        try:
            return handle_request(self.state, peer, command)
        except Refused as refused:
            return reply(command, refused.code, refused.remark, ext_fields=refused.ext_fields)
        except RemoteProtocolError as error:
            return reply(command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            _logger.exception("%s could not handle request code %d.", self.name, command.code)
            return reply(command, ResponseCode.SYSTEM_ERROR, repr(error))

    def _drain(self) -> list[Outgoing]:
        outgoing = self.state.outbox
        self.state.outbox = []
        return outgoing

    def _in_allowed_form(self, outgoing: Outgoing) -> Outgoing:
        if self.state.settings.mirror_header_form:
            return outgoing
        return outgoing._replace(command=in_json(outgoing.command))
