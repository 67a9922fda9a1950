"""Kinesis: the client, its options and errors, and the target `kinesis`.

RisingWave, "Sink to AWS Kinesis", "Ingest data from Kinesis".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

from watersmeet.connectors.base.messages import MessageTarget
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed

_CREDENTIALS: Final = "aws.credentials."
STREAM_OPTIONS: Final = (
    OptionSpec("stream", "The stream.", is_needed=True),
    OptionSpec("aws.region", "The region.", is_needed=True),
    OptionSpec("endpoint", "The URL of the service, if it is not the region's.", aliases=("aws.endpoint",)),
    OptionSpec(f"{_CREDENTIALS}access_key_id", "The key's id; if missing, the environment's credentials.", secret=True),
    OptionSpec(f"{_CREDENTIALS}secret_access_key", "The key.", secret=True),
    OptionSpec(f"{_CREDENTIALS}session_token", "The token of temporary credentials.", secret=True),
    OptionSpec(f"{_CREDENTIALS}role.arn", "The role to assume."),
    OptionSpec(f"{_CREDENTIALS}role.external_id", "The external id with which the role is assumed."),
)
SINK_OPTIONS: Final = OptionSet("kinesis of sinks", STREAM_OPTIONS)
#: The limits of a request of PutRecords.
_RECORDS, _BYTES = 500, 5 << 20
#: The maximum characters of a partition key.
_KEY_CHARACTERS: Final = 256
#: The time after which records that the service does not take make the target unavailable.
_PATIENCE_S: Final = 15.0
_CONNECT_S, _ANSWER_S = 5, 30
#: The codes of errors on which an administrator must act.
_FORBIDDEN: Final = (
    *("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "InvalidClientTokenId"),
    *("ExpiredTokenException", "SignatureDoesNotMatch", "AccessDenied", "IncompleteSignature"),
)
_MISSING: Final = "ResourceNotFoundException"
_REFUSED: Final = ("InvalidArgumentException", "ValidationException", "SerializationException")


def library() -> ModuleType:
    """The module boto3. Raises LIBRARY_MISSING if it is not installed."""
    return process.library("boto3", "streams of Kinesis")


@dataclass(frozen=True)
class KinesisStream:
    """A stream, and how the client logs in. credentials: the options without their prefix, which may refer to
    secrets.
    """

    name: str
    region: str
    endpoint: str
    credentials: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The stream, for messages."""
        return f'stream "{self.name}" of Kinesis in {self.region}'


def kinesis_stream(options: Options) -> KinesisStream:
    """The stream in the options of a statement. Raises CONNECTOR_OPTION."""
    given = {
        spec.name.removeprefix(_CREDENTIALS): options.text(spec.name)
        for spec in STREAM_OPTIONS
        if spec.name.startswith(_CREDENTIALS) and options.text(spec.name)
    }
    if ("access_key_id" in given) != ("secret_access_key" in given):
        refuse(f"{_CREDENTIALS}access_key_id and {_CREDENTIALS}secret_access_key need each other")
    if "role.external_id" in given and "role.arn" not in given:
        refuse(f"{_CREDENTIALS}role.external_id needs {_CREDENTIALS}role.arn")
    endpoint = options.text("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    return KinesisStream(options.needed("stream"), options.needed("aws.region"), endpoint, given)


def kinesis_client(stream: KinesisStream) -> Any:
    """A client of boto3 for the service. Raises CONNECTOR_OPTION, Unavailable."""
    boto3 = library()
    config = process.library("botocore.config", "streams of Kinesis").Config(
        connect_timeout=_CONNECT_S, read_timeout=_ANSWER_S, retries={"max_attempts": 2, "mode": "standard"}
    )
    keys = {name: revealed(value) for name, value in stream.credentials.items()}
    login = {
        "aws_access_key_id": keys.get("access_key_id"),
        "aws_secret_access_key": keys.get("secret_access_key"),
        "aws_session_token": keys.get("session_token"),
        "region_name": stream.region,
    }
    place = {"endpoint_url": stream.endpoint or None, "config": config}
    with explained(stream):
        session = boto3.Session(**login)
        if "role.arn" in keys:
            asked = {"RoleArn": keys["role.arn"], "RoleSessionName": "watersmeet"}
            if "role.external_id" in keys:
                asked["ExternalId"] = keys["role.external_id"]
            given = session.client("sts", **place).assume_role(**asked)["Credentials"]
            login |= {
                "aws_access_key_id": given["AccessKeyId"],
                "aws_secret_access_key": given["SecretAccessKey"],
                "aws_session_token": given["SessionToken"],
            }
            session = boto3.Session(**login)
        return session.client("kinesis", **place)


@contextlib.contextmanager
def explained(stream: KinesisStream) -> Iterator[None]:
    """Converts errors of the client: Unavailable for temporary problems, UNDEFINED_OBJECT for a missing stream,
    CONNECTOR_OPTION if an administrator must act, DELIVERY_REFUSED for records that are never accepted.
    """
    errors = process.library("botocore.exceptions", "streams of Kinesis")
    try:
        yield
    except errors.ClientError as cause:
        said = cause.response.get("Error", {})
        raise _failure(stream, said.get("Code", ""), said.get("Message", str(cause))) from None
    except (errors.NoCredentialsError, errors.PartialCredentialsError) as cause:
        raise error(
            "CONNECTOR_OPTION", f"no credentials for {stream.shown}", detail=str(cause), hint="Write aws.credentials.…"
        ) from None
    except (errors.InvalidRegionError, errors.ParamValidationError, ValueError) as cause:
        raise error("CONNECTOR_OPTION", f"{stream.shown} can't be used: {cause}") from None
    except (errors.BotoCoreError, errors.HTTPClientError, OSError) as cause:
        if isinstance(cause, Unavailable):
            raise
        raise Unavailable(f"{stream.shown} can't be reached: {cause}") from None


def _failure(stream: KinesisStream, code: str, message: str) -> Error | Unavailable:
    if code == _MISSING:
        return error("UNDEFINED_OBJECT", f"there is no {stream.shown}", hint="Create it first.")
    if code in _FORBIDDEN:
        return error(
            "CONNECTOR_OPTION",
            f"{stream.shown} refuses the credentials",
            detail=f"{code}: {message}",
            hint="Check aws.credentials.… and the rights of the user.",
        )
    if code in _REFUSED:
        return error("DELIVERY_REFUSED", f"{stream.shown} refuses records: {message}", detail=f"{code}.")
    return Unavailable(f"{stream.shown} takes nothing now: {code}: {message}")


class KinesisTarget(MessageTarget):
    """See `MessageTarget`: the records of a stream. The key of a message, as text, is its partition key.

    Records that the service does not take are sent again behind later ones of the same request, so records of a key
    may change places; RisingWave's do as well.
    """

    title = "kinesis"
    takes = ("plain", "upsert", "debezium")

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._stream = kinesis_stream(SINK_OPTIONS.read(delivery.connector))
        if not delivery.key:
            refuse("connector kinesis of sinks needs a key", hint="Name its columns: primary_key = 'a, b'.")
        self._client: Any = None
        super().__init__(delivery, database_id, self._stream.name)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> None:
        self._client = kinesis_client(self._stream)
        with explained(self._stream):
            self._client.describe_stream_summary(StreamName=self._stream.name)

    def _send(self, keys: pa.BinaryArray, values: pa.BinaryArray, name: str) -> None:
        del name
        listed = [
            {"PartitionKey": key.decode("utf-8", "replace")[:_KEY_CHARACTERS], "Data": value or b""}
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)
        ]
        begin = 0
        while begin < len(listed):
            end, size = begin, 0
            while end < len(listed) and end - begin < _RECORDS:
                size += len(listed[end]["Data"]) + len(listed[end]["PartitionKey"].encode())
                if size > _BYTES and end > begin:
                    break
                end += 1
            self._put(listed[begin:end])
            begin = end

    def _put(self, records: list[dict[str, Any]]) -> None:
        end_s, wait_s = time.monotonic() + _PATIENCE_S, 0.05
        while True:
            with explained(self._stream):
                answer = self._client.put_records(StreamName=self._stream.name, Records=records)
            failed = [(r, a) for r, a in zip(records, answer["Records"], strict=True) if "ErrorCode" in a]
            if not failed:
                return
            if time.monotonic() > end_s:
                first = failed[0][1]
                raise Unavailable(
                    f"{self._stream.shown} takes nothing now: {first['ErrorCode']}: {first.get('ErrorMessage', '')}"
                )
            records = [record for record, _ in failed]
            time.sleep(wait_s)
            wait_s = min(1.0, 2 * wait_s)
