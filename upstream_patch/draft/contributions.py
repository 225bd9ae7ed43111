"""The two contributions that a draft can be about, and all in which their drafts, gates and filings differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from upstream_patch.errors import UserError
from upstream_patch.records.fact_rows import NAX
from upstream_patch.records.facts import MAKES, Fact
from upstream_patch.records.provenance import HOSTS

_M5 = "python -m upstream_patch m5"
_ON_M5 = "on a Mac with an M5"


class Contribution(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["cuda", "metal"]
    """Of MLX's backend, too."""
    vendor: str
    """Of the GPUs whose facts a draft holds and may speak of, in small letters."""
    series: tuple[str, ...]
    """What the pull request puts in, where no build says."""
    family: str
    """Of the facts that time stock and ours."""
    makes: Mapping[str, str]
    """Family of facts -> the command that makes it."""
    needed: frozenset[str]
    """Families without which no draft can go out: where one is missing stands what no gate lets through."""
    unseen: str
    """What a draft says while there is no record of any needed family."""
    left_to_stock: str
    """Pattern of the routes that the change leaves as they were."""
    build: str
    drift: str
    bench: str
    in_mlx: str
    """What times MLX with the series in it."""
    boundary: str
    """What times problems that stay with stock."""
    topic: str
    """Of change ids and receipts."""
    queries: tuple[str, ...]
    """For duplicates; all words of one must stand in a hit."""
    refused: Mapping[str, str] = {}
    """Draft that there is none of -> why."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines that it is about, in the order of the tables."""
        return tuple(host for host, product in HOSTS.items() if product.lower().startswith(self.vendor))

    @property
    def option(self) -> str:
        """As it stands behind a verb."""
        return "" if self == CUDA else f" --contribution {self.name}"

    def key(self, name: str) -> str:
        """A name in the folder of drafts, for this contribution alone."""
        return name if self == CUDA else f"{name}_{self.name}"

    def of(self, facts: Sequence[Fact]) -> list[Fact]:
        """Facts of machines with a GPU of the vendor: the only ones that a draft may hold or speak of."""
        hosts = {
            fact.host
            for fact in facts
            if fact.id.startswith("record.") and fact.id.endswith(".vendor") and str(fact.value).lower() == self.vendor
        }
        return [fact for fact in facts if fact.host in hosts]

    def leaves(self, route: str) -> bool:
        return re.fullmatch(self.left_to_stock, route) is not None


CUDA = Contribution(
    name="cuda",
    vendor="nvidia",
    series=("folding", "cuda"),
    family="small_m",
    makes=dict(MAKES),
    needed=frozenset({"small_m", "correctness", "ncu", "decode"}),
    unseen="no CUDA GPU has run it yet",
    left_to_stock="stock",
    build="nox -s build -- --mlx PATH",
    drift="nox -s drift -- --mlx PATH",
    bench="nox -s bench on a CUDA GPU",
    in_mlx="nox -s wheel -- run, on a CUDA GPU",
    boundary="nox -s bench -- --suite boundary, on a CUDA GPU",
    topic="cuda-small-m",
    queries=("qmv CUDA rows", "quantized_matmul CUDA small batch", "qmm_sm80", "multirow qmv"),
)
METAL = Contribution(
    name="metal",
    vendor="apple",
    series=("metal",),
    family=NAX,
    makes={
        NAX: _M5,
        "correctness": _M5,
        "forward": f"{_M5} --model FOLDER_OR_ID",
        "build": MAKES["build"],
    },
    needed=frozenset({NAX, "correctness"}),
    unseen="no Apple GPU has run it yet",
    left_to_stock="(?!.*staged).+",
    build=f"nox -s build -- --mlx PATH, {_ON_M5}",
    drift="nox -s drift -- --mlx PATH --contribution metal",
    bench=f"nox -s m5, {_ON_M5}",
    in_mlx="time both builds with the draft's script, say so in your words, then upstream-patch excuse pr benchmarks "
    "--contribution metal --because WHY",
    boundary=f"nox -s m5, {_ON_M5}",
    topic="metal-qmm-t-nax",
    queries=("qmm_t_nax", "qmm_t_splitk", "qmm_nax split-K", "quantized_matmul NAX", "qmv_wide"),
    refused={
        "link-back": "no thread downstream is known that waits for the Metal change",
        "docs": "the note in the downstream doc is about CUDA",
    },
)
CONTRIBUTIONS = {one.name: one for one in (CUDA, METAL)}


def named(name: str) -> Contribution:
    """Raises UserError where there is none."""
    if name not in CONTRIBUTIONS:
        raise UserError(f"no contribution {name}: {', '.join(CONTRIBUTIONS)}")
    return CONTRIBUTIONS[name]


def carrier(series: Sequence[str]) -> Contribution:
    """The one whose pull request puts any of these in."""
    return next((one for one in CONTRIBUTIONS.values() if {*one.series} & {*series}), CUDA)
