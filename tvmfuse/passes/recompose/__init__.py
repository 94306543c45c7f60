"""Recognise what exporters decompose and put the Relax operator back."""

from ..rewriter import Rewrite
from .clip import drop_unbounded, recompose_clip, recompose_relu, tir_extremes

RECOMPOSE: tuple[Rewrite, ...] = (drop_unbounded, recompose_clip, recompose_relu)

__all__ = ["RECOMPOSE", "tir_extremes"]
