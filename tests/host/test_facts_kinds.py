"""Every kind of record has its rows of facts."""

from __future__ import annotations

from typing import get_args

from upstream_patch.records.fact_rows import OF_KIND
from upstream_patch.records.schema import Body


def test_every_kind_of_body_has_a_function() -> None:
    union, *_ = get_args(Body)
    kinds = {body.model_fields["kind"].default for body in get_args(union)}
    assert OF_KIND.keys() == kinds
