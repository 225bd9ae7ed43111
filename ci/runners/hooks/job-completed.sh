#!/usr/bin/env bash
# After each job: end what it left running below the workspace, and wipe that. (ACTIONS_RUNNER_HOOK_JOB_COMPLETED)
set -euo pipefail

workspace=${GITHUB_WORKSPACE:?the runner sets it}
case $workspace in
  "$HOME"/*/_work/*) ;;
  *) echo "error: $workspace is no workspace under $HOME" >&2; exit 1 ;;
esac

folder_of() { # working folder of a process; nothing where it is gone
  if [ -d /proc/self ]; then readlink "/proc/$1/cwd" 2>/dev/null || true; else lsof -a -p "$1" -d cwd -Fn 2>/dev/null | sed -n 's/^n//p'; fi
}

# Only processes that work in the workspace: never one by its name. This script may itself be one of them.
ended=0
while read -r pid parent; do
  if [ "$pid" = "$$" ] || [ "$parent" = "$$" ] || [ "$pid" = "$PPID" ]; then continue; fi
  case $(folder_of "$pid") in
    "$workspace" | "$workspace"/*)
      echo "ending $pid, which the job left"
      kill "$pid" 2>/dev/null || true
      ended=$((ended + 1))
      ;;
  esac
done < <(ps -u "$(id -un)" -o pid=,ppid=)
if [ "$ended" -gt 0 ]; then sleep 2; fi
if [ -d "$workspace" ]; then find "$workspace" -mindepth 1 -delete; fi
echo "$ended strays ended, the workspace is empty"
