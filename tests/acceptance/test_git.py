"""git with a token that leaves no trace, against a real git server inside real sandboxes, by the published client."""

import base64
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import flaxcloud
import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually
from flaxcloud.models import Command
from flaxcloud.sandbox import Sandbox

USER = "x-access-token"
HOST = "http://127.0.0.1:8600"
ORIGIN = f"{HOST}/git/one.git"
SERVER = (Path(__file__).parent / "git_server.py").read_text()
_SETUP = """
set -e
git config --global user.name t; git config --global user.email t@t; git config --global init.defaultBranch main
git init -q --bare /srv/git/one.git; git -C /srv/git/one.git config http.receivepack true
git init -q /srv/work; cd /srv/work; echo one > a.txt; git add .; git commit -qm one
git push -q /srv/git/one.git main
rm -rf /srv/work; rm /workspace/.gitconfig
"""


@dataclass
class Remote:
    """A sandbox with a git server in it. The token is the remote's alone: it stands nowhere but in that process."""

    box: Sandbox
    token: str
    server: Server

    @property
    def secrets(self) -> tuple[str, str]:
        return self.token, base64.b64encode(f"{USER}:{self.token}".encode()).decode()

    def sh(self, script: str) -> str:
        done = self.box.run(script, timeout=60)
        assert done.ok, done
        return done.stdout

    def commit(self, text: str) -> None:
        """A new commit on the remote's main, from elsewhere."""
        self.sh(
            "rm -rf /tmp/other && git clone -q /srv/git/one.git /tmp/other && cd /tmp/other && "
            f"echo {text} > a.txt && git -c user.name=o -c user.email=o@o commit -qam {text} && git push -q"
        )


@pytest.fixture
def remote(server: Server) -> Iterator[Remote]:
    token = "glpat-" + base64.b32encode(os.urandom(15)).decode()
    with (
        flaxcloud.FlaxClient(server.key, base_url=server.url) as flax,
        flax.create_sandbox("python", network_mode="none") as box,
    ):
        remote = Remote(box, token, server)
        remote.sh(_SETUP)
        box.upload("/srv/server.py", SERVER)
        # The server's own token comes from its standard input, not from where the tests look for it.
        start = (
            "python3 - <<'END' &\nimport sys\n"
            f"sys.argv = ['s', '8600', '{USER}', sys.intern({_split(token)})]\n"
            "exec(open('/srv/server.py').read())\nEND\n"
        )
        box.run(start + "sleep 0.2")
        ask = "curl -s -o /dev/null -w '%{http_code}' " + f"{ORIGIN}/info/refs"
        eventually("the git server answers", lambda: box.run(ask).stdout == "401", within_s=20)
        yield remote


def _split(token: str) -> str:
    """The token as an expression in which it does not stand whole."""
    return f"'{token[:9]}' + '{token[9:]}'"


def clone(remote: Remote, **options: object) -> Command:
    return remote.box.git.clone(str(options.pop("url", ORIGIN)), token=remote.token, **options)  # pyright: ignore


@on_both
def test_a_private_repository_is_cloned_pulled_and_pushed_with_a_token(remote: Remote) -> None:
    refused = remote.box.git.clone(ORIGIN)
    assert (refused.status, refused.ok) == ("completed", False)
    assert "could not read Username" in refused.stderr
    cloned = clone(remote, path="/workspace/one", branch="main")
    assert cloned.ok, cloned.stderr
    assert cloned.command == f"git clone --branch main {ORIGIN} /workspace/one"
    assert remote.sh("cat /workspace/one/a.txt") == "one\n"
    remote.commit("two")
    pulled = remote.box.git.pull("/workspace/one", token=remote.token)
    assert pulled.ok, pulled.stderr
    assert remote.sh("cat /workspace/one/a.txt") == "two\n"
    remote.box.git.checkout("topic", "/workspace/one", create=True)
    remote.sh("cd /workspace/one && echo three > a.txt")
    remote.box.git.add("/workspace/one")
    assert remote.box.git.commit("three", "/workspace/one", author_name="a", author_email="a@b").ok
    pushed = remote.box.git.push("/workspace/one", branch="topic", set_upstream=True, token=remote.token)
    assert pushed.ok, pushed.stderr
    assert remote.sh("git -C /srv/git/one.git show topic:a.txt") == "three\n"
    assert "topic" in remote.box.git.branches("/workspace/one")
    assert remote.box.git.status("/workspace/one").stdout == "## topic...origin/topic\n"


@on_both
def test_a_token_is_in_no_file_process_or_record_during_and_after_a_slow_clone(remote: Remote) -> None:
    with ThreadPoolExecutor(1) as pool:
        cloning = pool.submit(clone, remote, url=f"{HOST}/slow/one.git", path="/workspace/slow")
        processes = "ps=$(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'); echo \"$ps\""
        seen = ""
        while not cloning.done():
            seen += remote.box.run(processes).stdout
            time.sleep(0.1)
        assert cloning.result().ok, cloning.result().stderr
    assert "http.followRedirects=false" in seen  # git was seen at work
    for secret in remote.secrets:
        assert secret not in seen
        needle = f"t='{secret[:9]}'; grep -rlaF \"$t\"'{secret[9:]}' /workspace /tmp /root /run /etc /var /srv/git"
        assert remote.box.run(f"{needle} 2>/dev/null").stdout == ""
        assert remote.box.get_command(cloning.result().id).command.find(secret) == -1
        found = subprocess.run(
            ["grep", "-rlaF", secret, str(remote.server.config.home / "api"), str(remote.server.config.node_dir)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.stdout == ""
        assert secret not in remote.server.log.read_text(errors="replace")
    assert remote.sh("git -C /workspace/slow remote get-url origin") == f"{HOST}/slow/one.git\n"
    assert "credential" not in remote.sh("cat /workspace/slow/.git/config")


def test_a_token_that_a_server_echoes_is_struck_out(remote: Remote) -> None:
    refused = clone(remote, url=f"{HOST}/echo/one.git", path="/workspace/echo")
    assert not refused.ok
    remote.box.run(
        "mkdir -p /srv/git/one.git/hooks; printf '#!/bin/sh\\ncat >&2 /srv/said\\nexit 1\\n' >"
        " /srv/git/one.git/hooks/pre-receive; chmod +x /srv/git/one.git/hooks/pre-receive"
    )
    remote.box.upload("/srv/said", f"a {remote.token} b {remote.secrets[1]}{remote.token}\nc")
    assert clone(remote, path="/workspace/one").ok
    remote.sh("cd /workspace/one && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x")
    pushed = remote.box.git.push("/workspace/one", token=remote.token)
    assert not pushed.ok
    assert "a [token] b [token][token]" in pushed.stderr
    for secret in remote.secrets:
        assert secret not in refused.stdout + refused.stderr + pushed.stdout + pushed.stderr


def test_helpers_hooks_and_monitors_of_a_repository_never_see_a_token(remote: Remote) -> None:
    assert clone(remote, path="/workspace/one").ok
    remote.commit("two")
    remote.sh(r"""
cd /workspace/one
printf '#!/bin/sh\necho "$0" >> /tmp/hooked\n(cat; cat <&9) >> /tmp/stolen' > /tmp/steal; chmod +x /tmp/steal
for hook in pre-push post-merge post-checkout reference-transaction; do cp /tmp/steal .git/hooks/$hook; done
for scope in --local --global; do
git config $scope credential.helper /tmp/steal
git config $scope credential.http://127.0.0.1:8600.helper /tmp/steal
git config $scope core.fsmonitor /tmp/steal
git config $scope core.hooksPath .git/hooks
git config $scope core.askPass /tmp/steal
done
""")
    assert remote.box.git.pull("/workspace/one", token=remote.token).ok
    remote.sh(
        "cd /workspace/one && git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c user.name=a -c user.email=a@b"
        " commit -q --allow-empty -m x"
    )
    pushed = remote.box.git.push("/workspace/one", token=remote.token)
    assert pushed.ok, pushed.stderr
    assert remote.box.run("cat /tmp/hooked /tmp/stolen").stdout == ""


def test_a_token_follows_no_redirect_and_no_rewritten_address(remote: Remote) -> None:
    assert not clone(remote, url=f"{HOST}/away/one.git", path="/workspace/away").ok
    remote.sh("git config --global url.http://localhost:8601/.insteadOf http://127.0.0.1:8600/")
    assert not clone(remote, path="/workspace/rewritten").ok
    stolen = remote.box.run("cat /tmp/stolen").stdout
    for secret in remote.secrets:
        assert secret not in stolen


def test_a_wrong_token_is_a_failed_command(remote: Remote) -> None:
    refused = remote.box.git.clone(ORIGIN, "/workspace/no", token="wrong")
    assert (refused.status, refused.exit_code) == ("completed", 128)
    assert "Authentication failed" in refused.stderr
    assert remote.box.exists("/workspace/no") is False


def test_a_path_in_the_sandbox_is_cloned_without_a_token(remote: Remote) -> None:
    assert remote.box.git.clone("/srv/git/one.git").ok
    assert remote.sh("cat /workspace/one/a.txt") == "one\n"


def test_the_deadline_of_a_clone_ends_it(remote: Remote) -> None:
    late = clone(remote, url=f"{HOST}/slow/one.git", path="/workspace/late", timeout=1)
    assert late.status == "timeout"
    eventually("nobody is alive", lambda: remote.box.run("cat /proc/[0-9]*/comm").stdout.find("git-remote") == -1)
