"""Anonymous description of this machine and its software: cores, memory, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("pyspark", "pyarrow", "pandas", "numpy", "deltalake")
_ROCKETMQ = "5.3.3"


def describe_machine() -> str:
    """Return one sentence about the machine and one about the versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        f"{os.cpu_count()} cores ({_cpu_family()}), {_memory_gib():.0f} GiB memory, Linux. "
        f"Python {platform.python_version()}, {packages}, Java {_java_version()}, RocketMQ {_ROCKETMQ}."
    )


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _cpu_family() -> str:
    """Return only the vendor: the exact model would identify the owner rather than explain the figures."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    vendor = next((line.split(":")[1].strip() for line in text.splitlines() if "vendor_id" in line), "")
    return {"AuthenticAMD": "AMD x86-64", "GenuineIntel": "Intel x86-64"}.get(vendor, platform.machine())


def _java_version() -> str:
    # Java prints its version on standard error: openjdk version "17.0.15" 2025-04-15
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    parts = done.stderr.split('"')
    return parts[1] if len(parts) > 1 else "unknown"
