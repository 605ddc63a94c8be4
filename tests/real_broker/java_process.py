"""One Java process: started with small heaps, watched, ended by its own id."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.quick_jvm import QUICK_JVM
from tests.real_broker.artifacts import require_program

_JVM_FLAGS = (
    *QUICK_JVM.split(),
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
_LOGGING = Path(__file__).parent / "rmq.logback.xml"
_LOG_TAIL_BYTES = 4000


def java_command(
    home: Path,
    main_class: str,
    arguments: Sequence[str],
    *,
    heap: Sequence[str],
    options: Sequence[str] = (),
) -> list[str]:
    """Command line of a RocketMQ program that keeps all its files under ``home``."""
    java = require_program("java", "install a JDK of version 17 or later")
    properties = [
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        f"-Drmq.logback.configurationFile={_LOGGING}",
    ]
    return [java, *_JVM_FLAGS, *heap, *properties, *options, main_class, *arguments]


def configure_old_logs(home: Path) -> None:
    """Put a log configuration where servers before 5.0 look for it, which do not start without one."""
    conf = home / "conf"
    conf.mkdir(exist_ok=True)
    for name in ("namesrv", "broker"):
        (conf / f"logback_{name}.xml").write_text("<configuration/>", encoding="ascii")


def java_environment(classpath: Sequence[Path]) -> dict[str, str]:
    """Environment with CLASSPATH set: a wildcard there is expanded by Java, not by a shell."""
    return {**os.environ, "CLASSPATH": os.pathsep.join(map(str, classpath))}


class JavaProcess:
    """A running Java program whose output goes to a file."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log_file: Path) -> None:
        self._log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C goes only to the test run; the run then stops its processes in order.
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """The system's number of it."""
        return self._process.pid

    def log_tail(self) -> str:
        """The end of what it printed."""
        return self._log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def kill(self) -> None:
        """End it as a crash would: nothing is saved or said goodbye to."""
        self._process.kill()
        self._process.wait()
