"""mlx-lm's own batched loop beside ours: what its users get, with its bookkeeping in Python."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from upstream_patch.measure.decode.arms import ARMS
from upstream_patch.measure.decode.lm import lm
from upstream_patch.measure.decode.loop import LEAD
from upstream_patch.measure.decode.models import Built

_ENDLESS = 1 << 20
"""Tokens after which a sequence would end: never reached."""


@dataclass
class Generator:
    """A BatchGenerator in which every sequence is past its prompt; each arm has one of its own."""

    arm: str
    batch: int
    generator: Any

    def sample(self, steps: int) -> float:
        """ms a step. The context grows by ``steps`` and LEAD tokens, alike in every arm."""
        begin = 0.0
        with ARMS[self.arm]():
            for number in range(LEAD + steps):
                if number == LEAD:
                    begin = time.perf_counter()
                self.generator.next_generated()
        return 1e3 * (time.perf_counter() - begin) / steps


def started(built: Built, arm: str, prompts: Any) -> Generator:
    """All prompts in one batch, processed until every sequence gets a token a step."""
    batch = int(prompts.shape[0])
    with ARMS[arm]():
        generator = lm("generate").BatchGenerator(
            built.module, max_tokens=_ENDLESS, completion_batch_size=batch, prefill_batch_size=batch
        )
        generator.insert(prompts.tolist())
        while len(generator.next_generated()) < batch:
            pass
    return Generator(arm, batch, generator)
