"""The device tests measure as the verbs do: MLX reads its graph limits when it first uses the GPU, so this is first."""

from __future__ import annotations

from upstream_patch.measure.graphs import one_graph_a_sample

one_graph_a_sample()
