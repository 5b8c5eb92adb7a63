"""What the client offers, on real sandboxes: directories, many files, watching, sessions, code."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.marks import on_both
from acceptance.servers import ROOT, Server, eventually

from skerry import GuestError, Sandbox, Skerry


def git(work: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    return subprocess.run(["git", *settings, *arguments], cwd=work, check=True, capture_output=True, text=True).stdout


@on_both
def test_a_git_work_tree_goes_up_and_comes_down_clean(sandbox: Sandbox, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "src/deep/er").mkdir(parents=True)
    for number in range(200):
        (work / f"src/deep/{number}.py").write_text(f"print({number})\n")
    (work / "run").write_text("#!/bin/sh\n")
    (work / "run").chmod(0o755)
    (work / "src/link").symlink_to("deep/1.py")
    (work / "schön ☃").write_text("x")
    (work / os.fsdecode(b"no utf-8 \xff" + b"x" * 120)).write_text("y")
    git(work, "init", "-q")
    git(work, "add", ".")
    git(work, "commit", "-qm", "first")
    (work / "empty").mkdir()
    os.utime(work / "run", ns=(0, 1_234_567_890_123_456_789))
    up = sandbox.files.upload_dir(work, "work")
    assert up.skipped == () and up.count == sum(1 for _ in work.rglob("*"))
    status = "git -c safe.directory=/workspace/work -C /workspace/work status --porcelain"
    inside = sandbox.commands.run(f"command -v git >/dev/null || exit 77; {status}")
    assert inside.exit_code == 77 or (inside.exit_code, inside.stdout) == (0, "")
    assert sandbox.commands.run("stat -c '%a %y' work/run").stdout.startswith("755 2009-02-13 23:31:30.12345678")

    back = tmp_path / "back"
    down = sandbox.files.download_dir("work", back)
    assert down.skipped == () and down.count == up.count
    assert git(back, "status", "--porcelain") == ""
    assert {path.relative_to(back) for path in back.rglob("*")} == {path.relative_to(work) for path in work.rglob("*")}
    assert (back / "src/link").readlink() == Path("deep/1.py")
    for name in ("run", "src/deep", "empty", ".git/HEAD"):
        ours, theirs = (work / name).stat(), (back / name).stat()
        assert (ours.st_mode, ours.st_mtime_ns) == (theirs.st_mode, theirs.st_mtime_ns), name
    again = sandbox.files.download_dir("work", back)
    assert again == down and git(back, "status", "--porcelain") == ""


@on_both
def test_500_files_of_4_kb_go_up_in_one_call(sandbox: Sandbox) -> None:
    files = {f"d{n % 10}/{n}": os.urandom(4096) for n in range(500)}
    took: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        assert sandbox.files.write_many(files).count == 500
        took.append(time.perf_counter() - begin)
    print(f"500 × 4 KB in one call: {sorted(took)[2] * 1000:.0f} ms, at best {min(took) * 1000:.0f} ms")
    assert sandbox.commands.run("cat d3/* | sha256sum; find . -type f -size 4096c | wc -l").stdout.split()[-1] == "500"
    assert sandbox.files.read_many(list(files)[:3]) == dict(list(files.items())[:3])
    sandbox.files.mkdir("taken/below")
    with pytest.raises(GuestError, match="taken"):
        sandbox.files.write_many({"taken": b"x"})


@on_both
def test_what_a_sandbox_leads_out_is_left_out_here(sandbox: Sandbox, tmp_path: Path) -> None:
    made = "mkdir -p t/a && cd t && ln -s /etc out && ln -s ../.. up && ln -s a/../../.. round && ln -s ../x a/in"
    sandbox.commands.run(f"{made} && mkfifo fifo && echo x > setuid && chmod 6755 setuid && ln setuid hard").check()
    told = sandbox.files.download_dir("t", tmp_path / "t")
    assert {one.path for one in told.skipped} == {"out", "up", "round", "fifo"}
    assert (told.skipped_count, told.count) == (4, 4)
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["a", "hard", "setuid"]
    assert (tmp_path / "t/setuid").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "t/setuid").stat().st_ino == (tmp_path / "t/hard").stat().st_ino


INSIDE = """
import io, os, tarfile
from skerry.sdk.unpacking import Unpacker
os.makedirs("/tmp/outside"); os.makedirs("/tmp/in"); os.symlink("/tmp/outside", "/tmp/in/there")
stream = io.BytesIO()
with tarfile.open(fileobj=stream, mode="w") as archive:
    archive.addfile(tarfile.TarInfo("there/evil"))
    archive.addfile(tarfile.TarInfo("fine/file"))
unpacker = Unpacker("/tmp/in", max_entries=10, max_bytes=10)
unpacker.feed(stream.getvalue())
print(unpacker.finish().skipped_count, os.listdir("/tmp/outside"), os.listdir("/tmp/in/fine"))
"""


@on_both
def test_a_client_that_runs_in_a_sandbox_follows_no_link_either(sandbox: Sandbox) -> None:
    sandbox.files.upload_dir(ROOT / "src", "/workspace", exclude=["__pycache__", "_sync", "_async", "node", "api"])
    assert sandbox.run_code(INSIDE).check().stdout == "1 [] ['file']\n"


@on_both
def test_a_broken_upload_leaves_no_partial_file(server: Server, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("kept", b"old")

    def breaks() -> Iterator[bytes]:
        yield b"x" * 1_000_000
        raise KeyError("the source broke")

    for path in ("kept", "new"):
        with pytest.raises(KeyError):
            sandbox.files.write_stream(path, breaks())
    eventually("nothing is left", lambda: sandbox.commands.run("ls -A").stdout.split() == ["kept"])
    assert sandbox.files.read("kept") == b"old"


@on_both
def test_of_two_writers_one_wins_whole(server: Server, sandbox: Sandbox) -> None:
    contents = {letter: letter.encode() * 2_000_000 for letter in "ab"}

    def write(letter: str) -> None:
        with server.client() as client:
            for _ in range(5):
                client.get(sandbox.id).files.write("both", contents[letter])

    threads = [threading.Thread(target=write, args=(letter,)) for letter in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if sandbox.files.exists("both"):
            assert sandbox.files.read("both") in contents.values()
    assert sandbox.files.read("both") in contents.values()
    assert [entry.name for entry in sandbox.files.list()] == ["both"]


@on_both
def test_a_watch_and_what_runs_are_typed(sandbox: Sandbox) -> None:
    with sandbox.files.watch(recursive=True) as changes:
        running = sandbox.commands.start("mkdir d; echo x > d/f; sleep 600")
        seen = set[tuple[str, str]]()
        while ("modified", "/workspace/d/f") not in seen:
            change = next(changes)
            seen.add((change.kind, change.path))
    assert ("created", "/workspace/d") in seen
    assert running.id in {process.command_id for process in sandbox.processes()}
    running.kill()


@on_both
def test_a_shell_session_and_code_run(sandbox: Sandbox) -> None:
    with sandbox.shell() as shell:
        assert shell.run("cd /tmp && export A=1").ok
        result = shell.run("echo $A in $PWD; exit 3")
        assert (result.stdout, result.exit_code, result.cwd, shell.cwd) == ("1 in /tmp\n", 3, "/tmp", "/tmp")
        assert [one.id for one in sandbox.shells()] == [shell.id]
    assert sandbox.shells() == []
    assert sandbox.run_code("print(6 * 7)").check().stdout == "42\n"
    sandbox.startup.set("echo up")
    assert sandbox.startup.run().command_id is not None
    eventually("it ran", lambda: sandbox.startup.get().status == "stopped")
    assert sandbox.startup.get().logs == "up\n"
    assert sandbox.startup.set(None).command is None
    assert not sandbox.git.pull("/workspace").ok


SIZE = 2 << 30
BOUND = 96 << 20


@pytest.mark.long
@pytest.mark.timeout(900)
@on_both
def test_2_gb_go_up_and_down_in_flat_memory(server: Server, client: Skerry, tmp_path: Path) -> None:
    local = tmp_path / "up/big"
    local.parent.mkdir()
    block = os.urandom(1 << 20)
    with local.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(block)
    program = """
import sys
from skerry import Skerry
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
box, up, down = sys.argv[1:]
with Skerry() as client:
    sandbox = client.get(box)
    sandbox.files.download_dir("small", down + "/small")
    at_rest = peak()
    sandbox.files.upload_dir(up, "tree")
    sandbox.files.download_dir("tree", down)
    print(peak() - at_rest)
"""
    with client.create("python", disk_mb=5000) as box:
        box.files.write_many({"small/warm": b"x"})
        before = {part: server.memory_of(part) for part in ("api", "node")}
        arguments = [box.id, str(local.parent), str(tmp_path / "down")]
        grown = {"api": 0, "node": 0}
        command = [sys.executable, "-c", program, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=server.environ) as running:
            while running.poll() is None:
                for part in grown:
                    grown[part] = max(grown[part], server.memory_of(part) - before[part])
                time.sleep(0.2)
            assert running.returncode == 0 and running.stdout is not None
            client_grown = int(running.stdout.read()) * 1024
        assert (tmp_path / "down/big").stat().st_size == SIZE
        assert subprocess.run(["cmp", local, tmp_path / "down/big"]).returncode == 0
    print({**{part: f"{size >> 20} MiB" for part, size in grown.items()}, "client": f"{client_grown >> 20} MiB"})
    assert all(size < BOUND for size in (*grown.values(), client_grown))
