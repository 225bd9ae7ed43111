"""The loop that is timed, on the host's clock, and the step's matmuls alone under the same clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from upstream_patch.errors import UserError
from upstream_patch.measure.decode.arms import ARMS, Call, recorded
from upstream_patch.measure.decode.lm import lm
from upstream_patch.measure.decode.models import Built
from upstream_patch.measure.decode.shapes import PROMPT

LEAD = 2
"""Steps before the timed ones: the pipeline of host and device is full when the clock is read."""
SAMPLE_MS, LEAST_STEPS, MOST_STEPS = 200.0, 6, 16
"""A sample of the slowest arm should last so long, within these numbers of steps."""
LOOP = (
    f"{PROMPT}-token prompts of random tokens, one per sequence; then greedy steps: next = "
    "argmax(model(y[:, None], cache)[:, -1]), mx.async_eval(next), mx.eval(y), y = next. One step is always built "
    f"while the one before runs. Host clock, from the end of one mx.eval(y) to another, {LEAD} steps after the start. "
    "Every sample starts from the same cache, trimmed back to the prompt"
)


@dataclass
class State:
    """A batch after its prompt: what every sample of every arm starts from."""

    built: Built
    batch: int
    prompts: Any
    cache: list[Any]
    first: Any
    """[B] tokens: the ones that stock chose after the prompt."""

    def start(self) -> Any:
        """Trim the cache back to the prompt; the first tokens."""
        for layer in self.cache:
            layer.trim(layer.offset - PROMPT)
        return self.first

    def step(self, y: Any) -> Any:
        """Logits [B, vocabulary] after one more token a sequence, not evaluated."""
        return self.built.module(y[:, None], cache=self.cache)[:, -1]


@dataclass(frozen=True)
class Sample:
    """ms a step; ``host`` is the part in which the host built and enqueued."""

    step: float
    host: float


def prompts(built: Built, batch: int) -> Any:
    """Random tokens [batch, PROMPT]."""
    mx: Any = import_module("mlx.core")
    return mx.random.randint(0, built.vocabulary, (batch, PROMPT), key=mx.random.key(batch))


def prefill(built: Built, batch: int) -> State:
    """The prompt through stock MLX. Raises UserError where the model's cache cannot be trimmed."""
    mx: Any = import_module("mlx.core")
    cache = lm_cache(built)
    if not lm("models.cache").can_trim_prompt_cache(cache):
        raise UserError(f"{built.name} has a cache that cannot be trimmed: its decode cannot be timed in rounds")
    tokens = prompts(built, batch)
    first = mx.argmax(built.module(tokens, cache=cache)[:, -1], axis=-1)
    mx.eval(first, [layer.state for layer in cache])
    return State(built, batch, tokens, cache, first)


def lm_cache(built: Built) -> list[Any]:
    cache: list[Any] = lm("models.cache").make_prompt_cache(built.module)
    return cache


def sample(state: State, arm: str, steps: int) -> Sample:
    """One sample of an arm."""
    mx: Any = import_module("mlx.core")

    def enqueue(y: Any) -> Any:
        following = mx.argmax(state.step(y), axis=-1)
        mx.async_eval(following)
        return following

    with ARMS[arm]():
        return timed(enqueue, state.start(), steps)


def timed(enqueue: Callable[[Any], Any], y: Any, steps: int) -> Sample:
    """``enqueue(y)`` builds and enqueues the step after y. One is always ahead of the one that is waited for."""
    mx: Any = import_module("mlx.core")
    host, begin = 0.0, 0.0
    for number in range(LEAD + steps):
        before = time.perf_counter()
        following = enqueue(y)
        if number >= LEAD:
            host += time.perf_counter() - before
        mx.eval(y)
        y = following
        if number == LEAD - 1:
            begin = time.perf_counter()
    elapsed = time.perf_counter() - begin
    mx.eval(y)
    return Sample(1e3 * elapsed / steps, 1e3 * host / steps)


def calls_of(state: State, arm: str) -> tuple[Any, list[Call]]:
    """Logits of an arm's first step, evaluated, and the step's quantized matmuls with inputs and outputs."""
    mx: Any = import_module("mlx.core")
    calls: list[Call] = []
    with ARMS[arm](), recorded(calls):
        logits = state.step(state.start())
    mx.eval(logits, [call.x for call in calls], [call.y for call in calls])
    return logits, calls


def matmuls_alone(calls: Sequence[Call], steps: int) -> float:
    """ms of one step's quantized matmuls alone, waiting for one another as in the step.

    Calls with one x are side by side, as q, k and v are; what follows takes as its x an output of theirs of the right
    shape (q's for o, o's for gate and up, ...), so nothing else runs between them.
    """
    mx: Any = import_module("mlx.core")

    def enqueue(_: Any) -> Any:
        made: list[Any] = []
        ready: list[Any] = []
        x, own = None, None
        for call in calls:
            if call.x is not own:
                x = next((y for y in ready if y.shape == call.x.shape), call.x)
                own, ready = call.x, []
            y = call.again(x)
            ready.append(y)
            made.append(y)
        mx.async_eval(*made)
        return made

    return timed(enqueue, [call.y for call in calls], steps).step
