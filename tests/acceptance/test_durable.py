"""Sandboxes that are come back to: stopped, resumed, reclaimed, restored from the object store."""

import ast
import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import CommandResult, Conflict, Invalid, NotFound, Sandbox, SandboxGone, Skerry, SkerryError
from skerry.model.ids import TreeId
from skerry.providers.local import LocalProvider

# Everything that an archive has to bring back, made inside and described inside, as text that can be compared.
ODD_TREE = r"""
import os, socket
os.umask(0)
b = b"/workspace/odd"
os.mkdir(b)
def put(name, data=b"x", mode=0o644):
    path = os.path.join(b, name)
    with open(path, "wb") as file: file.write(data)
    os.chmod(path, mode)
    return path
put(b"empty", b"")
put(b"run", b"#!/bin/sh\necho ran\n", 0o755)
put(b"secret", b"s", 0o600)
put(b"sticky and set", b"s", 0o4755)
put(b"\xff\xfe not utf-8", b"bytes")
put("émoji 🦀".encode(), b"crab")
put(b" leading, trailing ", b"spaces")
put(b"new\nline\ttab", b"control")
put(b"-rf", b"dash")
put(b"n" * 255, b"long")
os.link(put(b"one", b"linked"), os.path.join(b, b"two"))
os.symlink(b"one", os.path.join(b, b"good link"))
os.symlink(b"../../etc/passwd", os.path.join(b, b"link out"))
os.symlink(b"\xff nowhere", os.path.join(b, b"dangling"))
os.symlink(b".", os.path.join(b, b"loop"))
os.mkdir(os.path.join(b, b"empty directory"), 0o700)
os.makedirs(os.path.join(b, b"a/b/c"))
with open(os.path.join(b, b"sparse"), "wb") as file:
    for at in (0, 1 << 20, 3 << 30, (5 << 30) - 4):
        file.seek(at)
        file.write(b"data")
with open(os.path.join(b, b"all hole"), "wb") as file: file.truncate(1 << 40)
with open(os.path.join(b, b"big"), "wb") as file:
    for n in range(64): file.write(os.urandom(1 << 20))
socket.socket(socket.AF_UNIX).bind(os.path.join(b, b"socket"))
os.mkfifo(os.path.join(b, b"fifo"))
path = put(b"dated", b"old")
os.utime(path, ns=(10**18 + 123456789, 987654321123456789))
os.utime(os.path.join(b, b"a"), ns=(1, 86400 * 10**9 + 7))
os.chown(os.path.join(b, b"a/b"), 1000, 2000)
"""
DESCRIBE = r"""
import hashlib, os, stat
inodes = {}
def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        # gVisor finds no holes, and reading gigabytes of them takes it a minute: samples do.
        places = range(0, end, 1 << 20) if end <= 1 << 30 else [*range(0, end, 1 << 20), end - 4]
        for at in places:
            file.seek(at)
            data = file.read(1 << 20 if end <= 1 << 30 else 4)
            if data.strip(b"\0"): h.update(b"%d" % at + data)
    return h.hexdigest()
for top, names, files in os.walk(b"/workspace/odd"):
    names.sort()
    for name in [b"."] + sorted(names + files):
        path = os.path.join(top, name)
        s = os.lstat(path)
        if stat.S_ISSOCK(s.st_mode) or stat.S_ISFIFO(s.st_mode): continue
        told = [path, oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns if not stat.S_ISLNK(s.st_mode) else 0]
        if stat.S_ISREG(s.st_mode):
            told += [s.st_size, s.st_nlink, inodes.setdefault(s.st_ino, path)]
            told.append("sparse" if s.st_size > 1 << 30 and s.st_blocks < 1 << 16 else "")
            told.append(digest(path) if s.st_size < 1 << 39 else "")
        if stat.S_ISLNK(s.st_mode): told.append(os.readlink(path))
        print(told)
"""


def python(box: Sandbox, program: str, timeout_s: int = 120) -> str:
    result = box.commands.run(["python3", "-"], stdin=program, timeout_s=timeout_s)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def forget_on_the_node(server: Server, box: Sandbox) -> None:
    """Lose the node's copy of a stopped sandbox's files, so that only the object store has them."""

    async def drop() -> None:
        provider = LocalProvider(server.config.node_socket)
        try:
            await provider.drop(TreeId(box.id))
        finally:
            await provider.close()

    assert box.refresh().status == "stopped"
    asyncio.run(drop())


def status(box: Sandbox) -> str:
    return box.refresh().status


@on_both
def test_f8_twenty_stops_each_with_a_file_half_by_idleness_and_nothing_is_lost(client: Skerry, server: Server) -> None:
    with client.create("python", idle_timeout_s=1) as box:
        for number in range(20):
            box.commands.run(f"echo {number} > {number}; touch /root/installed /tmp/here /usr/local/bin/tool")
            if number % 2:
                eventually("it is reclaimed", lambda: status(box) == "stopped", within_s=30, every_s=0.1)
            else:
                box.stop()
            assert status(box) == "stopped"
            if number % 5 == 4:
                forget_on_the_node(server, box)
            left = box.commands.run("cat $(seq 0 99) 2>/dev/null; ls /root /tmp /usr/local/bin").stdout
            assert left.splitlines()[: number + 1] == [str(n) for n in range(number + 1)]
            assert not {"installed", "here", "tool"} & set(left.split())


@on_both
def test_every_kind_of_file_comes_back_exact_from_the_object_store(
    client: Skerry, server: Server, runtime: str
) -> None:
    with client.create("python") as box:
        python(box, ODD_TREE)
        before = python(box, DESCRIBE)
        assert before.count("\n") > 25
        box.stop()
        archive = box.refresh().info.archive
        assert archive is not None
        # gVisor keeps sockets and FIFOs to itself: they are no files of the host.
        assert archive.skipped == (0 if runtime == "runsc" else 2)
        forget_on_the_node(server, box)
        box.resume()
        after = python(box, DESCRIBE)
        if runtime == "runsc":
            assert_equal_but_for_milliseconds(before, after)
        else:
            assert after == before
        # And by the short way.
        box.stop()
        box.resume()
        assert python(box, DESCRIBE) == after


def assert_equal_but_for_milliseconds(before: str, after: str) -> None:
    """gVisor tells times of its own while it runs, and leaves those of its last writes to the host when it is ended."""
    for old, new in zip(before.splitlines(), after.splitlines(), strict=True):
        was, now = ast.literal_eval(old), ast.literal_eval(new)
        assert abs(was.pop(4) - now.pop(4)) < 2 * 10**9
        assert was == now
    for exact in ("dated", "odd/a'"):  # what a program has set is kept to the nanosecond
        assert [line for line in before.splitlines() if exact in line] == [
            line for line in after.splitlines() if exact in line
        ]


DEEP = """
import os
os.chdir("/workspace")
for n in range(1000):
    os.mkdir("d" * 40)
    os.chdir("d" * 40)
open("bottom", "w").write("x")
"""
HOW_DEEP = """
import os
os.chdir("/workspace")
n = 0
while os.path.isdir("d" * 40):
    os.chdir("d" * 40)
    n += 1
print(n, open("bottom").read())
"""


@on_both
def test_a_tree_a_thousand_levels_deep_comes_back(client: Skerry, server: Server) -> None:
    with client.create("python") as box:
        python(box, DEEP)
        box.stop()
        forget_on_the_node(server, box)
        assert python(box, HOW_DEEP) == "1000 x\n"


@on_both
def test_f12_f13_work_on_a_stopped_sandbox_resumes_it(client: Skerry) -> None:
    with client.create("python") as box:
        box.files.write("/workspace/kept", b"1")
        box.stop()
        assert box.files.read("/workspace/kept") == b"1"
        box.stop()
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda n: box.commands.run(f"echo {n}; cat kept").stdout, range(8)))
        assert results == [f"{n}\n1" for n in range(8)]
        assert box.refresh().status == "ready"


@on_both
def test_f10_processes_are_gone_after_a_stop(client: Skerry) -> None:
    with client.create("python") as box:
        server = box.commands.start("sleep 1000")
        with pytest.raises(Conflict) as caught:
            box.stop()
        assert caught.value.code == "sandbox_busy"
        box.stop(force=True)
        assert server.wait().status == "failed"
        box.resume()
        assert "sleep" not in " ".join(" ".join(p.argv) for p in box.processes())


@on_both
def test_resume_right_after_stop_and_the_other_way_round(client: Skerry) -> None:
    with client.create("python") as box:
        box.files.write("/workspace/kept", b"\0" * (20 << 20))
        for number in range(6):
            box.stop(wait=False)
            box.resume()
            box.stop(wait=number % 2 == 0)
        assert len(box.files.read("/workspace/kept")) == 20 << 20
        box.stop(wait=False)
        box.destroy()
        assert box.refresh().status == "destroyed"
        with pytest.raises(Conflict):
            box.resume()


@on_both
def test_f6_many_clients_at_once_get_consistent_answers(client: Skerry, server: Server) -> None:
    with client.create("python") as box:
        box.files.write("/workspace/kept", b"1")

        def reads(result: CommandResult) -> bool:
            # It may have been ended by a stop with force.
            return result.stdout == "1" or result.reason == "sandbox_gone"

        def one(seed: int) -> list[str]:
            chance, wrong = random.Random(seed), []
            acts: list[Callable[[Sandbox], object]] = [
                lambda b: b.stop(wait=False),
                lambda b: b.stop(force=True),
                lambda b: b.resume(),
                lambda b: reads(b.commands.run("cat kept")) or wrong.append("lost"),
                lambda b: b.files.read("/workspace/kept") == b"1" or wrong.append("lost"),
                lambda b: b.refresh(),
            ]
            with server.client() as own:
                mine = own.get(box.id)
                for _ in range(7):
                    try:
                        chance.choice(acts)(mine)
                    except Conflict as error:
                        if not error.code.startswith("sandbox_"):
                            wrong.append(repr(error))
                    except SandboxGone:
                        pass  # a stop with force has cut it off
                    except SkerryError as error:
                        wrong.append(repr(error))
            return wrong

        with ThreadPoolExecutor(8) as pool:
            wrong = [fault for faults in pool.map(one, range(8)) for fault in faults]
        assert not wrong
        box.resume()
        assert box.commands.run("cat kept").stdout == "1"


WRITER = """
n = 0
while True:
    n += 1
    for name in ("a", "b"):
        with open(f"/workspace/{name}.new", "w") as file: file.write(str(n))
        import os; os.rename(f"/workspace/{name}.new", f"/workspace/{name}")
"""


@on_both
def test_f26_f27_copies_of_what_is_being_written_are_of_one_instant(client: Skerry) -> None:
    with client.create("python", startup_command="", metadata={"kind": "source"}, env={"WHO": "me"}) as box:
        box.files.write("/workspace/w.py", WRITER.encode())
        writing = box.commands.start("exec python3 w.py")
        eventually("it writes", lambda: box.files.exists("/workspace/b") and int(box.files.read("/workspace/b")) > 3)
        snapshot = box.snapshot(name="while writing")
        copies = [copy for copy in box.forks(8) if isinstance(copy, Sandbox)]
        assert len(copies) == 8
        copies.append(client.create(snapshot_id=snapshot.id))
        try:
            seen = set[tuple[int, int]]()
            for copy in copies:
                a, b = (int(copy.files.read(f"/workspace/{name}")) for name in "ab")
                assert 0 <= a - b <= 1
                seen.add((a, b))
                assert copy.commands.run("echo $WHO; pgrep -f w.py | wc -l").stdout.split() == ["me", "0"]
            assert len(seen) <= 2, "all copies of one fork are of one instant"
            ids = {copy.commands.run("cat /etc/machine-id; hostname").stdout for copy in [box, *copies]}
            assert len(ids) == 10
            randoms = {copy.commands.run("head -c 16 /dev/urandom | od -An -tx1").stdout for copy in copies}
            assert len(randoms) == 9
            assert writing.poll().status == "running"
            copies[0].commands.run("echo changed > a")
            assert copies[1].files.read("/workspace/a") != b"changed\n"
        finally:
            for copy in copies:
                copy.destroy()
            writing.kill()
            client.snapshots.delete(snapshot.id)


@on_both
def test_f26_a_snapshot_outlives_its_source_and_the_node_s_copy(client: Skerry, server: Server) -> None:
    box = client.create("python", memory_mb=256, timeout_s=33, env={"A": "b"})
    box.files.write("/workspace/kept", b"1")
    snapshot = box.snapshot(name="base")
    box.destroy()
    try:
        eventually("it is stored", lambda: client.snapshots.get(snapshot.id).archived, within_s=30)

        async def drop() -> None:
            provider = LocalProvider(server.config.node_socket)
            await provider.drop(TreeId(snapshot.id))
            await provider.close()

        asyncio.run(drop())
        made = [client.create(snapshot_id=snapshot.id) for _ in range(2)]
        for one in made:
            with one:
                assert one.commands.run("cat kept; echo $A").stdout == "1b\n"
                assert (one.info.memory_mb, one.info.timeout_seconds) == (256, 33)
    finally:
        client.snapshots.delete(snapshot.id)
    with pytest.raises(NotFound):
        client.snapshots.get(snapshot.id)
    with pytest.raises(SkerryError):
        client.create(snapshot_id=snapshot.id)


@on_both
def test_f23_restore_from_takes_the_files_of_a_stopped_or_a_live_sandbox(client: Skerry) -> None:
    with client.create("python", env={"A": "b"}) as source:
        source.files.write("/workspace/kept", b"1")
        with client.create("python", restore_from=source.id) as copy:
            assert copy.commands.run("cat kept; echo $A").stdout == "1\n"
        source.stop()
        with client.create("python", restore_from=source.id) as copy:
            assert copy.files.read("/workspace/kept") == b"1"
        assert source.refresh().status == "stopped"
        with pytest.raises(Invalid):
            client.create("python", restore_from=source.id, snapshot_id="snap_" + "0" * 20)


@on_both
def test_f14_f15_f16_f17_startups_run_on_each_way_up(client: Skerry) -> None:
    with client.create("python", startup_command="echo command >> log") as box:

        def ran(of: Sandbox, times: int, word: str = "command") -> bool:
            return (
                of.files.exists("/workspace/log")
                and of.files.read("/workspace/log").decode().split().count(word) == times
            )

        eventually("on create", lambda: ran(box, 1))
        box.files.write("/workspace/flax.startup", b"# a comment\n\n  echo file >> log\necho never >> log\n")
        box.stop()
        box.resume()
        eventually("on resume, and before the file", lambda: ran(box, 2))
        with box.fork() as fork:
            eventually("in a fork", lambda: ran(fork, 3))
        box.startup.set(None)
        box.stop()
        box.resume()
        eventually("the file's line", lambda: ran(box, 1, "file"))
        with client.create("python", restore_from=box.id) as copy:
            eventually("the file's line in a copy", lambda: ran(copy, 2, "file"))
        assert not ran(box, 1, "never")


@on_both
def test_f19_what_works_is_not_reclaimed_and_the_api_says_so(client: Skerry) -> None:
    with client.create("python", idle_timeout_s=2) as box:
        told = box.refresh().info
        assert told.reclaim_at is not None
        assert told.kept_awake_by == []
        working = box.commands.start("sleep 12")
        time.sleep(8)
        told = box.refresh().info
        assert told.status == "active"
        assert told.reclaim_at is None
        assert told.kept_awake_by
        working.kill()
        eventually("then it is", lambda: status(box) == "stopped", within_s=30, every_s=0.2)
    with client.create("python", idle_timeout_s=0) as box:
        assert box.refresh().info.reclaim_at is None
