"""The verbs. Each only wires; the rooms are imported inside the verb, so that facts and drafts need no MLX."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import typer

from upstream_patch.cli import (
    decode,
    draft,
    filing,
    gates,
    hosts,
    metal,
    pages,
    records,
    report,
    run,
    series,
    wheel,
)
from upstream_patch.errors import UserError

app = typer.Typer(
    help="Carry a GPU kernel from 'fast on my machine' to 'merged upstream', with evidence.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _verbs in (run.app, decode.app, hosts.app, metal.app, pages.app, report.app, gates.app, filing.app):
    app.add_typer(_verbs)
app.add_typer(draft.app, name="draft")
app.add_typer(filing.file_app, name="file")
app.add_typer(records.app, name="records")
app.add_typer(gates.rules_app, name="rules")
app.add_typer(series.app, name="series")
app.add_typer(wheel.app, name="wheel")


def main() -> None:
    """Run a verb. A person's mistake is one line on stderr and an exit code that is not 0, never a traceback."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    if isinstance(sys.stdout, io.TextIOWrapper):  # names and lines of a checkout hold any byte
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False) or 0
        if code == 130:  # typer turns Ctrl-C into it
            fail("stopped", code)
        sys.stdout.flush()
        raise SystemExit(code)
    except UserError as error:
        fail(str(error), error.exit_code)
    except BrokenPipeError:  # as in `facts | head`: nobody reads on, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (OSError, UnicodeError) as error:
        fail(f"{type(error).__name__}: {error}", 2)
    except (typer.Abort, KeyboardInterrupt):
        fail("stopped", 130)
    except Exception as error:
        # Wrong options: typer's own classes have moved between its versions, the method has not.
        if not hasattr(error, "format_message"):
            raise
        fail(f"{error.format_message()} (--help lists what there is)", getattr(error, "exit_code", 2))


def fail(message: str, code: int) -> NoReturn:
    """One line, whatever the message."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
