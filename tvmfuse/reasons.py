"""The stable codes that say what became of each producer-consumer edge."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Code(str, Enum):
    """Why two neighbours are, or are not, in one kernel.  The values are part of report.json."""

    FUSED = "FUSED"
    VIEW = "VIEW"
    TUPLE = "TUPLE"
    TWO_ANCHORS = "TWO_ANCHORS"
    NOT_CONVEX = "NOT_CONVEX"
    MULTI_USE = "MULTI_USE"
    RECOMPUTE_COSTS_MORE = "RECOMPUTE_COSTS_MORE"
    SHAPE = "SHAPE"
    AXES = "AXES"
    OPERATOR = "OPERATOR"
    OPAQUE = "OPAQUE"
    SYMBOLIC_SHAPE = "SYMBOLIC_SHAPE"
    BETTER_ALTERNATIVE = "BETTER_ALTERNATIVE"
    NO_SCHEDULE_RULE = "NO_SCHEDULE_RULE"
    VERIFICATION_FAILED = "VERIFICATION_FAILED"
    FENCED = "FENCED"
    OUT_OF_FUEL = "OUT_OF_FUEL"
    PATTERN_CHECK = "PATTERN_CHECK"


MEANING: dict[Code, str] = {
    Code.FUSED: "Both operators run in one kernel; the value between them is never stored.",
    Code.VIEW: "One of the two is a reshape that stands alone: it renames memory, costs no launch.",
    Code.TUPLE: "One of the two only makes or takes apart a tuple; nothing is computed.",
    Code.TWO_ANCHORS: "Both anchor a kernel of their own; no schedule rule has both in one.",
    Code.NOT_CONVEX: "Another operator would have to run between the two halves of the kernel.",
    Code.MULTI_USE: "Others read the value as well, so it must be stored anyway.",
    Code.RECOMPUTE_COSTS_MORE: "Inlining would repeat expensive work more than the traffic saved.",
    Code.SHAPE: "The consumer does not map one to one onto the elements that the kernel produces.",
    Code.AXES: "The two reduce over different axes.",
    Code.OPERATOR: "The kernel's shape does not take this operator at this place.",
    Code.OPAQUE: "TVM gives no loop nest for one of the two, or someone scheduled it already.",
    Code.SYMBOLIC_SHAPE: "A symbolic dimension is not bound by any input of the kernel.",
    Code.BETTER_ALTERNATIVE: "One of the two is in another group, where it saves as much or more.",
    Code.NO_SCHEDULE_RULE: "No schedule rule makes the group one kernel on this target.",
    Code.VERIFICATION_FAILED: "The fused kernel's numbers were outside the tolerance; split back.",
    Code.FENCED: "The user's controls keep the two apart.",
    Code.OUT_OF_FUEL: "The number of fusions asked for was reached before this one.",
    Code.PATTERN_CHECK: "The pattern's own check refused the match.",
}


@dataclass(frozen=True)
class Reason:
    """A code and one sentence with the names and numbers that decided."""

    code: Code
    text: str
