"""The public client of a schema registry."""

from __future__ import annotations

from pyspark_rocketmq.schemas.decoding import BodyDecoder, DecoderSettings
from pyspark_rocketmq.schemas.http_lookup import RegistrySettings


class SchemaRegistry:
    """A schema registry with Confluent's REST form: Confluent's own, or Apicurio at ``…/apis/ccompat/v7``.

    Each process looks a schema up once. If the registry does not answer, a look-up raises
    ``SchemaRegistryDown`` after ``wait_s`` at most. In a listener this suspends the queue without counting an
    attempt: the messages wait, and none is lost or becomes a dead letter. The first look-up of an unknown id
    repeats its request for 3 s, since a server may get a new schema after its first messages have come.

    Args:
        url: Base URL, or several URLs of one registry, which are tried one after the other.
        user: User name for basic authentication; needs ``password``.
        password: The user's password. It is never shown.
        token: Token for bearer authentication. It is never shown.
        ca_file: PEM file with the authorities to trust for ``https``; by default the system's. It must be on
            every machine.
        wait_s: Maximum time of a look-up in seconds, including repeated requests.
        request_timeout_s: Maximum time of a request in seconds.
        not_found_s: Seconds for which an id counts as unknown, without a new request, after a look-up in
            vain.
        legacy_id_mode: Whether the registry is an Apicurio with the setting
            ``apicurio.ccompat.legacy-id-mode.enabled=true``, so that it takes numbers for globalIds. By
            default it takes them for contentIds.

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
        legacy_id_mode: bool = False,
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
            legacy_id_mode=legacy_id_mode,
        )

    @property
    def settings(self) -> RegistrySettings:
        """The settings by which the registry is reached."""
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
                ``rocketmq-connect``. With ``apicurio-headers``, a message that has only the kind of id that
                the registry does not take is a bad record. The frames of ``apicurio`` and
                ``apicurio-legacy`` do not show the kind: have producers write contentIds
                (``apicurio.registry.use-id=contentId``), or globalIds if ``legacy_id_mode`` is set.
            format: ``avro`` (needs the extra ``avro``), ``protobuf`` (needs the extra ``protobuf``) or
                ``json``, for which no schema is looked up.
            reader_schema: Avro schema, as JSON, to whose fields and types values are converted. By default
                they have those of their writer's schema.
            message_type: Name of the protobuf message type, if the file has several. It is used if the frame
                names no type, or names the first type of the file.

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
