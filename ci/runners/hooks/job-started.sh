#!/usr/bin/env bash
# Before each job: is it one that this machine is for, and does nothing of an earlier one run or lie here? GitHub's runner
# calls it (ACTIONS_RUNNER_HOOK_JOB_STARTED) and stops the job when it fails. Root owns it, outside the repository.
set -euo pipefail
refuse() {
  echo "error: $1" >&2
  exit 1
}

user=$(id -un)
[ "$user" = actions ] || refuse "jobs run as the user actions, this is $user"

# A pull request brings workflows of its own, which may name this machine's labels. What GitHub says of the run is not
# in its hands.
event=${GITHUB_EVENT_NAME:-nothing} ref=${GITHUB_REF:-nothing} workflow=${GITHUB_WORKFLOW_REF:-nothing}
case $event in
  workflow_dispatch | schedule | push) ;;
  *) refuse "$event never runs on this machine" ;;
esac
case $ref in
  refs/heads/main | refs/heads/device/*) ;;
  *) refuse "$ref is no branch that runs on this machine" ;;
esac
case $workflow in
  */*/.github/workflows/device.yml@"$ref") ;;
  *) refuse "$workflow is not the workflow that runs on this machine" ;;
esac

# Processes of this user that neither led to this script nor are its own. A name says nothing: anybody chooses it. Only
# the system's per-user services pass, whose files no user can write.
processes=$(ps -u "$user" -o pid=,ppid=,comm=)
left=$(awk -v self="$$" '
  { pid = $1; parent[pid] = $2; sub(/^ *[0-9]+ +[0-9]+ +/, ""); name[pid] = $0 }
  END {
    for (pid = self; pid in parent; pid = parent[pid]) known[pid] = 1
    for (pid in parent) {
      for (above = pid; above in parent && above != self; above = parent[above]);
      service = name[pid] ~ /^(systemd|\(sd-pam\)|\/System\/.*|\/usr\/libexec\/.*|\/usr\/sbin\/.*)$/
      if (!(pid in known) && above != self && !service) print pid, name[pid]
    }
  }' <<<"$processes")
[ -z "$left" ] || refuse "an earlier job left these running; look at them, end them, start the job again: $left"
[ -z "$(crontab -l 2>/dev/null)" ] || refuse "an earlier job left a crontab: crontab -u $user -r"

# The workspace is wiped before a job, not only after: a job that was cut off cleaned nothing.
workspace=${GITHUB_WORKSPACE:-}
if [ -n "$workspace" ] && [ -d "$workspace" ]; then
  case $workspace in
    */../* | */..) refuse "$workspace is no workspace" ;;
    "$HOME"/*/_work/*) ;;
    *) refuse "$workspace is no workspace under $HOME" ;;
  esac
  chmod -R u+rwX "$workspace"
  find "$workspace" -mindepth 1 -delete
fi
echo "no strays, an empty workspace"
