"""``python -m ci VERB``: each verb only wires. The first four need nothing but Python."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ci.machines import DEVICES, LEGS
from upstream_patch.errors import UserError

RESULT = Path("out/device")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m ci", description="What the workflows decide.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    each = verbs.add_parser("setup", help="make .venv with nox, uv and this package")
    each.add_argument("--dry-run", action="store_true")
    each = verbs.add_parser("plan", help="the matrix of a workflow's hosted jobs")
    each.add_argument("workflow", choices=tuple(LEGS))
    verbs.add_parser("passed", help="did every job of $NEEDS succeed")
    verbs.add_parser("gate", help="may this run use the devices, and which")
    each = verbs.add_parser("health", help="may this machine measure now; exit 1 when not")
    each.add_argument("machine", choices=tuple(DEVICES))
    each = verbs.add_parser("pack", help="gather the new records, and say how the run went")
    each.add_argument("machine", choices=tuple(DEVICES))
    each = verbs.add_parser("collect", help="verify what the devices sent")
    each.add_argument("artifacts", type=Path)
    each.add_argument("--out", type=Path, default=Path("out/evidence"))
    each = verbs.add_parser("propose", help="push what was collected to a branch of its own")
    each.add_argument("collected", type=Path)
    each = verbs.add_parser("mirror", help="for a maintainer: push a reviewed pull request to device/pr-N")
    each.add_argument("number", type=int)
    each.add_argument("commit", help="the full commit that was read")
    verbs.add_parser("lint", help="every linter of the workflows, offline")
    return top


def run(asked: argparse.Namespace) -> int:
    from ci.outputs import add_summary, set_outputs

    if asked.verb == "setup":
        from ci.setup import setup

        setup(asked.dry_run)
    elif asked.verb == "plan":
        from ci.plan import matrix

        set_outputs({"matrix": matrix(asked.workflow)})
    elif asked.verb == "passed":
        from ci.plan import require_success

        require_success(os.environ.get("NEEDS", ""))
    elif asked.verb == "gate":
        from ci import gate
        from ci.git import git

        event = os.environ.get("GITHUB_EVENT_PATH", "")
        said = json.loads(Path(event).read_text(encoding="utf-8")) if event else {}
        made = gate.decide(gate.request(os.environ, said), git)
        set_outputs(made.outputs())
        add_summary(made.page())
    elif asked.verb == "health":
        from ci import health, pack, summary
        from upstream_patch.files import write_text

        found = health.examine(DEVICES[asked.machine])
        write_text(Path("out") / pack.HEALTH, found.model_dump_json(indent=1) + "\n")
        add_summary(summary.health(found))
        return int(bool(found.failed))
    elif asked.verb == "pack":
        from ci import pack, summary

        add_summary(summary.device(pack.pack(asked.machine, os.environ.get("SUITE", ""), Path(), RESULT)))
    elif asked.verb == "collect":
        from ci import collect, summary

        runs, records = collect.collect(asked.artifacts, os.environ.get("COMMIT", ""), Path("evidence"), asked.out)
        set_outputs({"records": records})
        add_summary(summary.collected(runs, records))
    elif asked.verb == "propose":
        from ci import branches

        os.environ |= branches.credentials(os.environ)
        branch, paths = branches.propose(asked.collected, os.environ)
        add_summary(f"{len(paths)} files are on `{branch}`: a maintainer opens the pull request.\n")
    elif asked.verb == "mirror":
        from ci import branches

        print(f"pushed to {branches.mirror(asked.number, asked.commit)}")
    elif asked.verb == "lint":
        from ci.lint import lint

        findings = lint(Path())
        print("\n".join(findings) or "no findings")
        return int(bool(findings))
    return 0


def main() -> None:
    try:
        raise SystemExit(run(parser().parse_args()))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
