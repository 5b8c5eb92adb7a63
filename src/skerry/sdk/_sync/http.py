"""Calls to the server over kept-alive connections: errors as ours, retries where a second try is safe."""

import os
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import httpx2

from skerry import __version__
from skerry.model.errors import Invalid, ProtocolError, SkerryError
from skerry.sdk._sync.clock import sleep
from skerry.sdk._sync.early import notice_early_answers
from skerry.sdk.backoff import delay_s, seconds_of
from skerry.sdk.errors import Unreachable, error_from
from skerry.sdk.settings import is_loopback

CONNECT_S, WRITE_S, POOL_S = 10.0, 60.0, 60.0
# PATCH, too: Skerry's replaces whole members.
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "PATCH", "DELETE"})
_PASSING = frozenset({502, 503, 504})
REPEAT_KEY = "Idempotency-Key"
_ADDRESSES = 256  # kept as they were parsed
# All that the library below lets out when the network or the peer fails. ssl's errors are OSErrors.
_FAULTS = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)

Param = str | int | bool | None | Sequence[str]
Params = Mapping[str, Param]
Content = bytes | Callable[[], Iterator[bytes]]
"""A body: bytes, or what begins to make it, and begins anew where the call is made again."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call. `again`: it may be made twice. `stream`: the answer's body is left unread."""

    method: str
    target: str
    headers: Mapping[str, str]
    timeout: httpx2.Timeout
    content: Content | None = None
    again: bool = False
    stream: bool = False


class Upload:
    """A body as it is made. `raised` is what its source raised: the caller's own error, and none of the network."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.raised: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                yield chunk
        except Exception as error:
            self.raised = error
            raise


class Http:
    """One pool of connections to one server. `retries` is how often a failed call is made again."""

    def __init__(self, url: str, api_key: str, *, timeout_s: float, retries: int) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self.retries = retries
        try:
            self._client = httpx2.Client(
                base_url=url,
                headers={"Authorization": f"Bearer {api_key}", "User-Agent": f"skerry-python/{__version__}"},
                # Setting up TLS costs 40 ms: not where the address is plain HTTP anyway.
                verify=url.startswith("https:"),
                trust_env=not is_loopback(url),
                limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=200, keepalive_expiry=30.0),
            )
        except httpx2.InvalidURL as error:
            raise Invalid(f"{url!r} is no server address: {error}.", field="url") from error
        except (OSError, ValueError) as error:  # SSL_CERT_FILE, HTTPS_PROXY and the like
            raise Invalid(f"The environment's settings for TLS or a proxy cannot be used: {error}.") from error
        notice_early_answers(self._client)
        self._addresses: dict[str, httpx2.URL] = {}

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        timeout_s: float | None = None,
        once: bool = False,
        again: bool = False,
    ) -> bytes:
        """The body of the answer. `body` is JSON.

        `once`: the route knows a request again that is sent twice, so that a POST, too, is sent again where it is not
        known what became of it. `again`: the route does nothing more when it is asked twice.

        Raises:
            SkerryError: What the server refused, or Unreachable.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if once:
            headers[REPEAT_KEY] = secrets.token_urlsafe(18)
        again = again or once or method in _IDEMPOTENT
        asked = _Asked(method, path + query(params), headers, self._timeout(timeout_s), body, again)
        return (self._exchange(asked)).content

    def put(
        self,
        path: str,
        *,
        params: Params,
        content: Content,
        kind: str = "application/octet-stream",
        timeout_s: float | None = None,
        again: bool = True,
    ) -> bytes:
        """PUT bytes. `again`: `content` can be sent once more where the connection broke."""
        headers = {"Content-Type": kind}
        asked = _Asked("PUT", path + query(params), headers, self._timeout(timeout_s), content, again)
        return (self._exchange(asked)).content

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        again: bool = False,
    ) -> Generator[Iterator[bytes]]:
        """The bytes of an answer as they arrive, without a deadline between them.

        Until it begins the call is made again as others are; one that breaks off later raises Unreachable.
        """
        timeout = httpx2.Timeout(None, connect=CONNECT_S, write=WRITE_S, pool=POOL_S)
        given = {"Accept-Encoding": "identity", **(headers or {})}
        again = again or method in _IDEMPOTENT
        asked = _Asked(method, path + query(params), given, timeout, again=again, stream=True)
        response = self._exchange(asked)
        try:
            yield self._bytes(response)
        finally:
            response.close()

    def _bytes(self, response: httpx2.Response) -> Iterator[bytes]:
        try:
            for chunk in response.iter_raw():
                yield chunk
        except _FAULTS as error:
            raise self._failure(error) from error

    def _exchange(self, asked: _Asked) -> httpx2.Response:
        if self._client.is_closed:
            raise Invalid("This client was closed. Make a new one.")
        retries = self.retries if asked.again or asked.content is None or isinstance(asked.content, bytes) else 0
        attempt = 0
        while True:
            asked_s: float | None = None
            upload = Upload(asked.content()) if callable(asked.content) else None
            try:
                response = self._send(asked, upload)
            except _FAULTS as error:
                if upload is not None and upload.raised is not None:
                    raise upload.raised from None
                failure, again = self._failure(error), asked.again or _never_sent(error)
            else:
                if response.is_success:
                    return response
                failure, asked_s = _refusal(response), seconds_of(response.headers.get("Retry-After"))
                # 429 is said before anything was done.
                again = response.status_code == 429 or (response.status_code in _PASSING and asked.again)
            if not again or attempt >= retries:
                raise failure
            sleep(delay_s(attempt, failure, asked_s))
            attempt += 1

    def _send(self, asked: _Asked, upload: Upload | None) -> httpx2.Response:
        content = upload if upload is not None else asked.content
        request = self._client.build_request(
            asked.method,
            self._address(asked.target),
            content=content,  # pyright: ignore[reportArgumentType]
            headers=asked.headers,
            timeout=asked.timeout,
        )
        response = self._client.send(request, stream=True)
        if asked.stream and response.is_success:
            return response
        try:
            response.read()
        finally:
            response.close()
        return response

    def _address(self, target: str) -> httpx2.URL:
        """Parsed once: that takes as long as sending the request."""
        address = self._addresses.get(target)
        if address is None:
            if len(self._addresses) >= _ADDRESSES:
                self._addresses.clear()
            address = self._addresses[target] = self._client.build_request("GET", target).url
        return address

    def close(self) -> None:
        self._client.close()

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries, the key among it: for WebSockets, which are opened elsewhere."""
        return {name: self._client.headers[name] for name in ("Authorization", "User-Agent")}

    def _timeout(self, timeout_s: float | None) -> httpx2.Timeout:
        read = self._timeout_s if timeout_s is None else timeout_s
        return httpx2.Timeout(read, connect=CONNECT_S, write=WRITE_S, pool=POOL_S)

    def _failure(self, error: Exception) -> SkerryError:
        if isinstance(error, httpx2.DecodingError):
            return ProtocolError(f"The server at {self.url} sent what cannot be decoded. Is a proxy in between?")
        if isinstance(error, httpx2.ReadTimeout):
            why = "did not answer in time"
        elif _never_sent(error):
            why = "cannot be reached"
        else:
            why = "closed the connection"
        failure = Unreachable(
            f"The server at {self.url} {why} ({error or type(error).__name__}). Is it running? `skerry up` starts it."
        )
        failure.__cause__ = error
        return failure


def _never_sent(error: Exception) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def _refusal(response: httpx2.Response) -> SkerryError:
    return error_from(response.status_code, response.content, response.headers.get("Retry-After"))


def query(params: Params | None) -> str:
    """`params` as a query string. A lone surrogate (a name that is not UTF-8) travels as the byte it stands for."""
    if not params:
        return ""
    pairs = [
        f"{name}={_quoted(one)}"
        for name, value in params.items()
        if value is not None
        for one in ([value] if isinstance(value, str | int) else value)
    ]
    return "?" + "&".join(pairs) if pairs else ""


def segment(word: str) -> str:
    """An id or a name as one segment of a path.

    Raises:
        Invalid: It can be none.
    """
    if word in ("", ".", "..") or "/" in word or not word.isprintable():
        raise Invalid(f"{word[:200]!r} is no id and no name.")
    return quote(word, safe="")


def _quoted(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return quote(os.fsencode(value) if isinstance(value, str) else str(value), safe="/")
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{str(value)[:200]!r} holds a lone surrogate that stands for no byte: no name can be it."
        ) from error
