"""Spoiling a sandbox's own files, from inside: it answers all the same, and what the API does stays inside."""

import pytest
from acceptance.hostile import answers
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import NotFound, Sandbox, SkerryError

pytestmark = pytest.mark.long

SPOILT = {
    "tmp is a link": "rm -rf /tmp; ln -s /proc/1 /tmp",
    "passwd is a link": "ln -sf /proc/1/mem /etc/passwd; ln -sf /dev/zero /etc/group",
    "passwd is a fifo": "rm /etc/passwd; mkfifo /etc/passwd",
    "passwd is endless": "ln -sf /dev/zero /etc/passwd",
    "workspace is a fifo": "cd /; rm -rf /workspace/* ; ln -sfn /proc/1/fd /workspace/.cache",
    "no libraries' index": "rm -f /etc/ld.so.cache /etc/nsswitch.conf /etc/hosts /etc/resolv.conf 2>/dev/null; true",
    "run is gone": "rm -rf /run 2>/dev/null; ln -s / /run; true",
    "dev is spoilt": "rm -f /dev/null /dev/zero /dev/urandom; echo > /dev/null; true",
}


@on_both
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_sandbox_answers(sandbox: Sandbox, spoil: str) -> None:
    sandbox.commands.run(spoil, timeout_s=10)
    answers(sandbox)
    sandbox.files.write("/workspace/still", b"writes")
    assert sandbox.files.read("/workspace/still") == b"writes"


@on_both
@pytest.mark.parametrize("passwd", ["/dev/zero", "fifo", "/proc/1/mem"])
def test_a_user_looked_up_in_a_spoilt_passwd_is_refused_not_waited_for(sandbox: Sandbox, passwd: str) -> None:
    make = "mkfifo /etc/passwd" if passwd == "fifo" else f"ln -s {passwd} /etc/passwd"
    sandbox.commands.run(f"rm /etc/passwd; {make}").check()
    result = sandbox.commands.run(["true"], user="somebody", timeout_s=10)
    assert (result.status, result.reason) == ("failed", "not_started")
    answers(sandbox)


@on_both
def test_without_a_shell_programs_run_and_the_lack_is_told(sandbox: Sandbox) -> None:
    sandbox.commands.run("rm -f /bin/sh /bin/bash /usr/bin/sh /usr/bin/bash").check()
    assert sandbox.commands.run(["python3", "-c", "print(6 * 7)"]).stdout == "42\n"
    result = sandbox.commands.run("echo hello")
    assert (result.status, result.reason) == ("failed", "not_started")
    assert "/bin/sh" in (result.message or "")


@on_both
def test_replaced_programs_are_the_sandboxs_own_affair(sandbox: Sandbox) -> None:
    """The API never runs a program of the sandbox to serve files."""
    sandbox.commands.run(
        "for p in ls cat stat rm mv cp mkdir tar; do printf '#!/bin/sh\\necho lies\\n' > /bin/$p; done"
    )
    assert sandbox.commands.run(["ls"]).stdout == "lies\n"
    sandbox.files.write("truth", b"of sbxd")
    assert [entry.name for entry in sandbox.files.list("/workspace")] == ["truth"]
    assert sandbox.files.read("truth") == b"of sbxd"
    sandbox.files.move("truth", "moved")
    sandbox.files.remove("moved")


@on_both
def test_a_tree_a_thousand_levels_deep_is_removed(sandbox: Sandbox) -> None:
    deep = (
        "import os\nos.mkdir('deep'); os.chdir('deep')\n"
        "for n in range(1000):\n os.mkdir('n' * 200); os.symlink('/etc', 'link'); os.chdir('n' * 200)\n"
    )
    sandbox.commands.run(["python3", "-c", deep], timeout_s=60).check()
    sandbox.files.remove("deep", recursive=True)
    assert sandbox.files.list("/workspace") == []
    assert sandbox.commands.run("ls /etc/hostname").ok


@on_both
def test_a_sandbox_with_a_deep_tree_is_destroyed(sandbox: Sandbox, server: Server) -> None:
    deep = "import os\nfor n in range(3000):\n os.mkdir('d' * 250); os.chdir('d' * 250)\n"
    sandbox.commands.run(["python3", "-c", deep], timeout_s=100).check()
    sandbox.destroy()
    gone = server.config.pool_dir / "sandboxes" / sandbox.id
    eventually("its files are gone", lambda: not gone.exists())


@on_both
def test_a_directory_of_many_long_names_is_listed(sandbox: Sandbox) -> None:
    make = "import os\nfor n in range(4000): open(f'{n:04}' + '\\U0001F3DD' * 60, 'w').close()"
    sandbox.commands.run(["python3", "-c", make], timeout_s=60).check()
    assert len(sandbox.files.list("/workspace")) == 4000
    with pytest.raises(SkerryError):
        sandbox.files.write("n" * 256, b"one too long")


@on_both
def test_a_tree_that_changes_while_it_is_removed_is_not_followed_out(sandbox: Sandbox) -> None:
    """A directory that turns into a link to the system, again and again, while the API removes it."""
    swap = (
        "import os, itertools\n"
        "os.makedirs('race', exist_ok=True)\n"
        "while True:\n"
        " try:\n"
        "  os.makedirs('race/d/e/f', exist_ok=True); os.rename('race/d', 'race/x'); os.symlink('/usr', 'race/d')\n"
        "  os.unlink('race/d'); os.rename('race/x', 'race/d')\n"
        " except OSError:\n"
        "  os.makedirs('race', exist_ok=True)\n"
    )
    swapping = sandbox.commands.start(["python3", "-c", swap])
    for _ in range(60):
        try:
            sandbox.files.remove("race/d", recursive=True)
        except SkerryError as error:
            assert error.code in ("not_found", "busy", "not_empty", "not_a_directory", "io"), error
    swapping.kill()
    assert sandbox.commands.run("ls /usr/bin/python3").ok
    answers(sandbox)


@on_both
def test_a_missing_file_is_not_found_however_it_is_asked_for(sandbox: Sandbox) -> None:
    for path in ("nowhere", "nowhere/deeper", "\ud800", "%00", "a" * 4000):
        with pytest.raises((NotFound, SkerryError)) as refused:
            sandbox.files.read(path)
        assert refused.value.code in ("not_found", "name_too_long", "invalid"), (path, refused.value)
