#!/usr/bin/env bash
# After each job: end what it left running below the workspace, and wipe that. (ACTIONS_RUNNER_HOOK_JOB_COMPLETED)
set -euo pipefail

workspace=${GITHUB_WORKSPACE:?the runner sets it}
case $workspace in
  */../* | */..) echo "error: $workspace is no workspace" >&2; exit 1 ;;
  "$HOME"/*/_work/*) ;;
  *) echo "error: $workspace is no workspace under $HOME" >&2; exit 1 ;;
esac
[ -d "$workspace" ] || { echo "there is no workspace"; exit 0; }
workspace=$(cd "$workspace" && pwd -P) # as the working folder of a process is told

folder_of() { # working folder of a process; nothing where it is gone
  if [ -d /proc/self ]; then readlink "/proc/$1/cwd" 2>/dev/null || true; else lsof -a -p "$1" -d cwd -Fn 2>/dev/null | sed -n 's/^n//p'; fi
}

# Only processes that work in the workspace: never one by its name. This script may itself be one of them.
strays() {
  local pid parent processes
  processes=$(ps -u "$(id -un)" -o pid=,ppid=) # all of it before the first is looked at: ps is gone by then
  while read -r pid parent; do
    if [ "$pid" = "$$" ] || [ "$parent" = "$$" ] || [ "$pid" = "$PPID" ]; then continue; fi
    case $(folder_of "$pid") in
      "$workspace" | "$workspace"/* | "$workspace (deleted)") echo "$pid" ;;
    esac
  done <<<"$processes"
}

for signal in TERM KILL; do
  left=$(strays)
  [ -n "$left" ] || break
  while read -r pid; do
    echo "SIG$signal to $pid, which the job left"
    kill -s "$signal" "$pid" 2>/dev/null || true
  done <<<"$left"
  sleep 1
done
left=$(strays)
[ -z "$left" ] || { echo "error: these do not end:" "$left" >&2; exit 1; }
chmod -R u+rwX "$workspace"
find "$workspace" -mindepth 1 -delete
echo "no strays, an empty workspace"
