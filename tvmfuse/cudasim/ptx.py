"""Turn the inline PTX in a printed kernel into calls of the device's functions.

The semantics are those of the PTX ISA; the functions are in ``device/ptx_matrix.h`` and
``device/async_copy.h``. An instruction without a rule here is an error, never a no-op.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tvmfuse.cudasim.errors import NotEmulatedError
from tvmfuse.cudasim.text import closing, split

_ASM = re.compile(r"\b(?:__asm__|asm)\b\s*(?:(?:__volatile__|volatile)\s*)?(\()")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'(?:\[\w+\]\s*)?"([^"]*)"\s*\((.*)\)', re.DOTALL)

_ELEMENTS = {
    "f16": ("__half", 2),
    "bf16": ("__nv_bfloat16", 2),
    "tf32": ("cudasim::Tf32", 4),
    "s8": ("int8_t", 1),
    "u8": ("uint8_t", 1),
    "e4m3": ("__nv_fp8_e4m3", 1),
    "e5m2": ("__nv_fp8_e5m2", 1),
}
_ACCUMULATORS = {"f32": ("float", 4), "f16": ("__half", 2), "s32": ("int", 4)}


@dataclass(frozen=True)
class Statement:
    """One ``asm`` statement: its text and the C expressions of its operands."""

    code: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]

    def operand(self, token: str) -> str:
        """C expression of ``%3``, or of a literal."""
        if not token.startswith("%"):
            return token
        return (self.outputs + self.inputs)[int(token[1:])]

    def words(self, expressions: tuple[str, ...]) -> str:
        """Initialiser of an array with the operands' register bits."""
        return "{" + ", ".join(f"cudasim::register_bits({e})" for e in expressions) + "}"

    def assign(self, array: str) -> str:
        """Statements that copy an array of registers to the outputs."""
        return " ".join(
            f"{{ auto* target = &({expression}); static_assert(sizeof *target == 4); "
            f"memcpy((void*)target, &{array}[{i}], 4); }}"
            for i, expression in enumerate(self.outputs)
        )


Rule = Callable[[re.Match[str], Statement], "str | None"]


def rewrite_asm(body: str, kernel: str) -> str:
    """The function's body with every ``asm`` statement replaced by calls.

    Raises:
        NotEmulatedError: names the first instruction that is not modelled, and the kernel.
    """
    pieces = []
    position = 0
    while match := _ASM.search(body, position):
        end = closing(body, match.start(1))
        statement = _parse(body[match.end() : end - 1])
        semicolon = re.compile(r"\s*;").match(body, end)
        stop = semicolon.end() if semicolon else end
        call = _translate(statement, kernel)
        # The same number of lines, so that findings name the printed ones.
        lines = "\n" * body.count("\n", match.start(), stop)
        pieces += [body[position : match.start()], "{ ", call, " }", lines]
        position = stop
    return "".join(pieces) + body[position:]


def _parse(text: str) -> Statement:
    sections = split(text, ":")
    code = " ".join("".join(_STRING.findall(sections[0])).replace("\\n", " ").split())
    code = code.replace("\\t", " ").replace("%%", "%").strip()

    def operands(section: str) -> tuple[str, ...]:
        parsed = (_OPERAND.fullmatch(item) for item in split(section, ",") if item)
        return tuple(match[2] for match in parsed if match)

    outputs = operands(sections[1]) if len(sections) > 1 else ()
    inputs = operands(sections[2]) if len(sections) > 2 else ()
    return Statement(code, outputs, inputs)


def _translate(statement: Statement, kernel: str) -> str:
    code = statement.code.rstrip("; ")
    for pattern, rule in _RULES:
        if (match := pattern.fullmatch(code)) and (call := rule(match, statement)) is not None:
            return call
    raise NotEmulatedError(f"kernel {kernel}: the PTX instruction `{code}` is not emulated")


def _async_copy(match: re.Match[str], statement: Statement) -> str:
    destination, source, size, filled = (
        statement.operand(token) if token else "" for token in match.groups()[-4:]
    )
    call = f"cudasim::async_copy({destination}, (const void*)({source}), {size}, {filled or size});"
    return call


def _predicated_copy(match: re.Match[str], statement: Statement) -> str:
    """``setp.ne.b32 p, %0, 0; @p cp.async...``: the copy, if the operand is not zero."""
    condition = statement.operand(match[1])
    return f"if (({condition}) != 0) {{ {_async_copy(match, statement)} }}"


def _ldmatrix(match: re.Match[str], statement: Statement) -> str | None:
    count = int(match[1])
    if len(statement.outputs) != count or len(statement.inputs) != 1:
        return None
    transposed = "true" if match[2] else "false"
    return (
        f"uint32_t loaded[{count}]; cudasim::ldmatrix<{count}, {transposed}>"
        f"(loaded, {statement.inputs[0]}, __LINE__); {statement.assign('loaded')}"
    )


def _mma(match: re.Match[str], statement: Statement) -> str | None:
    k, d_type, a_type, b_type, c_type = int(match[1]), *match.groups()[1:]
    if a_type != b_type or d_type != c_type or d_type not in _ACCUMULATORS:
        return None
    if a_type not in _ELEMENTS or (d_type == "s32") != (a_type in ("s8", "u8")):
        return None
    element, size = _ELEMENTS[a_type]
    accumulator, accumulator_size = _ACCUMULATORS[d_type]
    a, b, c = 2 * k * size // 16, k * size // 16, accumulator_size
    if len(statement.outputs) != c or len(statement.inputs) != a + b + c:
        return None
    registers = (
        ("a", statement.inputs[:a]),
        ("b", statement.inputs[a : a + b]),
        ("c", statement.inputs[a + b :]),
    )
    declarations = " ".join(
        f"const uint32_t mma_{name}[] = {statement.words(values)};" for name, values in registers
    )
    return (
        f"{declarations} uint32_t mma_d[{c}]; "
        f"cudasim::mma_m16n8<{k}, {element}, {accumulator}>"
        f"(mma_d, mma_a, mma_b, mma_c, __LINE__); {statement.assign('mma_d')}"
    )


_COPY = (
    r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\w+)? "
    r"\[(%\d+)\], \[(%\d+)\], (%?\d+)(?:, (%?\d+))?"
)
_ADDRESS = r"\{? ?\.reg \.u64 (\w+);\s*cvta\.to\.shared\.u64 \1, %1;\s*cvt\.u32\.u64 %0, \1;? ?\}?"
_RULES: tuple[tuple[re.Pattern[str], Rule], ...] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (_COPY, _async_copy),
        (
            r"\{ ?\.reg \.pred (?:p|\w+);\s*setp\.ne\.b32 \w+, (%\d+), 0;\s*@\w+ "
            + _COPY
            + r";? ?\}",
            _predicated_copy,
        ),
        (r"cp\.async\.commit_group", lambda m, s: "cudasim::async_commit();"),
        (r"cp\.async\.wait_all", lambda m, s: "cudasim::async_wait_all();"),
        (
            r"cp\.async\.wait_group (%?\d+)",
            lambda m, s: f"cudasim::async_wait({s.operand(m[1])});",
        ),
        (
            _ADDRESS,
            lambda m, s: f"{s.outputs[0]} = cudasim::shared_handle((const void*)({s.inputs[0]}));",
        ),
        (
            r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16.*",
            _ldmatrix,
        ),
        (
            r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col"
            r"\.(\w+)\.(\w+)\.(\w+)\.(\w+) ?\{.*",
            _mma,
        ),
    )
)
