"""What MLX's library has and does not export: reached by its distance from a symbol that it does export.

The released library keeps its table of local symbols. The dynamic linker adds the distance to the address that it finds
for the exported symbol, so nothing of this is done at run time, and a name or a signature that the library lacks is an
error when it is linked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from upstream_patch.errors import UserError

BASE = "_ZN3mlx4core2cu19get_command_encoderENS0_6StreamE"
"""The exported symbol that distances are taken from."""
OBJECTS = {
    "wheel_vtable": "_ZTVN3mlx4core15QuantizedMatmulE",
    "wheel_eval_gpu": "_ZN3mlx4core15QuantizedMatmul8eval_gpuERKSt6vectorINS0_5arrayESaIS3_EERS3_",
}
"""Our name -> what its pointer points to."""
ALIASES = {
    "wheel_get_jit_module": "_ZN3mlx4core2cu14get_jit_moduleERNS1_6DeviceERKNSt7__cxx1112basic_stringIcSt11char_traitsI"
    "cESaIcEEERKSt8functionIFSt5tupleIJbS9_St6vectorIS9_SaIS9_EEEEvEEb",
}
"""Our name -> the function that it calls."""
_JUMP = {
    "x86_64": "\tjmp *{slot}(%rip)\n",
    "aarch64": "\tadrp x16, {slot}\n\tldr x16, [x16, :lo12:{slot}]\n\tbr x16\n",
}


class MissingSymbol(UserError):
    """MLX's library has not what the host code calls: another version, or a stripped library."""

    exit_code = 1


def symbols(nm: str) -> dict[str, int]:
    """Name -> address, of what ``nm --defined-only`` printed. A name that stands twice, as of a static, is left out."""
    found: dict[str, int] = {}
    twice: set[str] = set()
    for line in nm.splitlines():
        address, _, rest = line.partition(" ")
        kind, _, name = rest.partition(" ")
        if len(kind) == 1 and kind not in "aN":
            if name in found and found[name] != int(address, 16):
                twice.add(name)
            found[name] = int(address, 16)
    return {name: address for name, address in found.items() if name not in twice}


def undefined(nm: str) -> set[str]:
    """Names of what ``nm --undefined-only`` printed."""
    return {line.split()[1] for line in nm.splitlines() if len(line.split()) == 2}


def trampolines(
    wanted: Iterable[str], exported: Mapping[str, int], local: Mapping[str, int], machine: str
) -> tuple[str, list[str]]:
    """Assembly that defines the ``wanted`` names which the library has and does not export, and those names.

    Raises MissingSymbol for one of MLX, or of OBJECTS and ALIASES, that it has not; UserError on another CPU.
    """
    jump = _JUMP.get(machine)
    if jump is None:
        raise UserError(f"no wheel build for {machine}: x86_64 or aarch64 is needed")
    ours = {name: ALIASES.get(name, name) for name in wanted if name not in exported and name not in OBJECTS}
    ours = {name: target for name, target in ours.items() if _is_inside(target)}
    missing = [target for target in ours.values() if target not in local]
    missing += [name for name in (BASE, *OBJECTS.values()) if name not in local]
    if missing:
        raise MissingSymbol(
            f"this MLX has no {', '.join(sorted(missing))}: the host code is for the version that the series names"
        )
    lines = ["\t.text\n"]
    for number, name in enumerate(sorted(ours)):
        lines.append(f"\t.globl {name}\n\t.hidden {name}\n\t.type {name}, %function\n{name}:\n")
        lines.append(jump.format(slot=f"wheel_slot_{number}"))
    lines.append('\t.section .data.rel.ro,"aw"\n\t.balign 8\n')
    for number, name in enumerate(sorted(ours)):
        lines.append(f"wheel_slot_{number}:\n\t.quad {_place(ours[name], local)}\n")
    for name, target in OBJECTS.items():
        lines.append(f"\t.globl {name}\n\t.hidden {name}\n{name}:\n\t.quad {_place(target, local)}\n")
    lines.append('\t.section .note.GNU-stack,"",%progbits\n')
    return "".join(lines), sorted(ours)


def _place(target: str, local: Mapping[str, int]) -> str:
    return f"{BASE} + {local[target] - local[BASE]}"


def _is_inside(name: str) -> bool:
    """MLX's own, or the CUDA runtime's, which its library contains."""
    return "3mlx4core" in name or name.startswith("cuda")


def stub(names: Sequence[str]) -> str:
    """C that stands for the CUDA driver's library when linking: a machine without a GPU has none."""
    return "".join(f"void {name}(void) {{}}\n" for name in names)
