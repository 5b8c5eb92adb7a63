"""Files through the public client, on real sandboxes."""

import hashlib
import os
import unicodedata

import pytest
from acceptance.marks import on_both

from skerry import GuestError, NotFound, Sandbox, Skerry, SkerryError
from skerry.model.errors import Conflict, SandboxGone

NAMES = {
    "emoji": "🏝️ rocks.txt",
    "newline": "two\nlines",
    "quotes": 'it\'s "quoted" `x` $(y)',
    "percent": "100%25 %s&a=b#c?d+e",
    "dashes": "--help",
    "longest": "n" * 255,
    "nfc": unicodedata.normalize("NFC", "schön"),
    "nfd": unicodedata.normalize("NFD", "schön"),
    "bytes": os.fsdecode(b"not-utf8-\xff\xfe"),
    "backslash": "a\\b",
}


@on_both
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_strange_name_comes_back_as_it_was(sandbox: Sandbox, name: str) -> None:
    sandbox.files.write(f"/workspace/{name}", b"content of it")
    assert sandbox.files.read(f"/workspace/{name}") == b"content of it"
    inside = sandbox.commands.run(
        ["python3", "-c", "import os; print([os.fsencode(n).hex() for n in os.listdir('.')])"]
    )
    assert inside.stdout.strip() == str([os.fsencode(name).hex()])
    assert len(sandbox.files.list("/workspace")) == 1
    sandbox.files.remove(f"/workspace/{name}")
    assert sandbox.files.list("/workspace") == []


@on_both
def test_a_large_file_streams_in_and_out_whole(sandbox: Sandbox) -> None:
    block = os.urandom(1 << 20)
    sent = hashlib.sha256()

    def blocks():
        for number in range(100):
            chunk = number.to_bytes(4, "big") + block
            sent.update(chunk)
            yield chunk

    entry = sandbox.files.write_stream("big.bin", blocks())
    assert entry.size_bytes == 100 * (len(block) + 4)
    assert sandbox.commands.run("sha256sum < big.bin").stdout.split()[0] == sent.hexdigest()
    got = hashlib.sha256()
    with sandbox.files.read_stream("big.bin") as chunks:
        for chunk in chunks:
            got.update(chunk)
    assert got.hexdigest() == sent.hexdigest()


@on_both
def test_a_range_of_a_file_is_read(sandbox: Sandbox) -> None:
    sandbox.files.write("digits", b"0123456789")
    with sandbox.files.read_stream("digits", offset=3, length=4) as chunks:
        assert b"".join(chunks) == b"3456"
    with sandbox.files.read_stream("digits", offset=8) as chunks:
        assert b"".join(chunks) == b"89"


@on_both
def test_a_broken_upload_leaves_the_old_file(sandbox: Sandbox) -> None:
    sandbox.files.write("kept", b"old")

    def broken():
        yield b"new" * 1000
        raise KeyError("the source broke")

    with pytest.raises(KeyError):
        sandbox.files.write_stream("kept", broken())
    assert sandbox.files.read("kept") == b"old"
    assert [entry.name for entry in sandbox.files.list("/workspace")] == ["kept"]


@on_both
def test_files_are_made_moved_stated_and_removed(sandbox: Sandbox) -> None:
    sandbox.files.mkdir("a/b/c")
    sandbox.files.write("a/b/c/run.sh", "#!/bin/sh\necho moved\n", mode="0755")
    sandbox.files.move("a/b", "d")
    assert sandbox.commands.run("./d/c/run.sh").stdout == "moved\n"
    assert (sandbox.files.stat("d").type, sandbox.files.stat("d/c/run.sh").mode) == ("dir", "0755")
    sandbox.files.remove("d", recursive=True)
    assert not sandbox.files.exists("d")
    with pytest.raises(NotFound):
        sandbox.files.read("d/c/run.sh")


@on_both
def test_links_never_lead_out_of_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.commands.run(
        "ln -s /etc/hostname abs; ln -s ../../../../../../etc/hostname up; ln -s abs chain; ln -s loop loop"
    ).check()
    inside = sandbox.commands.run("cat /etc/hostname").stdout_bytes
    for name in ("abs", "up", "chain", "/workspace/../../../etc/hostname"):
        assert sandbox.files.read(name) == inside
    with pytest.raises(SkerryError):
        sandbox.files.read("loop")


@on_both
def test_commands_answer_after_the_workspace_became_a_symlink(sandbox: Sandbox) -> None:
    sandbox.commands.run("cd /; umount /workspace 2>/dev/null; rm -rf /workspace; ln -sfn /etc /workspace; true")
    assert sandbox.commands.run("echo here").stdout == "here\n"


@on_both
def test_a_fifo_and_a_device_are_no_files_to_read(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkfifo pipe").check()
    for path in ("pipe", "/dev/zero"):
        with pytest.raises(SkerryError):
            sandbox.files.read(path)


@on_both
def test_what_the_kernel_makes_up_is_read_to_its_end(sandbox: Sandbox) -> None:
    assert b"MemTotal" in sandbox.files.read("/proc/meminfo")
    assert sandbox.files.read("/proc/self/stat").startswith(b"1 (")


@on_both
def test_a_file_moves_between_the_file_systems_inside(sandbox: Sandbox) -> None:
    sandbox.files.write("f", b"x" * 3_000_000, mode="0751")
    for target in ("/tmp/f", "/dev/shm/f", "/root/f", "/workspace/g"):
        source = {"/tmp/f": "f", "/dev/shm/f": "/tmp/f", "/root/f": "/dev/shm/f", "/workspace/g": "/root/f"}[target]
        moved = sandbox.files.move(source, target)
        assert (moved.size_bytes, moved.mode) == (3_000_000, "0751")
        assert not sandbox.files.exists(source)
    sandbox.commands.run("mkdir -p d/e").check()
    with pytest.raises(GuestError) as caught:
        sandbox.files.move("d", "/dev/shm/d")
    assert caught.value.code == "cross_device" and "cp -a" in caught.value.message


@on_both
def test_a_refused_upload_is_told_in_the_middle_of_sending(sandbox: Sandbox) -> None:
    sandbox.files.write("file", b"x")
    sent = 0

    def endless():
        nonlocal sent
        while sent < 8 << 30:
            sent += 1 << 20
            yield bytes(1 << 20)

    with pytest.raises(GuestError) as caught:
        sandbox.files.write_stream("file/below", endless())
    assert caught.value.code == "not_a_directory"
    assert sent < 1 << 30


@on_both
def test_an_upload_to_a_sandbox_that_is_destroyed_meanwhile_says_so(client: Skerry, sandbox: Sandbox) -> None:
    def interrupted():
        yield bytes(1 << 20)
        client.get(sandbox.id).destroy()
        while True:
            yield bytes(1 << 20)

    with pytest.raises((SandboxGone, Conflict)):
        sandbox.files.write_stream("late", interrupted())
