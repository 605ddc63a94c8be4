"""A name server or broker process that can be stopped and started again at the same address."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.real_broker.errors import HarnessError
from tests.real_broker.java_process import JavaProcess

_START_TIMEOUT_S = 180.0
_POLL_S = 0.05
_BIND_ATTEMPTS = 3


class PortTaken(Exception):
    """Another process was faster to bind the port; worth another try with another one."""


def await_condition(condition: Callable[[], bool], what_failed: str) -> None:
    """Wait until ``condition`` holds.

    Raises:
        HarnessError: If it does not within three minutes.
    """
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not condition():
        if time.monotonic() >= deadline_s:
            raise HarnessError(f"{what_failed} within {_START_TIMEOUT_S:g} s.")
        time.sleep(_POLL_S)


@dataclass(slots=True)
class Server:
    """One Java server; ``process`` is None while it is stopped."""

    name: str
    address: str
    command: list[str]
    environment: dict[str, str]
    log_file: Path
    process: JavaProcess | None = None

    def start(self) -> None:
        """Start the process without waiting for it."""
        self.process = JavaProcess(self.command, self.environment, self.log_file)

    def await_start(self, is_up: Callable[[], bool]) -> None:
        """Wait until ``is_up`` holds.

        Raises:
            PortTaken: If the process ended because it could not bind.
            HarnessError: If it ended for another reason or is not up in time; the text has its last output.
        """
        try:
            await_condition(lambda: self._has_ended() or is_up(), f"{self.name} was not up")
        except HarnessError as exc:
            raise HarnessError(f"{exc} Its output ends with:\n{self._log_tail()}") from exc
        if self._has_ended():
            tail = self._log_tail()
            if "BindException" in tail or "Address already in use" in tail:
                raise PortTaken
            raise HarnessError(f"{self.name} ended while starting. Its output ends with:\n{tail}")

    def kill(self) -> None:
        """End it as a crash would; nothing happens if it is stopped."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def _has_ended(self) -> bool:
        return self.process is None or self.process.has_ended

    def _log_tail(self) -> str:
        return "" if self.process is None else self.process.log_tail()


def started(make: Callable[[], Server], is_up: Callable[[Server], bool], stack: ExitStack) -> Server:
    """Return a server for which ``is_up`` holds; ``make`` is called again if its port was taken.

    ``stack`` kills it.

    Raises:
        HarnessError: If three ports in a row were taken, or the server did not come up.
    """
    for _ in range(_BIND_ATTEMPTS):
        server = make()
        stack.callback(server.kill)
        server.start()
        with suppress(PortTaken):
            server.await_start(partial(is_up, server))
            return server
    raise HarnessError(f"No free ports were found in {_BIND_ATTEMPTS} attempts to start a server.")
