"""Records: the schema, the one writer, the one reader, the kernel hash, and the facts derived from raw samples."""

from __future__ import annotations

from upstream_patch.records.provenance import host_id, versions

__all__ = ["host_id", "versions"]
