"""Files over HTTP: streamed both ways, ranges, names of any bytes."""

import base64
import itertools
import random
from collections.abc import Iterator

import httpx2
import pytest

from skerry.model.ids import SandboxId

from .conftest import Server


@pytest.fixture
def base(http: httpx2.Client) -> str:
    return f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}/files"


@pytest.fixture
def ten(http: httpx2.Client, base: str) -> str:
    """A file of ten bytes."""
    http.put(f"{base}/raw", params={"path": "ten"}, content=b"0123456789").raise_for_status()
    return f"{base}/raw?path=ten"


def test_a_file_goes_up_and_comes_down_byte_for_byte(http: httpx2.Client, base: str) -> None:
    content = bytes(range(256)) * 8192
    entry = http.put(f"{base}/raw", params={"path": "dir/big", "mode": "0600"}, content=content).json()
    assert (entry["path"], entry["size_bytes"], entry["mode"]) == ("/workspace/dir/big", len(content), "0600")
    answer = http.get(f"{base}/raw", params={"path": "/workspace/dir/big"})
    assert answer.content == content
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_empty_file_goes_up_and_comes_down(http: httpx2.Client, base: str) -> None:
    assert http.put(f"{base}/raw", params={"path": "empty"}, content=b"").json()["size_bytes"] == 0
    answer = http.get(f"{base}/raw", params={"path": "empty"})
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "0")


@pytest.mark.parametrize("told_bytes", [0, 4096])
@pytest.mark.parametrize("length", [2, 3_000_000])
def test_a_file_that_tells_no_true_size_is_read_to_its_end(
    server: Server, http: httpx2.Client, base: str, told_bytes: int, length: int
) -> None:
    inside = server.provider.guest(SandboxId(base.split("/")[3])).files
    inside.put("/workspace/made-up", b"x" * length)
    inside.told_sizes["/workspace/made-up"] = told_bytes
    answer = http.get(f"{base}/raw?path=made-up")
    assert (answer.status_code, answer.content) == (200, b"x" * length)
    if length < 65_536:
        assert answer.headers["content-length"] == str(length)
        assert base64.b64decode(http.get(f"{base}?path=made-up").json()["content_base64"]) == b"x" * length


@pytest.mark.parametrize(
    ("header", "content", "told"),
    [
        ("bytes=0-0", b"0", "bytes 0-0/10"),
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", b"56789", "bytes 5-9/10"),
        ("Bytes = 1-2", b"12", "bytes 1-2/10"),
    ],
)
def test_a_range_is_answered_with_206(http: httpx2.Client, ten: str, header: str, content: bytes, told: str) -> None:
    answer = http.get(ten, headers={"Range": header})
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, content, told)
    assert answer.headers["content-length"] == str(len(content))


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0"])
def test_a_range_beyond_the_end_is_answered_with_416(http: httpx2.Client, ten: str, header: str) -> None:
    answer = http.get(ten, headers={"Range": header})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
    assert answer.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize("header", ["bytes=0-1,3-4", "lines=0-1", "bytes=5-2", "bytes=-", "bytes=x-y", "nonsense"])
def test_several_ranges_and_nonsense_are_answered_with_the_whole(http: httpx2.Client, ten: str, header: str) -> None:
    answer = http.get(ten, headers={"Range": header})
    assert (answer.status_code, answer.content) == (200, b"0123456789")


def test_a_range_of_a_file_that_has_changed_is_answered_with_the_whole(http: httpx2.Client, ten: str) -> None:
    tag = http.head(ten).headers["etag"]
    assert http.get(ten, headers={"Range": "bytes=0-1", "If-Range": tag}).status_code == 206
    http.put(ten, content=b"abcdefghij")
    assert http.get(ten, headers={"Range": "bytes=0-1", "If-Range": tag}).content == b"abcdefghij"


def test_head_tells_the_size_and_sends_nothing(http: httpx2.Client, ten: str) -> None:
    answer = http.head(ten)
    assert (answer.status_code, answer.content) == (200, b"")
    assert (answer.headers["content-length"], answer.headers["accept-ranges"]) == ("10", "bytes")


def test_a_missing_file_is_not_found_before_anything_is_sent(http: httpx2.Client, base: str) -> None:
    for answer in (
        http.get(f"{base}/raw?path=none"),
        http.get(f"{base}/raw?path=none", headers={"Range": "bytes=0-1"}),
        http.get(f"{base}?path=none"),
        http.get(f"{base}/stat?path=none"),
        http.delete(f"{base}?path=none"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert http.head(f"{base}/raw?path=none").status_code == 404


def test_a_directory_is_no_file(http: httpx2.Client, base: str) -> None:
    for headers in ({}, {"Range": "bytes=0-1"}):
        assert http.get(f"{base}/raw?path=/tmp", headers=headers).status_code == 400


def test_an_upload_without_a_length_is_streamed(http: httpx2.Client, base: str) -> None:
    def chunks() -> Iterator[bytes]:
        for number in range(1000):
            yield f"{number}\n".encode()

    assert http.put(f"{base}/raw?path=lines", content=chunks()).status_code == 200
    assert http.get(f"{base}/raw?path=lines").text.splitlines()[-1] == "999"


def test_an_upload_in_pieces_of_all_sizes_arrives_in_order(http: httpx2.Client, base: str) -> None:
    content = random.Random(7).randbytes(3_000_000)

    def pieces() -> Iterator[bytes]:
        at = 0
        for size in itertools.cycle((1, 3, 700_000, 2, 65_536, 1, 1, 300_000)):
            if not (piece := content[at : at + size]):
                return
            yield piece
            at += size

    assert http.put(f"{base}/raw?path=pieces", content=pieces()).status_code == 200
    assert http.get(f"{base}/raw?path=pieces").content == content


def test_an_upload_over_the_limit_leaves_what_was_there(http: httpx2.Client, base: str, ten: str) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(9):
            yield b"x" * 1024 * 1024

    answer = http.put(ten, content=endless())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert http.get(ten).content == b"0123456789"


def test_an_upload_that_breaks_leaves_what_was_there(server: Server, http: httpx2.Client, ten: str) -> None:
    def broken() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("the client dies")

    with (
        httpx2.Client(base_url=server.url, headers={"X-API-Key": server.key}) as other,
        pytest.raises(RuntimeError, match="dies"),
    ):
        other.put(ten, content=broken())
    assert http.get(ten).content == b"0123456789"


@pytest.mark.parametrize(
    "name", ["✓ 🎉", "a\nb", "quo\"te'", "100%", "--help", "e\u0301", "é", "x" * 255, "a?b#c&d=e+f"]
)
def test_names_of_every_kind_come_back_as_they_were(http: httpx2.Client, base: str, name: str) -> None:
    http.put(f"{base}/raw", params={"path": name}, content=b"x").raise_for_status()
    (entry,) = http.get(f"{base}/list").json()["data"]
    assert (entry["name"], entry["name_base64"]) == (name, None)
    assert http.get(f"{base}/raw", params={"path": name}).content == b"x"
    assert http.delete(base, params={"path": name}).status_code == 204


def test_a_name_that_is_no_text_is_written_shown_and_read(http: httpx2.Client, base: str) -> None:
    http.put(f"{base}/raw?path=a%ffb", content=b"x").raise_for_status()
    (entry,) = http.get(f"{base}/list?path=/workspace").json()["data"]
    assert entry["name"] == "a\ufffdb"
    assert base64.b64decode(entry["name_base64"]) == b"a\xffb"
    assert http.get(f"{base}/raw?path=a%ffb").content == b"x"
    assert http.get(f"{base}/raw?path=a%fe").status_code == 404


def test_directories_are_made_moved_and_removed(http: httpx2.Client, base: str) -> None:
    assert http.post(f"{base}/mkdir", json={"path": "a/b"}).json()["type"] == "dir"
    http.put(f"{base}/raw?path=a/b/file", content=b"x")
    assert http.post(f"{base}/move", json={"source": "a", "target": "c"}).json()["path"] == "/workspace/c"
    assert http.get(f"{base}/stat?path=c/b/file").json()["size_bytes"] == 1
    assert http.delete(f"{base}?path=c").json()["error"]["code"] == "not_empty"
    assert http.delete(f"{base}?path=c&recursive=true").status_code == 204
    assert http.get(f"{base}/list").json()["data"] == []


@pytest.mark.parametrize(
    ("call", "body", "field"),
    [
        ("", {"path": "a", "content_base64": "not base64!"}, "content_base64"),
        ("", {"path": "", "content_base64": ""}, "path"),
        ("", {"path": "a\0", "content_base64": ""}, "path"),
        ("", {"content_base64": ""}, "path"),
        ("/mkdir", {"path": "a", "mode": "9"}, "mode"),
        ("/move", {"source": "a"}, "target"),
        ("/move", {"source": "a", "target": "b", "force": True}, "force"),
    ],
)
def test_a_wrong_body_names_the_field(http: httpx2.Client, base: str, call: str, body: object, field: str) -> None:
    answer = http.post(base + call, json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize("query", ["", "?path=", "?path=a%00b", "?path=" + "x" * 5000, "?path=a&paht=b"])
def test_a_wrong_path_is_refused(http: httpx2.Client, base: str, query: str) -> None:
    answer = http.get(f"{base}/raw{query}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "paht" if "paht" in query else "path")


def test_files_of_a_destroyed_sandbox_are_a_conflict(http: httpx2.Client, base: str) -> None:
    http.delete(base.removesuffix("/files"))
    answer = http.get(f"{base}/list")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "sandbox_destroyed")
