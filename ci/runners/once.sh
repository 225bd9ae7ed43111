#!/usr/bin/env bash
# One job, then this ends: the service that calls it starts it anew. As the user `actions`, in the runner's folder.
# A just-in-time configuration registers a runner that takes one job; without it there is nothing to run.
set -euo pipefail
cd "${RUNNER_FOLDER:-$HOME/runner}"
configuration=${JIT_FILE:-$HOME/jit/config}

if [ ! -s "$configuration" ]; then
  echo "no just-in-time configuration in $configuration: the owner has not opened the machine for a job"
  exit 0
fi
jit=$(cat "$configuration")
rm -f "$configuration" # it is good for one registration
export ACTIONS_RUNNER_HOOK_JOB_STARTED="$HOME/hooks/job-started.sh"
export ACTIONS_RUNNER_HOOK_JOB_COMPLETED="$HOME/hooks/job-completed.sh"
exec ./run.sh --jitconfig "$jit"
