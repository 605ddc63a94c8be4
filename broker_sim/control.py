"""Commands to a simulator in another process: one line of JSON each, answered by one line of JSON.

``{"do": NAME, …}`` → ``{"ok": true, …}`` or ``{"ok": false, "error": "…"}``, in order.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from broker_sim.cluster import AsyncCluster
from broker_sim.nameserver import MASTER_ID

_Command = Callable[..., Awaitable[Mapping[str, object]]]
_DONE: Mapping[str, object] = {}


class ControlLine:
    """Executes commands, which come from tests in another process, on a cluster of this process.

    Call its methods on the cluster's event loop.
    """

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._commands: Mapping[str, _Command] = {
            "fault": self._fault,
            "pending-faults": self._pending_faults,
            "clear-faults": self._clear_faults,
            "stop-broker": self._stop_broker,
            "start-broker": self._start_broker,
            "refuse-connections": self._refuse_connections,
            "accept-connections": self._accept_connections,
            "replica-lag": self._replica_lag,
            "promote-replica": self._promote_replica,
        }

    async def obey(self, line: str | bytes) -> str:
        """Execute the command in ``line``; return the answer's line, without its end."""
        try:
            answer = {"ok": True, **await self._do(line)}
        except (ValueError, TypeError) as error:
            answer = {"ok": False, "error": str(error)}
        return json.dumps(answer)

    async def _do(self, line: str | bytes) -> Mapping[str, object]:
        command: Any = json.loads(line)
        if not isinstance(command, dict):
            raise ValueError("A command is a JSON object.")  # noqa: TRY004 - one kind of error for the caller
        name = command.pop("do", None)
        run = self._commands.get(name) if isinstance(name, str) else None
        if run is None:
            raise ValueError(f"There is no command {name!r}; the commands are {', '.join(self._commands)}.")
        return await run(**command)

    async def _fault(
        self,
        name: str,
        on: int | None = None,
        times: int = 1,
        where: str | None = None,
        **options: object,
    ) -> Mapping[str, object]:
        self._cluster.faults.add(name, on=on, times=times, where=where, **options)
        return _DONE

    async def _pending_faults(self) -> Mapping[str, object]:
        return {"pending": self._cluster.faults.pending}

    async def _clear_faults(self) -> Mapping[str, object]:
        self._cluster.faults.clear()
        return _DONE

    async def _stop_broker(self, broker: str, broker_id: int = MASTER_ID) -> Mapping[str, object]:
        await self._cluster.machines(broker).stop(broker_id)
        return _DONE

    async def _start_broker(self, broker: str, broker_id: int = MASTER_ID) -> Mapping[str, object]:
        await self._cluster.machines(broker).start(broker_id)
        return _DONE

    async def _refuse_connections(self, broker: str) -> Mapping[str, object]:
        self._cluster.machines(broker).refuse_connections()
        return _DONE

    async def _accept_connections(self, broker: str) -> Mapping[str, object]:
        self._cluster.machines(broker).accept_connections()
        return _DONE

    async def _replica_lag(self, broker: str, messages: int, broker_id: int = 1) -> Mapping[str, object]:
        self._cluster.machines(broker).set_lag(broker_id, messages)
        return _DONE

    async def _promote_replica(self, broker: str, broker_id: int = 1) -> Mapping[str, object]:
        await self._cluster.machines(broker).promote(broker_id)
        return {"address": str(self._cluster.machines(broker).host())}
