from __future__ import annotations

from typing import Any

import pytest

from pyspark_rocketmq.client.pool import AclSigner, ChannelPool, ConnectionSettings
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import LocalProtocolError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.requests.pull import PullRequest
from tests.helpers.golden import golden
from tests.helpers.scripted_server import ScriptedServer

SETTINGS = ConnectionSettings(access_key="reader", secret_key="12345678", security_token="token123")


@pytest.mark.parametrize("vector", golden("remoting.json")["acl"], ids=lambda vector: str(vector["fields"]))
def test_a_signature_is_javas(vector: dict[str, Any]) -> None:
    """A5: equal to AclClientRPCHook on the vectors."""
    signer = AclSigner(vector["accessKey"], vector["secretKey"], vector["securityToken"])
    command = RemotingCommand(code=11, ext_fields=vector["fields"], body=(vector["body"] or "").encode())

    assert signer.sign(command).ext_fields == vector["extFields_after_hook"]


def test_every_kind_of_request_is_signed(server: ScriptedServer, soon: Deadline) -> None:
    """A5: plain, oneway and hot-path requests alike."""
    pull = PullRequest(consumer_group="g", queue=MessageQueue("t", "b", 0), queue_offset=0)
    with SETTINGS.open_pool(SystemClock()) as pool:
        channel = pool.get(server.address, soon)
        channel.request(RemotingCommand(code=34, body=b"{}"), soon)
        channel.request(pull, soon)
        channel.oneway(RemotingCommand(code=15, ext_fields={"topic": "t"}))
        sent = [server.next_request() for _ in range(3)]

    for command in sent:
        assert command.ext_fields["AccessKey"] == "reader"
        assert command.ext_fields["SecurityToken"] == "token123"
        assert command.ext_fields["Signature"]
    assert sent[1].ext_fields["queueOffset"] == "0"


def test_a_text_that_utf8_cannot_carry_is_refused_like_without_credentials(
    server: ScriptedServer, soon: Deadline
) -> None:
    """A5: with the error that names the text."""
    with SETTINGS.open_pool(SystemClock()) as pool, pytest.raises(LocalProtocolError, match="surrogate"):
        pool.get(server.address, soon).request(RemotingCommand(code=34, ext_fields={"a": "\ud800"}), soon)


def test_without_credentials_nothing_is_added(
    server: ScriptedServer, pool: ChannelPool, soon: Deadline
) -> None:
    """A5: no empty keys."""
    pool.get(server.address, soon).request(RemotingCommand(code=34), soon)

    assert server.next_request().ext_fields == {}


def test_settings_never_show_their_secrets() -> None:
    """A5: not in a log, a repr or a plan."""
    assert "12345678" not in repr(SETTINGS)
    assert "token123" not in repr(SETTINGS)
