"""Access control 2.0 of a broker: who sent a request, and may they (the ``auth`` module of RocketMQ 5.3.3).

Every refusal is code 16. The name server of 5.3.3 asks nobody, so this one does not either.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_sim.peers import Outgoing, Peer
from broker_sim.replies import in_json, reply
from broker_sim.rights import Action, Need, needs_of
from broker_sim.server import Endpoint
from pyspark_rocketmq.errors import RemoteProtocolError
from pyspark_rocketmq.wire.codes import ResponseCode
from pyspark_rocketmq.wire.command import ACCESS_KEY, SIGNATURE, RemotingCommand, signature

_ANYTHING = "*"
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_NEWEST_THAT_LEAVES_IT_UNSIGNED = 399  # V4_9_3


@dataclass(frozen=True, slots=True)
class Policy:
    """What a user may, or may not, do to some resources."""

    resource: str
    """``Topic:orders``, ``Topic:ord*``, ``Group:*``, ``Cluster:*`` or ``*``."""
    actions: frozenset[Action] = frozenset({Action.ALL})
    is_allowed: bool = True

    def fits(self, need: Need) -> bool:
        """Whether this says anything about ``need``."""
        if self.actions.isdisjoint(need.actions) and Action.ALL not in self.actions:
            return False
        if self.resource.endswith(_ANYTHING):
            return need.resource.startswith(self.resource[:-1])
        return need.resource == self.resource

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The least counts: exact names before prefixes, long ones before short ones, no before yes."""
        return self.resource.endswith(_ANYTHING), -len(self.resource), self.is_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who may sign requests."""

    access_key: str
    secret_key: str = field(repr=False)
    is_super: bool = False
    """Whether everything is allowed."""
    is_enabled: bool = True
    policies: tuple[Policy, ...] = ()


class AccessControl:
    """Pure: a request in, the reason to refuse it out."""

    def __init__(self, users: Iterable[User]) -> None:
        self._users = {user.access_key: user for user in users}

    def problem(self, ip: str, command: RemotingCommand) -> str | None:
        """Why a request from ``ip`` is refused, in the broker's words; None when it is not."""
        name = command.ext_fields.get(ACCESS_KEY)
        if not name:
            return "username cannot be null."
        user = self._users.get(name)
        if user is None:
            return f"User:{name} is not found."
        if not user.is_enabled:
            return f"User:{name} is disabled."
        if not _is_signed(user, command):
            return "check signature failed."
        return None if user.is_super else _first_denial(user, command, ip)


def _is_signed(user: User, command: RemotingCommand) -> bool:
    fields = command.ext_fields
    if command.version <= _NEWEST_THAT_LEAVES_IT_UNSIGNED:
        fields = {name: value for name, value in fields.items() if name != _UNIQUE_KEY_QUERY}
    expected = signature(user.secret_key.encode(), fields, command.body)
    return hmac.compare_digest(expected.encode(), fields.get(SIGNATURE, "").encode())


def _first_denial(user: User, command: RemotingCommand, ip: str) -> str | None:
    try:
        needs = needs_of(command)
    except RemoteProtocolError:
        return "parse authorization context error."
    return next((problem for need in needs if (problem := _denial(user, need, ip))), None)


def _denial(user: User, need: Need, ip: str) -> str | None:
    """Source: ``AclAuthorizationHandler``."""
    fitting = sorted((policy for policy in user.policies if policy.fits(need)), key=lambda each: each.rank)
    if fitting and fitting[0].is_allowed:
        return None
    detail = "the decision is deny." if fitting else "no matched policies."
    return f"User:{user.access_key} has no permission to access {need.resource} from {ip}, {detail}"


class Guarded:
    """An endpoint that serves only what access control lets through."""

    def __init__(self, inner: Endpoint, access: AccessControl, *, mirror_header_form: bool = False) -> None:
        self._inner = inner
        self._access = access
        self._mirror_header_form = mirror_header_form

    @property
    def name(self) -> str:
        """That of the endpoint inside."""
        return self._inner.name

    def handle(self, peer: Peer, command: RemotingCommand) -> list[Outgoing]:
        """Refuse, or let the endpoint answer."""
        problem = None if command.is_response else self._access.problem(peer.host.ip, command)
        if problem is None:
            return self._inner.handle(peer, command)
        if command.is_oneway:
            return []
        answer = reply(command, ResponseCode.NO_PERMISSION, problem)
        return [Outgoing(peer, answer if self._mirror_header_form else in_json(answer), command.code)]

    def connection_closed(self, peer: Peer) -> list[Outgoing]:
        """Tell the endpoint."""
        return self._inner.connection_closed(peer)

    def look_at_clock(self) -> list[Outgoing]:
        """Tell the endpoint."""
        return self._inner.look_at_clock()

    def next_deadline_s(self) -> float | None:
        """The endpoint's."""
        return self._inner.next_deadline_s()
