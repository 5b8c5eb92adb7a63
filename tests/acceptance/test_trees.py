"""Directories as tar streams, many files in one call, watching, processes and ports, on real sandboxes."""

import base64
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import Sandbox, Skerry


def speaking(server: Server, sandbox: Sandbox) -> httpx2.Client:
    """Speaks plain HTTP about one sandbox."""
    url = f"{server.url}/v1/sandboxes/{sandbox.id}/"
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {server.key}"}, timeout=120)


@pytest.fixture
def http(server: Server, sandbox: Sandbox) -> Iterator[httpx2.Client]:
    with speaking(server, sandbox) as client:
        yield client


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


END = bytes(1024)


def put_tar(http: httpx2.Client, path: str, content: Any) -> Any:
    answer = http.put("files/tar", params={"path": path}, content=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


def git(work: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    return subprocess.run(["git", *settings, *arguments], cwd=work, check=True, capture_output=True, text=True).stdout


def unpack_here(content: bytes, path: Path) -> None:
    path.mkdir()
    subprocess.run(["tar", "-xpf", "-", "-C", path], input=content, check=True)


@on_both
def test_a_git_work_tree_goes_up_and_comes_down_clean(http: httpx2.Client, sandbox: Sandbox, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "src/deep/er").mkdir(parents=True)
    for number in range(200):
        (work / f"src/deep/{number}.py").write_text(f"print({number})\n")
    (work / "run").write_text("#!/bin/sh\n")
    (work / "run").chmod(0o755)
    (work / "src/link").symlink_to("deep/1.py")
    (work / "schön ☃").write_text("x")
    git(work, "init", "-q")
    git(work, "add", ".")
    git(work, "commit", "-qm", "first")
    (work / "empty").mkdir()
    os.utime(work / "run", ns=(0, 1_234_567_890_123_456_789))
    packed = subprocess.run(
        ["tar", "-C", work, "--format=posix", "-cf", "-", "."], check=True, capture_output=True
    ).stdout
    told = put_tar(http, "/workspace/work", packed)
    assert told["skipped"] == []
    status = "git -c safe.directory=/workspace/work -C /workspace/work status --porcelain"
    inside = sandbox.commands.run(f"command -v git >/dev/null || exit 77; {status}")
    assert inside.exit_code == 77 or (inside.exit_code, inside.stdout) == (0, "")
    assert sandbox.commands.run("stat -c '%a %y' work/run").stdout.startswith("755 2009-02-13 23:31:30.12345678")

    answer = http.get("files/tar", params={"path": "/workspace/work"})
    assert answer.headers["content-type"] == "application/x-tar"
    unpack_here(answer.content, tmp_path / "back")
    assert git(tmp_path / "back", "status", "--porcelain") == ""
    assert (tmp_path / "back/src/link").readlink() == Path("deep/1.py")
    assert (tmp_path / "back/empty").is_dir()
    assert (tmp_path / "back/run").stat().st_mode & 0o777 == 0o755


@on_both
def test_a_hostile_tar_is_refused_entry_by_entry(http: httpx2.Client, sandbox: Sandbox) -> None:
    hostile = [
        entry("/etc/evil", data=b"x"),
        entry("../evil", data=b"x"),
        entry("out", tarfile.SYMTYPE, linkname="/etc"),
        entry("out/evil", data=b"x"),
        entry("up", tarfile.SYMTYPE, linkname="../.."),
        entry("up/evil", data=b"x"),
        entry("hard", tarfile.LNKTYPE, linkname="/etc/passwd"),
        entry("hard2", tarfile.LNKTYPE, linkname="out/passwd"),
        entry("zero", tarfile.CHRTYPE, devmajor=1, devminor=5),
        entry("disk", tarfile.BLKTYPE, devmajor=8),
        entry("pipe", tarfile.FIFOTYPE),
        entry("holes", data=b"d", pax_headers={"GNU.sparse.realsize": str(1 << 40)}),
        entry("setuid", data=b"x", mode=0o6755),
        entry("fine", data=b"fine"),
    ]
    told = put_tar(http, "in", b"".join(hostile) + END)
    skipped = {each["path"]: each["reason"] for each in told["skipped"]}
    refused = {"/etc/evil", "../evil", "out/evil", "up/evil", "hard", "hard2", "zero", "disk", "pipe", "holes"}
    assert set(skipped) == refused and all(skipped.values())
    assert (told["count"], told["skipped_count"]) == (4, 10)
    listed = sandbox.commands.run("ls -A in; ls /etc/evil /evil /workspace/evil 2>/dev/null; stat -c %a in/setuid")
    assert listed.stdout.split() == ["fine", "out", "setuid", "up", "755"]


@on_both
def test_a_million_entries_and_a_terabyte_are_bounded(http: httpx2.Client, sandbox: Sandbox) -> None:
    def million() -> Iterator[bytes]:
        block = entry("/refused") * 1000
        for _ in range(1000):
            yield block

    begin = time.monotonic()
    answer = http.put("files/tar", params={"path": "many"}, content=million())
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "limit")
    assert time.monotonic() - begin < 110
    answer = http.put("files/tar", params={"path": "huge"}, content=entry("huge", size=1 << 40) + bytes(100_000))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "limit")
    assert sandbox.commands.run("ls -A huge; ls -A many").stdout == ""
    sandbox.commands.run("mkdir sparse && truncate -s 1T sparse/hole && echo x > sparse/small && mkfifo sparse/fifo")
    down = http.get("files/tar", params={"path": "sparse"})
    with tarfile.open(fileobj=io.BytesIO(down.content)) as archive:
        found = {info.name: info for info in archive}
    assert set(found) == {"small", "."} and len(down.content) < 100_000
    told = json.loads(found["."].pax_headers["SKERRY.skipped"])
    assert {each["path"] for each in told["skipped"]} == {"hole", "fifo"}


@on_both
def test_a_full_disk_is_told_and_no_broken_file_is_left(server: Server, client: Skerry) -> None:
    def too_much() -> Iterator[bytes]:
        yield entry("first", data=b"1" * 1000) + entry("big", size=400 << 20)
        for _ in range(400):
            yield os.urandom(1 << 20)

    with client.create("python", disk_mb=128) as sandbox, speaking(server, sandbox) as http:
        answer = http.put("files/tar", params={"path": "full"}, content=too_much())
        assert answer.json()["error"]["code"] in ("quota", "no_space")
        assert sandbox.commands.run("ls -A full").stdout.split() == ["first"]


@on_both
def test_500_files_of_4_kb_go_up_in_one_call(http: httpx2.Client, sandbox: Sandbox) -> None:
    content = base64.b64encode(os.urandom(4096)).decode()
    files = [{"path": f"d{n % 10}/{n}", "content_base64": content} for n in range(500)]
    took: list[float] = []
    for round in range(5):
        begin = time.perf_counter()
        answer = http.put("files/batch", json={"path": f"/workspace/{round}", "files": files})
        took.append(round and time.perf_counter() - begin)
        assert answer.json()["count"] == 500
    assert sandbox.commands.run("find 1 -type f -size 4096c | wc -l").stdout.strip() == "500"
    print(f"500 × 4 KB in one call: {sorted(took)[2] * 1000:.0f} ms")


@on_both
def test_a_watch_tells_what_a_command_does_until_the_sandbox_ends(http: httpx2.Client, sandbox: Sandbox) -> None:
    with http.stream("GET", "files/watch", params={"recursive": "true"}) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith(("event: ", "data: ")))
        assert [next(lines), next(lines)] == ["event: watching", "data: {}"]
        sandbox.commands.run("mkdir d; echo x > d/f; mv d/f d/g; rm d/g")
        seen: list[tuple[str, str]] = []
        while ("removed", "/workspace/d/g") not in seen:
            kind, data = next(lines)[7:], next(lines)[6:]
            seen.append((kind, json.loads(data)["path"]))
        assert ("created", "/workspace/d") in seen
        assert ("moved_from", "/workspace/d/f") in seen and ("moved_to", "/workspace/d/g") in seen
        sandbox.destroy()
        assert next(lines) == "event: error"


@on_both
def test_processes_and_ports_are_listed_with_their_command(http: httpx2.Client, sandbox: Sandbox) -> None:
    script = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8123, bind='127.0.0.1')"
    running = sandbox.commands.start(["python3", "-c", script])
    eventually("it listens", lambda: 8123 in {port["port"] for port in http.get("ports").json()["data"]})
    [port] = [port for port in http.get("ports").json()["data"] if port["port"] == 8123]
    assert (port["address"], port["family"], port["uid"]) == ("127.0.0.1", "ipv4", 0)
    found = [process for process in http.get("processes").json()["data"] if process["command_id"] == running.id]
    assert any(process["argv"][:2] == ["python3", "-c"] for process in found)
    assert all(process["memory_bytes"] > 0 and process["uid"] == 0 for process in found)
    assert port["pid"] in (None, *[process["pid"] for process in found])
    print("pid of the port:", port["pid"], "started_at", found[0]["started_at"], found[0]["cpu_ms"])
    names = {process["name"] for process in http.get("processes").json()["data"]}
    assert not names & {"sbxd", "sbxd-keeper", "sbxd-worker"}


@on_both
def test_touching_a_file_sets_its_time(http: httpx2.Client, sandbox: Sandbox) -> None:
    made = http.post("files/touch", json={"path": "new/file"}).json()
    assert abs(time.time() - float(sandbox.commands.run("stat -c %Y new/file").stdout)) < 60
    assert made["size_bytes"] == 0
    http.post("files/touch", json={"path": "new/file", "modified_at": "2001-02-03T04:05:06Z"}).raise_for_status()
    assert sandbox.commands.run("stat -c %Y new/file").stdout.strip() == "981173106"
