"""Calls to the server over kept-alive connections: errors as ours, retries where a second try is safe."""

import os
import secrets
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

import httpx2

from skerry import __version__
from skerry.model.errors import Invalid, SkerryError
from skerry.sdk._sync.clock import sleep
from skerry.sdk._sync.early import notice_early_answers
from skerry.sdk.backoff import delay_s, seconds_of
from skerry.sdk.errors import Unreachable, error_from
from skerry.sdk.settings import is_loopback

CONNECT_S, WRITE_S, POOL_S = 10.0, 60.0, 60.0
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_PASSING = frozenset({502, 503, 504})
REPEAT_KEY = "Idempotency-Key"

Params = Mapping[str, str | int | bool | None]


class Http:
    """One pool of connections to one server. `retries` is how often a failed call is made again."""

    def __init__(self, url: str, api_key: str, *, timeout_s: float, retries: int) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._retries = retries
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
        notice_early_answers(self._client)

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        timeout_s: float | None = None,
        once: bool = False,
    ) -> bytes:
        """The body of the answer. `body` is JSON.

        `once`: the route knows a request again that is sent twice, so that a POST, too, is sent again where it is not
        known what became of it.

        Raises:
            SkerryError: What the server refused, or Unreachable.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if once:
            headers[REPEAT_KEY] = secrets.token_urlsafe(18)
        return self._exchange(method, path + query(params), body, headers, timeout_s, self._retries)

    def put(
        self, path: str, *, params: Params, content: bytes | Iterator[bytes], timeout_s: float | None = None
    ) -> bytes:
        """PUT bytes. Bytes at hand are sent again where the connection broke; a stream is read once."""
        retries = self._retries if isinstance(content, bytes) else 0
        headers = {"Content-Type": "application/octet-stream"}
        return self._exchange("PUT", path + query(params), content, headers, timeout_s, retries)

    def _exchange(
        self,
        method: str,
        target: str,
        content: bytes | Iterator[bytes] | None,
        headers: dict[str, str],
        timeout_s: float | None,
        retries: int,
    ) -> bytes:
        repeatable = method in _IDEMPOTENT or REPEAT_KEY in headers
        timeout = self._timeout(timeout_s)
        attempt = 0
        while True:
            asked_s: float | None = None
            try:
                response = self._client.request(method, target, content=content, headers=headers, timeout=timeout)
            except httpx2.TransportError as error:
                failure, again = self._unreachable(error), repeatable or _never_sent(error)
            else:
                if response.status_code < 400:
                    return response.content
                failure, asked_s = _refusal(response), seconds_of(response.headers.get("Retry-After"))
                # 429 is said before anything was done.
                again = response.status_code == 429 or (response.status_code in _PASSING and repeatable)
            if not again or attempt >= retries:
                raise failure
            sleep(delay_s(attempt, failure, asked_s))
            attempt += 1

    @contextmanager
    def stream(
        self, path: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Generator[Iterator[bytes]]:
        """The bytes of an answer as they arrive, without a deadline between them."""
        timeout = httpx2.Timeout(None, connect=CONNECT_S, write=WRITE_S, pool=POOL_S)
        given = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            with self._client.stream(method, path + query(params), headers=given, timeout=timeout) as response:
                if response.status_code >= 400:
                    response.read()
                    raise _refusal(response)
                yield self._bytes(response)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def _bytes(self, response: httpx2.Response) -> Iterator[bytes]:
        try:
            for chunk in response.iter_raw():
                yield chunk
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        self._client.close()

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries, the key among it: for WebSockets, which are opened elsewhere."""
        return {name: self._client.headers[name] for name in ("Authorization", "User-Agent")}

    def _timeout(self, timeout_s: float | None) -> httpx2.Timeout:
        read = self._timeout_s if timeout_s is None else timeout_s
        return httpx2.Timeout(read, connect=CONNECT_S, write=WRITE_S, pool=POOL_S)

    def _unreachable(self, error: httpx2.TransportError) -> SkerryError:
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


def _never_sent(error: httpx2.TransportError) -> bool:
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)


def _refusal(response: httpx2.Response) -> SkerryError:
    return error_from(response.status_code, response.content, response.headers.get("Retry-After"))


def query(params: Params | None) -> str:
    """`params` as a query string. A lone surrogate (a name that is not UTF-8) travels as the byte it stands for."""
    if not params:
        return ""
    pairs = [f"{name}={_quoted(value)}" for name, value in params.items() if value is not None]
    return "?" + "&".join(pairs) if pairs else ""


def _quoted(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return quote(os.fsencode(value) if isinstance(value, str) else str(value), safe="/")
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{str(value)[:200]!r} holds a lone surrogate that stands for no byte: no name can be it."
        ) from error
