#!/usr/bin/env bash
# Before each job: nothing of an earlier job runs or lies here. GitHub's runner calls it (ACTIONS_RUNNER_HOOK_JOB_STARTED)
# and stops the job when it fails. It lies outside the repository, so that no job can change it.
set -euo pipefail

user=$(id -un)
[ "$user" = actions ] || { echo "error: jobs run as the user actions, this is $user" >&2; exit 1; }

# Processes of this user that are not the runner's own: what an earlier job left. Pid, then the command's name.
strays() {
  local pid name
  while read -r pid name; do
    case ${name##*/} in
      Runner.Listener | Runner.Worker | job-started.sh | run.sh | run-helper.sh | bash | ps | systemd | "(sd-pam)") ;;
      *) echo "$pid ${name##*/}" ;;
    esac
  done < <(ps -u "$user" -o pid=,comm=)
}
left=$(strays)
if [ -n "$left" ]; then
  echo "error: an earlier job left these running; look at them, end them, start the job again" >&2
  echo "$left" >&2
  exit 1
fi

# The workspace is wiped before a job, not only after: a job that was cut off cleaned nothing.
if [ -n "${GITHUB_WORKSPACE:-}" ] && [ -d "$GITHUB_WORKSPACE" ]; then
  case $GITHUB_WORKSPACE in
    "$HOME"/*/_work/*) find "$GITHUB_WORKSPACE" -mindepth 1 -delete ;;
    *) echo "error: $GITHUB_WORKSPACE is no workspace under $HOME" >&2; exit 1 ;;
  esac
fi
echo "no strays, an empty workspace"
