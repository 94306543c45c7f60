"""The walk of the layout pass over one function: what is channels-last, where permutes go."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst, Op

from .layout_operators import CHANNELS_LAST, converts, handler_of
from .rewriter import constant, make_constant

TO_LAST = (0, 2, 3, 1)  # NCHW -> NHWC
TO_FIRST = (0, 3, 1, 2)  # NHWC -> NCHW


class Converter:
    """The walk over one function; knows each value's channels-last form, if it has one."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._builder = relax.BlockBuilder(mod)
        self._bindings: list[relax.Binding] = []
        # What each variable of the function is bound to, and what stands for it by now.
        self._values: dict[relax.Var, relax.Expr] = {}
        self._first: dict[relax.Var, relax.Expr] = {}
        self._last: dict[relax.Var, relax.Expr] = {}
        # Tuples whose tensors are channels-last: the new tuple, and which of its fields are.
        self._tuples: dict[relax.Var, tuple[relax.Var, tuple[bool, ...]]] = {}

    def function(self, func: relax.Function) -> relax.Function:
        """``func`` converted; an instance converts one function."""
        blocks: list[relax.BindingBlock] = []
        for block in func.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                blocks.append(block)
                continue
            self._bindings = []
            before = set(self._last)
            for binding in block.bindings:
                self._binding(binding)
            blocks.append(relax.DataflowBlock(self._bindings))
            # Dataflow variables end with their block; what left it is an ordinary variable.
            for var in set(self._last) - before:
                del self._last[var]
        body = self._builder.normalize(relax.SeqExpr(blocks, func.body.body))
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)

    # -- one binding -----------------------------------------------------------------------------

    def _binding(self, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        if isinstance(binding, relax.MatchCast):
            self._bindings.append(relax.MatchCast(var, self._plain(value), binding.ty))
            return
        self._values[var] = value
        if self._convert(var, value):
            if not isinstance(var, relax.DataflowVar):
                self._leave_block(var)
            return
        self._bind(var, self._plain(value))

    def _convert(self, var: relax.Var, value: relax.Expr) -> bool:
        """Bind the channels-last form of ``value`` if there is one; False to keep it as it is."""
        if isinstance(value, relax.TupleGetItem):
            source = self._tuples.get(value.tuple_value)
            if source is None:
                return False
            item = relax.TupleGetItem(source[0], value.index)
            if not source[1][value.index]:
                return False
            self._last[var] = self._emit(item, var.name)
            return True
        if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
            return False
        if value.op.name == "relax.permute_dims":
            return self._permute(var, value)
        handler = handler_of(value)
        if handler is None or not (converts(value) or self._reads_last(value)):
            return False
        if not all(_has_shape(item) for arg in value.args for item in self._items(arg)):
            return False
        result = handler(value, self)
        if result is None:
            return False
        new = self._emit(result, var.name)
        if isinstance(value.ty, relax.TupleType):
            is_last = tuple(_is_image(field) for field in value.ty.fields)
            self._tuples[var] = (new, is_last)
        elif _is_image(value.ty):
            self._last[var] = new
        else:
            self._first[var] = new
        return True

    def _permute(self, var: relax.Var, call: relax.Call) -> bool:
        """Transposes of the model itself meet those of this pass: compose them, drop identities."""
        source = call.args[0]
        if not isinstance(source, relax.Var) or not _is_image(source.ty) or not call.attrs.axes:
            return False
        axes = [int(axis) % 4 for axis in call.attrs.axes]
        if source in self._last:
            composed = [TO_FIRST[axis] for axis in axes]
            if composed == [0, 1, 2, 3]:
                self._first[var] = self._last[source]
            else:
                call = relax.op.permute_dims(self._last[source], composed)
                self._first[var] = self._emit(call, var.name)
            return True
        if axes == list(TO_FIRST):
            self._last[var] = self._plain(source)
            return True
        return False

    def _reads_last(self, call: relax.Call) -> bool:
        tensors = (item for arg in call.args for item in self._items(arg))
        return any(isinstance(item, relax.Var) and item in self._last for item in tensors)

    def _items(self, expr: relax.Expr) -> list[relax.Expr]:
        value = self._values.get(expr) if isinstance(expr, relax.Var) else expr
        return list(value.fields) if isinstance(value, relax.Tuple) else [expr]

    def _leave_block(self, var: relax.Var) -> None:
        """Give the variable that leaves the block the value and layout that it had."""
        if var in self._tuples:
            value = self._plain_tuple(var)
        elif var in self._last:
            value = self._permuted(self._last[var], TO_FIRST)
        else:
            value = self._first[var]
        self._tuples.pop(var, None)
        self._bind(var, value)
        self._first[var] = var

    # -- what handlers ask -----------------------------------------------------------------------

    def items(self, expr: relax.Expr) -> list[relax.Expr]:
        """The tensors of a tuple argument, channels-last."""
        return [self.last(item) for item in self._items(expr)]

    def last(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` (broadcast to rank 4) channels-last; scalars stay as they are."""
        rank = expr.ty.ndim
        array = constant(expr)
        if rank == 0:
            return self._plain(expr)
        if array is not None:
            aligned = array.reshape((1,) * (4 - rank) + array.shape)
            return make_constant(np.ascontiguousarray(aligned.transpose(TO_LAST)))
        if expr not in self._last:
            source = self._plain(expr)
            if rank < 4:
                shape = [1] * (4 - rank) + list(expr.ty.shape.values)
                source = self._emit(relax.op.reshape(source, shape), expr.name)
            self._last[expr] = self._emit(self._permuted(source, TO_LAST), expr.name)
        return self._last[expr]

    # -- plain values ----------------------------------------------------------------------------

    def _plain(self, value: relax.Expr) -> relax.Expr:
        """``value`` with the operands in the layout that the model wrote."""
        if isinstance(value, relax.Var):
            if value in self._tuples:
                self._first[value] = self._emit(self._plain_tuple(value), value.name)
                del self._tuples[value]
            elif value in self._last and value not in self._first and value in self._values:
                # Values that this pass did not bind channels-last are still bound as they were.
                self._first[value] = self._emit(
                    self._permuted(self._last[value], TO_FIRST), value.name
                )
            return self._first.get(value, value)
        if isinstance(value, relax.Call):
            args = [self._plain(arg) for arg in value.args]
            if all(new.same_as(old) for new, old in zip(args, value.args, strict=True)):
                return value
            return relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._plain(field) for field in value.fields])
        if isinstance(value, relax.TupleGetItem):
            source = self._tuples.get(value.tuple_value)
            if source is not None and not source[1][value.index]:
                return relax.TupleGetItem(source[0], value.index)
            return relax.TupleGetItem(self._plain(value.tuple_value), value.index)
        return value

    def _plain_tuple(self, var: relax.Var) -> relax.Tuple:
        new, is_last = self._tuples[var]
        fields = []
        for index, last in enumerate(is_last):
            field = self._emit(relax.TupleGetItem(new, index), var.name)
            fields.append(self._emit(self._permuted(field, TO_FIRST)) if last else field)
        return relax.Tuple(fields)

    def _permuted(self, expr: relax.Expr, axes: tuple[int, ...]) -> relax.Expr:
        """``expr`` with its axes permuted: a reshape if that moves no element."""
        shape = list(expr.ty.shape.values)
        kept = [axis for axis in axes if not _is_one(shape[axis])]
        if kept == sorted(kept):
            return relax.op.reshape(expr, [shape[axis] for axis in axes])
        return relax.op.permute_dims(expr, list(axes))

    def _emit(self, expr: relax.Expr, name: str = "lv") -> relax.Expr:
        value = self._builder.normalize(expr)
        if isinstance(value, relax.Var | GenericConst):
            return value
        var = relax.DataflowVar(name, value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        self._bindings.append(relax.VarBinding(var, self._builder.normalize(value)))


def _is_one(extent: tvm.ir.Expr) -> bool:
    return hasattr(extent, "value") and int(extent.value) == 1


def _has_shape(expr: relax.Expr) -> bool:
    """False for a tensor of which only the rank is known, or not even that."""
    return not isinstance(expr.ty, relax.TensorType) or isinstance(expr.ty.shape, relax.ShapeExpr)


def _is_image(ty: tvm.ir.Type) -> bool:
    return (
        isinstance(ty, relax.TensorType)
        and ty.ndim == len(CHANNELS_LAST)
        and isinstance(ty.shape, relax.ShapeExpr)
    )
