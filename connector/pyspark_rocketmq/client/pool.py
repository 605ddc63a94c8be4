"""Connection settings, request signing, and a process's pools with one channel per address."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from pyspark_rocketmq.client.channel import Channel, RequestHandler
from pyspark_rocketmq.client.tls import TlsConnector
from pyspark_rocketmq.client.transport import Closing, Connect, TcpTransport, Transport, renew_in_children
from pyspark_rocketmq.clock import Clock, Deadline, SystemClock
from pyspark_rocketmq.errors import ChannelClosed, ConnectFailed, RocketMQError
from pyspark_rocketmq.options.connection import ConnectionOptions
from pyspark_rocketmq.wire.command import (
    ACCESS_KEY,
    NAMESPACE,
    NAMESPACED,
    SECURITY_TOKEN,
    SIGNATURE,
    RemotingCommand,
    signature,
)
from pyspark_rocketmq.wire.framing import Signer

HandlerFor = Callable[[str], RequestHandler]
"""Returns the handler for the requests that the server at an address sends to this client."""
OnChannel = Callable[[Channel | RocketMQError], object]
"""Gets an open channel, or the error that prevented it."""
_pools: dict[ConnectionSettings, ChannelPool] = {}
"""This process's pools by settings. In a forked child they begin without connections."""


class AclSigner:
    """Adds ``AccessKey``, ``SecurityToken`` and ``Signature`` to a request's ext fields."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._credentials = {ACCESS_KEY: access_key}
        if security_token:
            self._credentials[SECURITY_TOKEN] = security_token
        self._secret = secret_key.encode()

    def sign(self, command: RemotingCommand) -> RemotingCommand:
        """Return the command with credentials; its ext fields and body must not change afterwards."""
        fields = {**command.ext_fields, **self._credentials}
        fields[SIGNATURE] = signature(self._secret, fields, command.body)
        return replace(command, ext_fields=fields)


@dataclass(frozen=True, slots=True)
class InstanceFields:
    """Adds the ext fields that name a cloud's instance, before credentials are added.

    Source: RocketMQ 5.3.3 ``NamespaceRpcHook``, which runs before ``AclClientRPCHook``.
    """

    namespace_v2: str
    then: Signer | None = None
    """Signer that is called afterwards, to add credentials."""

    def sign(self, command: RemotingCommand) -> RemotingCommand:
        """Return the command with the instance's fields, and with those that ``then`` adds."""
        named = {**command.ext_fields, NAMESPACED: "true", NAMESPACE: self.namespace_v2}
        command = replace(command, ext_fields=named)
        return command if self.then is None else self.then(command)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Connects to other addresses than those that brokers announce."""

    addresses: Mapping[str, str]
    """Addresses to connect to, by announced address. An address without an entry is used unchanged."""
    inner: Connect

    def connect(self, address: str, timeout_s: float) -> Transport:
        """Connect to the server that a broker announces as ``address``, perhaps at another address.

        Raises:
            ConnectFailed: If no connection could be opened; it names both addresses if they differ.
        """
        instead = self.addresses.get(address)
        if instead is None:
            return self.inner(address, timeout_s)
        try:
            return self.inner(instead, timeout_s)
        except ConnectFailed as error:
            shown = f"{instead} (which brokerAddresses gives for {address})"
            raise type(error)(shown, error.detail) from error


class ChannelPool(Closing):
    """One channel (a connection) per address, for any number of threads.

    A channel is opened when it is first needed, and again after it has ended.

    As in the Java client, one connection per server carries everything: pulls, commits, heartbeats, sends.
    Only the pulls of tasks have connections of their own (``pull_connection``).
    The pool decides under its lock; it connects, waits and closes outside it.
    """

    def __init__(
        self,
        clock: Clock,
        connect_timeout_s: float = 3.0,
        handler_for: HandlerFor | None = None,
        *,
        connect: Connect = TcpTransport.connect,
        signer: Signer | None = None,
    ) -> None:
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._handler_for = handler_for
        self._connect = connect
        self._signer = signer
        self._lock = threading.Lock()
        self._channels: dict[str, Future[Channel]] = {}
        """Channels by address; while a thread is connecting, the future is not done."""
        self._opened: Counter[str] = Counter()
        self._leaving: list[Channel] = []
        """Channels replaced because the server sent GO_AWAY, but still awaiting answers."""
        self._is_closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()``: begin without connections; the parent's remain open."""
        self._lock = threading.Lock()
        self._channels = {}
        self._leaving = []

    def get(self, address: str, deadline: Deadline) -> Channel:
        """Return an open channel to ``address``; one caller connects, and others wait for it.

        Raises:
            ConnectFailed: If no connection could be opened before ``deadline`` or within the connect
                time-out.
            ChannelClosed: If the pool is closed.
        """
        found, is_ours = self._place(address)
        if is_ours:
            return self._fill(found, address, deadline)
        try:
            return found.result(deadline.remaining_s())
        except FutureTimeout:
            raise ConnectFailed(
                address, "the time limit passed while another thread was still connecting"
            ) from None
        except ConnectFailed as error:
            raise type(error)(address, error.detail) from error

    def get_soon(self, address: str, deadline: Deadline, on_channel: OnChannel) -> None:
        """Pass an open channel to ``address``, or the error, to ``on_channel``, exactly once; do not wait.

        ``on_channel`` is called immediately if there is an open channel or the pool is closed, otherwise on a
        thread that connects. If no thread can be started, because the process is about to end (Python 3.12
        and later), the calling thread connects.
        """
        try:
            found, is_ours = self._place(address)
        except ChannelClosed as error:
            on_channel(error)
            return
        # Added before the future is done, so that callbacks are called in the order of the requests.
        found.add_done_callback(lambda place: on_channel(_outcome_in(place, address)))
        if not is_ours:
            return

        def connect() -> None:
            # The callbacks get the error.
            with suppress(Exception):
                self._fill(found, address, deadline)

        try:
            threading.Thread(target=connect, name=f"rocketmq-connect {address}", daemon=True).start()
        except RuntimeError:
            connect()

    def _place(self, address: str) -> tuple[Future[Channel], bool]:
        """Return the future of the channel to ``address``, and whether the caller must connect and set it."""
        with self._lock:
            if self._is_closed:
                raise ChannelClosed(address, "this process has closed its connections")
            found = self._channels.get(address)
            if found is not None and not _is_dead(found):
                return found, False
            self._leaving = [*(one for one in self._leaving if not one.has_ended), *_channel_in(found)]
            found = self._channels[address] = Future()
            self._opened[address] += 1
            return found, True

    def opened(self, address: str) -> int:
        """Return how many connections to ``address`` were opened so far, or tried.

        While the number stays the same, the server has not been restarted.
        """
        with self._lock:
            return self._opened[address]

    def close(self) -> None:
        """Close all channels; requests under way fail with ``ChannelClosed``. Idempotent."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, {}
            leaving, self._leaving = self._leaving, []
        # A thread that is still connecting closes its channel itself.
        for channel in [*leaving, *(one for place in channels.values() for one in _channel_in(place))]:
            channel.close()

    def _fill(self, place: Future[Channel], address: str, deadline: Deadline) -> Channel:
        try:
            transport = self._connect(address, min(self._connect_timeout_s, deadline.remaining_s()))
            handler = None if self._handler_for is None else self._handler_for(address)
            channel = Channel(transport, self._clock, request_handler=handler, signer=self._signer)
        except BaseException as error:
            with self._lock:
                if self._channels.get(address) is place:
                    del self._channels[address]
            place.set_exception(error)
            raise
        place.set_result(channel)
        with self._lock:
            is_closed = self._is_closed
        if is_closed:
            channel.close()
            raise ChannelClosed(address, "this process has closed its connections")
        return channel


def _outcome_in(place: Future[Channel], address: str) -> Channel | RocketMQError:
    """Return the channel of a completed future, or the error of connecting.

    Each caller gets a ``ConnectFailed`` of its own, because a shared exception would mix their tracebacks.
    """
    error = place.exception()
    if error is None:
        return place.result()
    if isinstance(error, ConnectFailed):
        return type(error)(address, error.detail)
    return error if isinstance(error, RocketMQError) else ConnectFailed(address, repr(error))


def _is_dead(place: Future[Channel]) -> bool:
    return place.done() and (place.exception() is not None or not place.result().is_open)


def _channel_in(place: Future[Channel] | None) -> list[Channel]:
    if place is None or not place.done() or place.exception() is not None:
        return []
    return [place.result()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Settings of connections; picklable, hashable, and printed without secrets."""

    connect_timeout_s: float = 3.0
    access_key: str | None = field(default=None, repr=False)
    """User's name; with it and ``secret_key``, requests are signed."""
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    use_tls: bool = False
    tls_ca_file: str | None = None
    """PEM file of the authorities to trust; None means the system's."""
    tls_cert_file: str | None = None
    """PEM file of this client's certificate chain, for servers that ask for one."""
    tls_key_file: str | None = None
    """PEM file of the client certificate's private key; None means that the key is in ``tls_cert_file``."""
    tls_key_password: str | None = field(default=None, repr=False)
    tls_verify_certificate: bool = True
    """False accepts any certificate, as the Java client does in its test mode (its default)."""
    tls_verify_hostname: bool = True
    """False accepts a trusted certificate that was issued for another host."""
    namespace_v2: str | None = None
    """Id of the instance that every request names, for clusters that require it."""
    broker_addresses: tuple[tuple[str, str], ...] = ()
    """Pairs of an address that a broker announces and the address to connect to instead."""

    @classmethod
    def of(cls, options: ConnectionOptions) -> ConnectionSettings:
        """Return the settings in the options of a source or a sink."""
        names = (each.name for each in fields(cls) if each.name != "connect_timeout_s")
        return cls(**{name: getattr(options, name) for name in names})

    def open_pool(self, clock: Clock, handler_for: HandlerFor | None = None) -> ChannelPool:
        """Create a pool of channels with these settings; nothing is connected yet.

        Raises:
            OptionError: If a certificate or key file cannot be used.
        """
        return ChannelPool(
            clock, self.connect_timeout_s, handler_for, connect=self.connector(), signer=self.signer()
        )

    def connector(self) -> Connect:
        """Return the function that opens a connection, with TLS if ``use_tls`` is set.

        ``broker_addresses`` replace the addresses that brokers announce.

        Raises:
            OptionError: If a certificate or key file cannot be used.
        """
        connect = _tls_connector(self).connect if self.use_tls else TcpTransport.connect
        if not self.broker_addresses:
            return connect
        return Elsewhere(dict(self.broker_addresses), connect).connect

    def signer(self) -> Signer | None:
        """Return a function that adds ``namespace_v2`` and a signature to requests; None if neither is set.

        Requests are signed if there are an access key and a secret key.
        """
        signer: Signer | None = None
        if self.access_key is not None and self.secret_key is not None:
            signer = AclSigner(self.access_key, self.secret_key, self.security_token).sign
        return signer if self.namespace_v2 is None else InstanceFields(self.namespace_v2, signer).sign


@lru_cache(maxsize=16)
def _tls_connector(settings: ConnectionSettings) -> TlsConnector:
    """Return the TLS connector of these settings.

    It is cached: a worker that connects for every task must not read the certificate files each time.
    """
    return TlsConnector(
        ca_file=settings.tls_ca_file,
        cert_file=settings.tls_cert_file,
        key_file=settings.tls_key_file,
        key_password=settings.tls_key_password,
        verify_certificate=settings.tls_verify_certificate,
        verify_hostname=settings.tls_verify_hostname,
    )


def process_pool(settings: ConnectionSettings | None = None) -> ChannelPool:
    """Return this process's pool for ``settings``, open until the process ends; do not close it."""
    key = settings or ConnectionSettings()
    found = _pools.get(key)
    if found is not None:
        return found
    # No lock, because a fork could leave it held: setdefault is atomic, and an unused pool opens nothing.
    made = key.open_pool(SystemClock())
    kept = _pools.setdefault(key, made)
    if kept is made:
        atexit.register(made.close)
    return kept
