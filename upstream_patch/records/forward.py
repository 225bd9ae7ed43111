"""What a benchmark on a Mac holds of whole models, one forward pass over random tokens, and the facts of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from upstream_patch.records import stats
from upstream_patch.records.form import FORM, Error, Samples

Named = tuple[str, tuple[float | str, str, bool]]
"""(name, (value, unit, whether it says something about our kernel))"""


class Forward(BaseModel):
    """Milliseconds of whole passes, paired by round; host clock around the evaluation of the logits."""

    model_config = FORM

    model: str
    tokens: Annotated[int, Field(ge=1)]
    last_only: bool = False
    """The output head took the last token only."""
    stock_ms: Samples
    ours_ms: Samples
    aa_ms: Samples
    """Stock again, in the same rounds: stock_ms / aa_ms is the noise of the method."""
    logits_error: Error
    """Of the last token, ours from stock's, over the norm of stock's."""

    @model_validator(mode="after")
    def _paired(self) -> Forward:
        if not len(self.stock_ms) == len(self.ours_ms) == len(self.aa_ms):
            raise ValueError("stock_ms, ours_ms and aa_ms differ in length: they are paired by round")
        return self

    @property
    def fact_stem(self) -> str:
        """The pass's part of a fact id."""
        return f"{self.model}.T{self.tokens}"

    @property
    def text(self) -> str:
        stock, ours = statistics.median(self.stock_ms), statistics.median(self.ours_ms)
        return f"{self.model}, {self.tokens} tokens: {stock:.1f} -> {ours:.1f} ms"


def forward_values(one: Forward) -> Iterator[Named]:
    """Medians, the ratio with its interval and verdict, what the output head took, and how far our logits are from
    stock's."""
    ratio, noise = stats.geometric_mean_ratios([(one.stock_ms, one.ours_ms), (one.stock_ms, one.aa_ms)])
    judged = stats.verdict(ratio, noise, len(one.ours_ms))
    yield "stock_ms", (statistics.median(one.stock_ms), "ms", False)
    yield "ours_ms", (statistics.median(one.ours_ms), "ms", True)
    yield "speedup", (ratio.value, "ratio", True)
    yield "speedup_low", (ratio.low, "ratio", True)
    yield "speedup_high", (ratio.high, "ratio", True)
    yield "verdict", (str(judged.verdict), "text", True)
    yield "verdict_reason", (judged.reason, "text", True)
    yield "head", ("last token" if one.last_only else "every token", "text", False)
    yield "logits_error", (one.logits_error, "norm", True)
