"""The public client of a schema registry."""

from __future__ import annotations

from pyspark_rocketmq.schemas.decoding import BodyDecoder, DecoderSettings
from pyspark_rocketmq.schemas.http_lookup import RegistrySettings


class SchemaRegistry:
    """A schema registry with Confluent's REST form: Confluent's own, or Apicurio at ``…/apis/ccompat/v7``.

    Each process looks a schema up once. While the registry is away, a look-up lasts up to ``wait_s`` and
    raises ``SchemaRegistryDown``. In a listener this suspends the queue, without counting an attempt, so that
    nothing is lost or becomes a dead letter.

    Args:
        url: Base URL, or several of one registry, which are tried in turn.
        user: Name for basic authentication, with ``password``.
        password: Its password; shown nowhere.
        token: Token for bearer authentication; shown nowhere.
        ca_file: PEM file with the authorities to trust for ``https``; by default the system's. It must be on
            every machine.
        wait_s: Maximum time of a look-up in seconds, with repetitions.
        request_timeout_s: Maximum time of a request in seconds.
        not_found_s: Seconds for which an unknown id is not asked for again.

    Raises:
        OptionError: If an argument is wrong.
    """

    def __init__(
        self,
        url: str | list[str] | tuple[str, ...],
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        wait_s: float = 10.0,
        request_timeout_s: float = 5.0,
        not_found_s: float = 10.0,
    ) -> None:
        urls = (url,) if isinstance(url, str) else tuple(url)
        self._settings = RegistrySettings(
            urls=tuple(each.rstrip("/") for each in urls),
            user=user,
            password=password,
            token=token,
            ca_file=ca_file,
            wait_s=wait_s,
            request_timeout_s=request_timeout_s,
            not_found_s=not_found_s,
        )

    @property
    def settings(self) -> RegistrySettings:
        """How the registry is reached."""
        return self._settings

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._settings.urls)})"

    def decoder(
        self,
        *,
        framing: str = "confluent",
        format: str = "avro",  # noqa: A002 - the name that users expect
        reader_schema: str | None = None,
        message_type: str | None = None,
    ) -> BodyDecoder:
        """Return a decoder for a listener.

        Args:
            framing: How bodies name their schema: ``confluent``, ``confluent-headers``, ``apicurio``,
                ``apicurio-legacy``, ``apicurio-headers``, ``rocketmq-avro``, ``rocketmq-json`` or
                ``rocketmq-connect``.
            format: ``avro`` (needs the extra ``avro``), ``protobuf`` (the extra ``protobuf``) or ``json``,
                whose schemas are not looked up.
            reader_schema: Avro schema, as JSON, to whose fields and types values are brought; by default
                they are as their writer's schema has them.
            message_type: Protobuf message type, if neither the frame nor a file with only one type names it.

        Raises:
            OptionError: If an argument is wrong, or the extra is not installed.
        """
        return BodyDecoder(
            DecoderSettings.of(
                self._settings,
                framing=framing,
                body_format=format,
                reader_schema=reader_schema,
                message_type=message_type,
            )
        )
