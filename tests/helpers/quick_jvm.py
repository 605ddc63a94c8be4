"""Options of the JVMs that tests start: dozens, most of which end soon."""

from __future__ import annotations

QUICK_JVM = (
    # Only C1: a short life would mostly be spent on compiling better code for later.
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    # With only C1 there are 48 MB for code; the session of all tests needs more, or compiles it again and again.
    " -XX:ReservedCodeCacheSize=240m"
    # A Spark driver verifies 20,000 classes before it does anything; these are not the first to load them.
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
