"""Shell sessions by the published client: what persists, and that no command spoils the next one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import flaxcloud
import httpx2
import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually
from flaxcloud.sandbox import Sandbox, Session


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """One sandbox a runtime: making one takes longer than all that a test does in it."""
    return {}


@pytest.fixture
def box(server: Server, runtime: str, made: dict[str, str]) -> Iterator[Sandbox]:
    with flaxcloud.FlaxClient(server.key, base_url=server.url) as flax:
        if runtime not in made:
            made[runtime] = flax.create_sandbox("python", env={"BASE": "base"}, network_mode="none").id
        yield flax.get_sandbox(made[runtime])


@pytest.fixture
def session(box: Sandbox) -> Iterator[Session]:
    with box.create_session() as session:
        yield session


@on_both
def test_directory_and_exported_variables_persist(session: Session) -> None:
    assert session.run("cd /tmp && export A='1 \n 2' B=b; C=unexported").cwd == "/tmp"
    shown = session.run('printf "%s|" "$PWD" "$A" "$B" "$C" "$BASE" "$#" "$0"')
    assert shown.stdout == "/tmp|1 \n 2|b||base|0|bash|"
    assert session.run("unset A BASE; cd ..; cd -; cd /usr; cd /var").stdout == "/tmp\n"
    assert session.run('echo "$A,$BASE"; cd -').stdout == ",\n/usr\n"


@on_both
def test_aliases_functions_options_and_unexported_variables_do_not_persist(session: Session) -> None:
    session.run("alias x='echo x'; f() { echo f; }; export -f f; set -eu; shopt -s nullglob; V=1")
    assert session.run("f").exit_code == 127
    assert session.run('false; echo "$-" "${V-unset}"').stdout.endswith(" unset\n")


# Where the command's traces will be looked for: no secret to the command itself.
DUMP = "$(trap | grep -o '/run/skerry/[0-9a-f]*' | head -1)"
SPOILERS = {
    "exit": ("exit 3", 3),
    "unbalanced quote": ("echo \"one 'two", 2),
    "unbalanced heredoc": ("cat <<END\nx", 0),
    "syntax error": ("if then (", 2),
    "set -e": ("set -e; false; echo no", 1),
    "set -u": ("set -u; echo $NOPE", 127),
    "noexec": ("set -n", 0),
    "exec": ("exec sh -c 'exit 7'", 7),
    "exec without command": ("exec >/dev/null 2>&1 </dev/null", 0),
    "closed descriptors": ("exec 0<&- 1>&- 2>&-", 0),
    "kill -9": ("kill -9 $$", 137),
    "kill the group": ("kill -9 0", 137),
    "unset all": ("unset PATH HOME IFS LANG", 0),
    "IFS": ("export IFS=/ab", 0),
    "readonly": ("readonly PATH HOME IFS LANG OLDPWD PWD SKERRY_SESSION_TOKEN=x", 0),
    "traps": ("trap 'exit 9' EXIT; trap '' TERM INT HUP; trap 'echo' DEBUG ERR", 9),
    "functions": (
        "cd() { exit 1; }; pwd() { :; }; printf() { :; }; eval() { :; }; trap() { :; }; set() { :; };"
        " export -f cd pwd printf eval trap set",
        0,
    ),
    "no files": ("ulimit -f 0", 0),
    "no descriptors": ("ulimit -n 3", 0),
    "BASH_ENV": ("echo 'exit 66' > /tmp/be; export BASH_ENV=/tmp/be ENV=/tmp/be", 0),
    "SHELLOPTS": ("export SHELLOPTS BASHOPTS; set -fx", 0),
    "broken LD_PRELOAD": ("export LD_PRELOAD=/nowhere.so", 0),
    "strange values": ("export S=$'\\xff\\n=\\t' T=$'a\\x00b' U=\"$(printf 'x\\n\\n')\"", 0),
    "a million bytes": ("head -c 1000000 /dev/zero | tr '\\0' x", 0),
    "too much to keep": ("export BIG=$(head -c 100000 /dev/zero | tr '\\0' x)", 0),
    "a link": ("ln -s /dev/zero " + DUMP, 0),
    "a directory": ("mkdir -p " + DUMP + "/x", 0),
    "a huge file": ("truncate -s 1T " + DUMP, 0),
    "a whole lie about nothing": ("printf '/\\0A=1\\0' > " + DUMP, 0),
    "restricted": ("set -r", 0),
    "background": ("sleep 60 & echo started", 0),
}


@on_both
@pytest.mark.parametrize("spoiler", SPOILERS)
def test_no_command_spoils_the_next_one(session: Session, spoiler: str) -> None:
    text, code = SPOILERS[spoiler]
    session.run("export KEPT=kept; cd /tmp")
    spoiled = session.run(text, timeout=20)
    assert spoiled.exit_code == code, spoiled
    after = session.run('/bin/echo "$KEPT"; export NEXT=1')
    assert (after.stdout, after.exit_code, after.cwd) == ("kept\n", 0, "/tmp")
    assert session.run("echo $NEXT").stdout == "1\n"


@on_both
def test_strange_values_come_back_as_they_were(session: Session) -> None:
    session.run(
        "export S=$'\\xff\\xfe\\n=\\t' T=\"$(printf 'x\\ny')\"; mkdir -p $'/tmp/a\\xffb\\n'; cd $'/tmp/a\\xffb\\n'"
    )
    assert session.run('printf "%s" "$S$T" | od -An -tx1; pwd | od -An -c').stdout.split() == [
        *["ff", "fe", "0a", "3d", "09", "78", "0a", "79"],
        *[r"/", r"t", r"m", r"p", r"/", r"a", r"377", r"b", r"\n", r"\n"],
    ]


@on_both
def test_a_directory_that_is_gone_is_left_for_the_workspace(session: Session) -> None:
    gone = session.run("mkdir /tmp/gone; cd /tmp/gone; export A=1; rmdir /tmp/gone")
    assert gone.exit_code == 0
    after = session.run("pwd; echo $A")
    assert (after.stdout, after.cwd) == ("/workspace\n1\n", "/workspace")
    session.run("mkdir /tmp/gone; cd /tmp/gone")
    session.run("rmdir /tmp/gone")
    late = session.run("pwd")
    assert (late.stdout, late.cwd) == ("/workspace\n", "/workspace")
    assert "/tmp/gone cannot be entered" in late.stderr


@on_both
def test_a_hung_command_is_ended_by_its_deadline_and_the_session_goes_on(session: Session) -> None:
    session.run("export A=before")
    begun = time.monotonic()
    late = session.run("export A=lost; echo begun; sleep 60 & wait", timeout=1)
    assert (late.exit_code, late.stdout) == (124, "begun\n")
    assert time.monotonic() - begun < 10
    assert session.run("echo $A").stdout == "before\n"


@on_both
def test_an_error_is_told_with_the_line_of_the_text(session: Session) -> None:
    assert "line 2: nope: command not found" in session.run("true\nnope").stderr


def test_two_at_once_in_one_session_are_refused_and_in_two_are_not(server: Server, box: Sandbox) -> None:
    one, two = box.create_session(), box.create_session()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.run, "mkfifo /tmp/gate; read line < /tmp/gate; export GOT=$line")
        eventually("it runs", lambda: box.exists("/tmp/gate"))
        with pytest.raises(flaxcloud.FlaxConflictError) as refused:
            one.run("echo no")
        assert refused.value.code == "session_busy"
        assert two.run("echo open > /tmp/gate", timeout=10).ok
        assert first.result().ok
    assert one.run("echo $GOT").stdout == "open\n"


def test_f32_a_session_command_is_looked_up_like_others_and_makes_the_sandbox_active(box: Sandbox) -> None:
    session = box.create_session()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, "echo $$; rm -f /tmp/g2; mkfifo /tmp/g2; cat /tmp/g2")
        eventually("it is active", lambda: box.refresh().status == "active")
        eventually("it waits", lambda: box.exists("/tmp/g2"))
        box.run("echo done > /tmp/g2")
        assert running.result().stdout.endswith("done\n")
    with httpx2.Client(base_url=box._client.base_url, headers={"X-API-Key": box._client._api_key}) as http:
        answer = http.post(f"/v1/sessions/{session.id}/exec", json={"command": "echo shown"}).json()
    assert (answer["saved"], answer["status"]) == (True, "completed")
    command = box.get_command(answer["command_id"])
    assert (command.command, command.stdout, command.working_directory) == ("echo shown", "shown\n", "/workspace")


def test_a_deleted_session_is_gone_with_its_command(box: Sandbox) -> None:
    session = box.create_session()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, "touch /tmp/hangs; sleep 600")
        eventually("it runs", lambda: box.exists("/tmp/hangs"))
        session.delete()
        assert running.result().exit_code == 137
    assert session.id not in [each.id for each in box.sessions()]
    with pytest.raises(flaxcloud.FlaxNotFoundError):
        session.run("true")


def test_what_a_session_keeps_leaves_no_file_behind(box: Sandbox, session: Session) -> None:
    session.run("export SECRET=hush")
    assert box.run("ls /run/skerry; grep -rl hush /run /tmp /workspace").stdout == "server.sock\n"


def test_a_program_that_takes_the_place_of_cat_changes_nothing(server: Server) -> None:
    with (
        flaxcloud.FlaxClient(server.key, base_url=server.url) as flax,
        flax.create_sandbox("python", network_mode="none") as box,
    ):
        session = box.create_session()
        session.run("export A=1; cd /tmp")
        assert session.run("printf '#!/bin/sh\\necho A=stolen' > /tmp/cat; chmod +x /tmp/cat; mv /tmp/cat /bin/cat").ok
        session.run("export A=2")
        assert session.run("echo $A; pwd").stdout == "1\n/tmp\n"


def test_a_sandbox_without_bash_has_sessions_too(server: Server) -> None:
    with (
        flaxcloud.FlaxClient(server.key, base_url=server.url) as flax,
        flax.create_sandbox("python", network_mode="none") as box,
    ):
        assert box.run("rm /bin/bash").ok
        session = box.create_session()
        assert session.run("cd /tmp; export A='1 \n'; exit 3").exit_code == 3
        assert session.run('cd /; cd -; echo "$A" $0').stdout == "/tmp\n1 \n sh\n"
        assert session.run("set -eu; false").exit_code == 1
        assert session.run("export A=2; echo 'unbalanced").exit_code == 2
        assert session.run('echo "$A"; unset A PATH HOME; cd /var').stdout == "1 \n\n"
        assert session.run('echo "$A,${HOME-none}"; pwd').stdout == ",none\n/var\n"


def test_a_session_survives_the_death_of_api_and_node(server: Server, box: Sandbox) -> None:
    session = box.create_session()
    session.run("export A=kept; cd /tmp")
    for part in ("api", "node"):
        server.restarted(part, server.kill(part))
        assert session.run("echo $A; pwd").stdout == "kept\n/tmp\n"


def test_what_a_command_leaves_while_the_api_is_dead_is_taken_in_by_the_next(server: Server, box: Sandbox) -> None:
    session = box.create_session()
    box.run("rm -f /tmp/g3; mkfifo /tmp/g3")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.run, "read A < /tmp/g3; export A; cd /tmp", timeout=60)
        eventually("it runs", lambda: box.refresh().status == "active")
        box.run("(sleep 1; echo late > /tmp/g3) >/dev/null 2>&1 &")
        server.restarted("api", server.kill("api"))
        with pytest.raises(flaxcloud.FlaxError):
            running.result()

    def read() -> str:
        try:
            return session.run("echo $A; pwd").stdout
        except flaxcloud.FlaxConflictError:
            return "busy"

    eventually("the session is free", lambda: read() == "late\n/tmp\n")
