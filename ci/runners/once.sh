#!/usr/bin/env bash
# One job, then this ends, and the service stays down until the owner opens it again. As the user `actions`, whose $HOME
# is wiped first: runner, tools, caches and settings are new for each job, so that none finds what another left.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) # root owns it and the folders above: no job can change the runner or the hooks
configuration=$HOME/jit

case $HOME in
  */job) ;;
  *) echo "error: $HOME is not the folder of a job, and would be wiped" >&2; exit 1 ;;
esac
if [ ! -s "$configuration" ]; then
  echo "no just-in-time configuration in $configuration: the owner has not opened the machine for a job"
  exit 0
fi
# It registers a runner for one job. In the environment, from which the runner takes it out: other users of the machine
# can read a command line.
ACTIONS_RUNNER_INPUT_JITCONFIG=$(cat "$configuration")
chmod -R u+rwX "$HOME"
find "$HOME" -mindepth 1 -delete
mkdir "$HOME/runner" "$HOME/tmp"
tar -xzf "$here/runner.tar.gz" -C "$HOME/runner"

export ACTIONS_RUNNER_INPUT_JITCONFIG TMPDIR="$HOME/tmp"
export ACTIONS_RUNNER_HOOK_JOB_STARTED="$here/hooks/job-started.sh"
export ACTIONS_RUNNER_HOOK_JOB_COMPLETED="$here/hooks/job-completed.sh"
cd "$HOME/runner"
exec ./run.sh
