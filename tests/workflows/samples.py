"""Results of device jobs that nobody measured: a good one, one of an unfit machine, one that ended half-way."""

from __future__ import annotations

from ci.result import Check, DeviceRun, Health, RecordLine, StageLine

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GPU = Check(name="GPU", ok=True, required=True, found="NVIDIA GB10, compute capability 12.1")
CLOCK = Check(name="memory clock", ok=False, required=False, found="not told (Not Supported)")
HOT = Check(name="temperature", ok=False, required=True, found="71 C", fix="let it cool to 65 C")
FIT = Health(machine="gb10", checks=(GPU, CLOCK))
UNFIT = Health(machine="gb10", checks=(GPU, HOT, CLOCK))
RECORD = "evidence/records/gb10/gb10-20261101T120000Z-bench-fe621ca1.json"
FILES = (
    RecordLine(path="evidence/raw/gb10-20261101T120000Z-bench-fe621ca1/samples.csv", sha256="ef" * 32),
    RecordLine(path=RECORD, sha256="cd" * 32),
)
BUILD = StageLine(stage="build", outcome="ran here", detail="2 kernels for sm_121 compile; no spills")
BENCH = StageLine(stage="bench", outcome="ran here", detail="24 rows")
PROFILE = StageLine(
    stage="profile", outcome="FAILED", detail="ncu said: <b>ERR_NVGPUCTRPERM</b> | ask @owner\nand more"
)

GOOD = DeviceRun(machine="gb10", commit=COMMIT, health=FIT, suite="success", stages=(BUILD, BENCH), files=FILES)
STOPPED = DeviceRun(machine="gb10", commit=COMMIT, health=UNFIT, suite="skipped", stages=(), files=())
PARTIAL = GOOD.model_copy(update={"suite": "failure", "stages": (BUILD, BENCH, PROFILE)})
CUT_OFF = GOOD.model_copy(update={"suite": "cancelled", "stages": ()})
UNASKED = STOPPED.model_copy(update={"health": None})
