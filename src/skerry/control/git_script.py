"""The script that a git operation with or without a token runs in, POSIX shell. Nothing is pasted into it.

Arguments: `auth` or `open`; where the token may go (`url <scheme://host>`, or `fetch`/`push` and a remote's name, whose
address is looked up); git's own arguments. LAUNCH is handed the script in front of them. With `auth`, standard input
has three lines: user name, token, both in base64.

The command line's configuration comes last in git's list, so it wins: helpers of the repository and of the user are
dropped, hooks, file system monitors and prompts are off. The token is offered to one scheme and host only, by a helper
that reads it from descriptor 9; a redirect to another host therefore finds no token. Some operations connect more than
once, so the pipe holds it a few times. What git prints passes through a filter that strikes the token out.
"""

# What the environment has a shell do may print all that the shell is handed. bash takes none of it in privileged mode;
# where `sh` is one that this does not find, OWN leaves it nothing to take.
LAUNCH = """\
if [ -x /bin/bash ]; then exec /bin/bash -p -c "$@"; fi
exec /bin/sh -c "$@"
"""
OWN = {"SHELLOPTS": "", "BASHOPTS": "", "BASH_ENV": "", "ENV": ""}

SCRIPT = r"""
set +xv
mode=$1 scope=$2
shift 2
if ! command -v git >/dev/null; then
  echo "git is not installed in this sandbox. Use a template that has it, or install it." >&2
  exit 127
fi
unset GIT_TRACE GIT_TRACE_CURL GIT_TRACE_CURL_NO_DATA GIT_TRACE_PACKET GIT_TRACE2 GIT_TRACE2_EVENT GIT_TRACE2_PERF \
  GIT_CURL_VERBOSE GIT_TRACE_REDACT GIT_ASKPASS SSH_ASKPASS GIT_DIR GIT_WORK_TREE
set -- -c core.hooksPath=/dev/null -c submodule.recurse=false -c core.fsmonitor=false -c core.askPass= "$@"
if [ "$mode" = open ]; then
  exec git "$@" </dev/null
fi
IFS= read -r user && IFS= read -r token && IFS= read -r header || exit 125
exec </dev/null
remote=${scope#* }
case $scope in
  url*) url=$remote ;;
  *)
    branch=$(git symbolic-ref -q --short HEAD)
    if [ -z "$remote" ] && [ "${scope%% *}" = push ]; then
      remote=$(git config "branch.$branch.pushRemote") || remote=$(git config remote.pushDefault)
    fi
    if [ -z "$remote" ]; then remote=$(git config "branch.$branch.remote"); fi
    remote=${remote:-origin}
    if [ "${scope%% *}" = push ]; then url=$(git remote get-url --push -- "$remote")
    else url=$(git remote get-url -- "$remote"); fi || exit
    ;;
esac
case $url in
  http://*) scheme=http ;;
  https://*) scheme=https ;;
  *) echo "The remote '$remote' is not reached by http or https, which a token is for." >&2; exit 128 ;;
esac
host=${url#*://}
host=${host%%[/?#]*}
host=${host##*@}
strike() {
  while IFS= read -r line || [ -n "$line" ]; do
    for secret in "$token" "$header"; do
      rest=$line line=
      while :; do
        case $rest in
          *"$secret"*) line="$line${rest%%"$secret"*}[token]" rest=${rest#*"$secret"} ;;
          *) line=$line$rest; break ;;
        esac
      done
    done
    printf '%s\n' "$line"
  done
}
offer() {
  for _ in 1 2 3 4; do printf '%s\n%s\n' "$user" "$token"; done
}
helper='!f() { if [ "$1" = get ] && IFS= read -r u <&9 && IFS= read -r t <&9; then
  printf "username=%s\npassword=%s\n" "$u" "$t"; fi; }; f'
exec 5>&1 6>&2
code=$( { { {
  offer | {
    exec 9<&0 </dev/null 4>&- 5>&- 6>&-
    exec git -c credential.helper= -c "credential.$scheme://$host.helper=$helper" -c http.followRedirects=false \
      -c gc.auto=0 -c maintenance.auto=false "$@"
  } 2>&3 3>&-
  echo $? >&4
  } | strike >&5
} 3>&1 | strike >&6; } 4>&1 )
exit "$code"
"""
