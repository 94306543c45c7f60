"""Recognise what exporters decompose and put the Relax operator back."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from ..rewriter import Rewrite, RewriteContext, rewrite_module
from .clip import drop_unbounded, recompose_clip, recompose_relu, tir_extremes
from .gelu import recompose_gelu
from .group_norm import recompose_group_norm
from .hard_swish import recompose_hard_swish
from .layer_norm import absorb_casts, absorb_scale, absorb_shift, recompose_layer_norm
from .neutral import drop_neutral
from .readers import Readers
from .rms_norm import absorb_weight, recompose_rms_norm
from .silu import recompose_sigmoid, recompose_silu
from .softmax import recompose_log_softmax, recompose_softmax
from .softplus import recompose_softplus

Recogniser = Callable[[relax.Expr, RewriteContext, Readers], relax.Expr | None]

# Clips first (hard-swish reads them), sigmoid before the activations made of it, GELU before
# SiLU: one of its forms is a sigmoid of a cubic.
CLIPS: tuple[Rewrite, ...] = (drop_neutral, drop_unbounded, recompose_clip, recompose_relu)
RECOMPOSE: tuple[Recogniser, ...] = (
    recompose_sigmoid,
    recompose_gelu,
    recompose_silu,
    recompose_hard_swish,
    recompose_softplus,
    recompose_layer_norm,
    recompose_group_norm,
    absorb_scale,
    absorb_shift,
    recompose_rms_norm,
    absorb_weight,
    absorb_casts,
    recompose_softmax,
    recompose_log_softmax,
)

__all__ = ["CLIPS", "RECOMPOSE", "recompose"]


def recompose(mod: tvm.IRModule) -> tvm.IRModule:
    """Every Relax function of ``mod`` with decomposed operators put back; ``mod`` stays."""
    readers = Readers(mod)

    def knowing_readers(recogniser: Recogniser) -> Rewrite:
        return lambda value, context: recogniser(value, context, readers)

    return rewrite_module(mod, (tir_extremes(mod), *CLIPS, *map(knowing_readers, RECOMPOSE)))
