"""What this machine is: the one prober. Doctor, records, build checks and the runner health check use it."""

from __future__ import annotations

from upstream_patch.machine.doctor import diagnose
from upstream_patch.machine.models import Finding, Gpu, Machine
from upstream_patch.machine.probe import cuda_device, probe
from upstream_patch.machine.system import Answer, System
from upstream_patch.machine.toolchain import (
    CXX_FIX,
    CXX_VARIABLE,
    MLX_HEADERS_FIX,
    NVDISASM_FIX,
    NVRTC_FIX,
    Cxx,
    Nvrtc,
    find_cxx,
    find_metal_cxx,
    find_mlx_headers,
    find_nvdisasm,
    find_nvrtc,
)

__all__ = [
    "CXX_FIX",
    "CXX_VARIABLE",
    "MLX_HEADERS_FIX",
    "NVDISASM_FIX",
    "NVRTC_FIX",
    "Answer",
    "Cxx",
    "Finding",
    "Gpu",
    "Machine",
    "Nvrtc",
    "System",
    "cuda_device",
    "diagnose",
    "find_cxx",
    "find_metal_cxx",
    "find_mlx_headers",
    "find_nvdisasm",
    "find_nvrtc",
    "probe",
]
