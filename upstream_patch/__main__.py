"""``python -m upstream_patch``."""

from __future__ import annotations

from upstream_patch.cli import main

if __name__ == "__main__":
    main()
