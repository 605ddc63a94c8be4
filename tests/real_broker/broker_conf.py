"""The configuration of a broker that is small, quick to start and otherwise as RocketMQ ships it."""

from __future__ import annotations

from pathlib import Path

# Every delay level waits one second: tests check the order of retries, not RocketMQ's patience.
_DELAY_LEVELS = " ".join(["1s"] * 18)

# Requests wait for the broker's turn as long as it takes: it is no error that the machine is
# busy with tests. By itself a broker refuses what has waited for 200 ms (sends) to 5 s, and
# every send after one that took a second.
_TEMPLATE = """\
brokerClusterName=DefaultCluster
brokerName={name}
brokerId=0
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort={port}
haListenPort={ha_port}
namesrvAddr={name_servers}
storePathRootDir={home}/store
mappedFileSizeCommitLog=67108864
mappedFileSizeConsumeQueue=600000
maxHashSlotNum=10000
maxIndexNum=40000
timerWheelEnable=false
transientStorePoolEnable=false
warmMapedFileEnable=false
flushDiskType=ASYNC_FLUSH
brokerRole=ASYNC_MASTER
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
enablePropertyFilter=true
diskMaxUsedSpaceRatio=90
fileReservedTime=72
messageDelayLevel={delay_levels}
brokerFastFailureEnable=false
osPageCacheBusyTimeOutMills=600000
transactionTimeOut=1000
transactionCheckInterval=1000
"""


def render(*, name: str, port: int, ha_port: int, name_servers: str, home: Path) -> str:
    """Text of ``broker.conf``; every file of the broker is below ``home``."""
    return _TEMPLATE.format(
        name=name,
        port=port,
        ha_port=ha_port,
        name_servers=name_servers,
        home=home,
        delay_levels=_DELAY_LEVELS,
    )
