#!/usr/bin/env bash
# The owner opens the machine for one job: asks GitHub for a just-in-time configuration and hands it to the service.
# Usage: open.sh OWNER/REPOSITORY gb10|m5      Needs gh, logged in as an administrator of the repository.
set -euo pipefail
repository=${1:?OWNER/REPOSITORY}
machine=${2:?gb10 or m5}
case $machine in
  gb10) system=Linux home=/home/actions ;;
  m5) system=macOS home=/Users/actions ;;
  *) echo "error: $machine is neither gb10 nor m5" >&2; exit 2 ;;
esac
case $(uname -s) in
  Linux) here=Linux ;;
  Darwin) here=macOS ;;
  *) here=unknown ;;
esac
[ "$here" = "$system" ] || { echo "error: this machine is no $machine" >&2; exit 2; }
if [ "$system" = Linux ]; then
  state=$(systemctl is-active actions-runner.service || true)
else
  state=$(sudo launchctl print system/actions-runner | sed -n 's/^[[:space:]]*state = //p' | head -n 1)
fi
case $state in
  active | activating | running) echo "error: it is open already; the job, or the wait for one, is not over" >&2; exit 1 ;;
esac

configuration=$(gh api --method POST "repos/$repository/actions/runners/generate-jitconfig" \
  -f "name=$machine-$(date -u +%Y%m%dT%H%M%SZ)" -F runner_group_id=1 -f work_folder=_work \
  -f "labels[]=self-hosted" -f "labels[]=$system" -f "labels[]=ARM64" -f "labels[]=$machine" --jq .encoded_jit_config)
[ -n "$configuration" ] || { echo "error: GitHub gave no configuration" >&2; exit 1; }

# Through a pipe: on a command line every user of the machine could read it. The path is whole: sudo may keep the
# owner's HOME.
# shellcheck disable=SC2016 # $1 is for the inner shell
printf '%s' "$configuration" | sudo -u actions sh -c 'umask 077 && cat >"$1"' sh "$home/job/jit"
if [ "$system" = Linux ]; then
  sudo systemctl start actions-runner.service
else
  sudo launchctl kickstart system/actions-runner
fi
echo "$machine waits for one job of $repository"
