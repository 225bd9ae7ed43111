"""Names of what no fact is of: other libraries and kernels, found by a list and by the form of a proper name."""

from __future__ import annotations

import re

_LIBRARIES = (
    r"cuBLAS(?:Lt)?|cuDNN|CUTLASS|vLLM|SGLang|Marlin|Machete|llama\.cpp|ggml|ollama|TensorRT(?:-LLM)?|ExLlama\w*"
    r"|bitsandbytes|Triton|JAX|FlashInfer|AWQ|GPTQ\w*|HQQ|AutoGPTQ|LMDeploy|TurboMind|MLC(?:-LLM)?|tinygrad|TVM|IREE"
    r"|ONNX(?:\sRuntime)?|OpenVINO|DeepSpeed|ThunderKittens|TileLang|candle|burn|gemlite|ktransformers|CoreML|torch\.compile"
    r"|torchao|(?:NVIDIA|AMD|Intel|Apple)'s\s(?:own\s)?(?:\w+\s){0,2}(?:GEMMs?|kernels?|librar(?:y|ies)|matmuls?)"
)
LIBRARY = re.compile(rf"(?<![\w/.#-])(?:{_LIBRARIES})(?![\w/])", re.IGNORECASE)
_ANOTHER = re.compile(
    r"(?:\b(?:naive|reference|simple|scalar|generic|default|hand[- ]?written|hand[- ]tuned|other|another|competing)\s"
    r"(?:\w+\s)?(?:kernel|implementation|version|code|library)|\breference|\bCPU|\bPython|\bMetal|\bdequantiz\w+)"
    r"(?=\s(?:alone\s|now\s|only\s)?(?:takes?|took|needs?|runs|reaches|gets|decodes|costs)\b|:?\s\d)",
    re.IGNORECASE,
)
"""What is no arm of a measurement, as the one that takes a time."""
_NAME = re.compile(r"(?<![\w./#@\u2019'-])[A-Za-z][\w+-]*(?:\.[A-Za-z]\w*)*(?![\w/])")
_KNOWN = re.compile(
    r"mlx|mlxcel|cuda|nvidia|apple|amd|intel|metal|pytorch|torch|aten|[cg]pus?|sms?|l[123]|[ds]ram|v?ram|hbm\d?e?"
    r"|simd|simt|(?:w|wg|h|i)?mmas?|fma|flops?|tma|alu|ptx|sass|nv(?:cc|rtc|link|bench)|ptxas|cupti|ncu|nsight|compute"
    r"|systems?|gem[mv]s?|qm[mv]s?|qvm|nax|mlp|llms?|lm|kv|moe|rope|sdpa|rmsnorm|ci|api|prs?|ids?|ai|ml|os|io|ok|tensor"
    r"|cores?|python|linux|ubuntu|macos|github|lablup|ieee|u?int|fp|tf|utc|ttft|tpot|itl|p\d\d|bug|fix|perf|todo|readme"
    r"|i|i'm|i've|i'd|it|its|we|they|the|an?|this|that|these|those|there|here|and|or|not|ours?|stock|table|figure|section"
    r"|appendix|step|issue|part|point|note|case|(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april"
    r"|may|june|july|august|september|october|november|december|english",
    re.IGNORECASE,
)
"""Words with a capital that name no other library."""
_CODED = re.compile(
    r"[A-Z]|[KMNBTSCDHL]s?|(?:bf|fp|f|int|uint|tf|mx|nv|u|s|q)\w*\d+\w*|[KMNBTL]\d+|e\dm\d|x\d+", re.IGNORECASE
)
_STARTS = re.compile(r"(?:^|[.!?:;|(\[*\"\u201c/\u2013\u2014>-]|\n)\s*$")
"""Before a word whose capital says nothing."""
_LIKENED = re.compile(
    r"\b(?:unlike|like|similar\sto|known\sfrom|inspired\sby|based\son|ported\sfrom"
    r"|(?:layout|idea|trick|format|approach|style|design|port|scheme)\s(?:of|from)"
    r"|(?:measured|timed|profiled|checked|seen|reported|linted|written|compiled|built)\s(?:with|by|in|under|for))"
    r"\s(?:that\sof\s)?(?:an?\s|the\s)?$",
    re.IGNORECASE,
)
"""Before what is only likened to, or measured with."""


def names(text: str) -> list[re.Match[str]]:
    """Of other libraries and kernels, in order. Devices and models are blank in ``text`` already."""
    found = [*LIBRARY.finditer(text), *_ANOTHER.finditer(text)]
    for match in _NAME.finditer(text):
        if not any(one.start() < match.end() and match.start() < one.end() for one in found) and _proper(text, match):
            found.append(match)
    return sorted((one for one in found if not _LIKENED.search(text[: one.start()])), key=lambda one: one.start())


def _proper(text: str, match: re.Match[str]) -> bool:
    word = match.group()
    parts = re.split(r"[-_+.]", word)
    if all(_KNOWN.fullmatch(part) or _CODED.fullmatch(part) or not part or part.islower() for part in parts):
        return bool(re.search(r"\.(?:cpp|rs|ai|cu|jl)$", word))
    first, *rest = parts
    inside = any(letter.isupper() for letter in first[1:]) or any(part[:1].isupper() for part in rest)
    return inside or (first[0].isupper() and not _STARTS.search(text[: match.start()]))
