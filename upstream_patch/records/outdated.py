"""Whether what ran is not what runs today, where the kernel's hash does not say so."""

from __future__ import annotations

from collections.abc import Sequence

from upstream_patch import kernels
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.problem import Problem
from upstream_patch.records.schema import Record, SanitizerBody


def retuned(record: Record, problem: Problem, names: Sequence[str]) -> bool:
    """Tuning is no part of the kernel hash, so that one device's does not void another's evidence; it is checked here.

    Names that carry no tuning (other kernels) are not judged; a device that has no tuning any more makes none of them.
    """
    gpu = record.machine.gpu
    ran = [match for name in names if (match := kernels.INSTANCE.search(name))]
    if not ran or gpu is None or gpu.compute_capability is None or gpu.multiprocessors is None:
        return False
    major, minor = gpu.compute_capability.split(".")
    capability = int(major), int(minor)
    if capability not in DEVICE_CLASSES:
        return True
    try:
        variant, _ = kernels.small_m_variant(problem, capability, gpu.multiprocessors)
    except ValueError:  # a format that nothing fits
        return True
    return any(match.group() != variant.name for match in ran)


def unwatched(record: Record, body: SanitizerBody) -> bool:
    """Whether this device class launches an instance today that the tools did not see. One more does no harm."""
    watched = {match.group() for launch in body.launched if (match := kernels.INSTANCE.search(launch.kernel))}
    gpu = record.machine.gpu
    if not watched or gpu is None or gpu.compute_capability is None:
        return False
    arch = f"sm_{gpu.compute_capability.replace('.', '')}"
    return any(variant.name not in watched for variant in kernels.variants(arch))
