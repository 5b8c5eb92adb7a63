"""The script around git, run by real shells: what an environment has them do shows no token."""

import os
import subprocess
from pathlib import Path

import pytest

from skerry.control.git import Auth, Clone, command_of

TOKEN = "s3cret-t0ken"
GIT = """#!/bin/sh
IFS= read -r user <&9; IFS= read -r token <&9
echo "$user has $token, $TRACED"; echo "and says $token" >&2
exit 7
"""
# What bash takes from its environment: options, a file to read first, functions.
ENVIRONMENTS = {
    "nothing": {},
    "options": {"SHELLOPTS": "xtrace:verbose", "PS4": "+TRACE "},
    "more options": {"SHELLOPTS": "errexit:nounset:noglob:posix", "BASHOPTS": "extdebug"},
    "a file": {"BASH_ENV": "{home}/profile", "ENV": "{home}/profile"},
    "functions": {"BASH_FUNC_offer%%": "() { cat >&2; }", "BASH_FUNC_read%%": '() { builtin read "$@"; set >&2; }'},
}


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_shows_no_token(tmp_path: Path, shell: str, name: str) -> None:
    (tmp_path / "git").write_text(GIT)
    (tmp_path / "git").chmod(0o755)
    (tmp_path / "profile").write_text("set -x; set -v; trap 'set >&2' DEBUG 2>/dev/null\n")
    wanted = command_of(Clone("https://host/a.git"), Auth("me", TOKEN))
    given = {
        key: value.format(home=tmp_path) if "{home}" in value else value for key, value in ENVIRONMENTS[name].items()
    }
    done = subprocess.run(
        ["sh", *wanted.argv[1:]],
        executable=shell,
        input=wanted.stdin,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **given, **wanted.env},
        capture_output=True,
        timeout=30,
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"me has [token], \n", b"and says [token]\n", 7)
