"""The stages of a GB10's owner: those of the contribution that a GPU makes, after a look at the machine."""

from __future__ import annotations

from dataclasses import replace

from upstream_patch.contribution.chain import Context, Outcome, Result, Stage
from upstream_patch.contribution.stages import STAGES as ALL
from upstream_patch.errors import UserError

HOST = "gb10"
NAMES = ("build", "correctness", "sanitize", "bench", "profile", "peers", "decode", "records verify")


def stages() -> tuple[Stage, ...]:
    """Nothing runs on a machine that is no GB10, or whose record could not say what it measured."""
    named = {stage.name: stage for stage in ALL}
    return (Stage("health", _health), *(replace(named[name], needs=("health", *named[name].needs)) for name in NAMES))


def _health(_: Context) -> Result:
    from upstream_patch.machine import diagnose, probe
    from upstream_patch.records import host_id, versions
    from upstream_patch.records.provenance import HOSTS, require_commit

    machine = probe()
    if (host := host_id(machine)) != HOST:
        found = machine.gpu.name if machine.gpu else "no GPU"
        raise UserError(f"this is no {HOSTS[HOST]} ({found}): nox -s contribution is the job for {host} and any other")
    require_commit(HOST, versions())
    missing = [finding.name for finding in diagnose() if not finding.ok]
    return Result(Outcome.RAN, f"{HOSTS[HOST]}; missing: {', '.join(missing) or 'nothing'}")
