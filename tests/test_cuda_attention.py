"""cuda.attention: numbers and races on the emulated device, what stays on chip, and declines."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cuda_kernels import A100, H100, compiled, cubin, random_inputs, run, schedule_with
from tvm import relax, tirx
from tvm.relax import op
from tvm.target import Target
from tvmfuse.schedules.cuda.attention import AttentionRule
from workloads import Tensor, lowered

F32 = "float32"
RULE = AttentionRule()
SCALE = 0.3


def emit(expr: relax.Expr) -> relax.Var:
    return relax.BlockBuilder.current().emit(expr)


def constant(value: float) -> relax.Expr:
    return relax.const(np.float32(value), F32)


def attention(q: relax.Var, k: relax.Var, v: relax.Var, *mask: relax.Var) -> relax.Expr:
    """Scaled dot-product attention over (batch, heads, length, width), with additive masks."""
    turned = op.permute_dims(k, (*range(k.ty.ndim - 2), k.ty.ndim - 1, k.ty.ndim - 2))
    score = emit(op.matmul(op.multiply(q, constant(SCALE)), turned))
    for one in mask:
        score = emit(op.add(score, one))
    return op.matmul(op.nn.softmax(score, -1), v)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, *mask: np.ndarray) -> np.ndarray:
    q, k, v = (array.astype("float64") for array in (q, k, v))
    score = SCALE * q @ np.swapaxes(k, -1, -2)
    for one in mask:
        score = score + one
    return softmax(score) @ v


def softmax(score: np.ndarray) -> np.ndarray:
    power = np.exp(score - score.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def tensors(*shapes: tuple[int, ...], dtype: str = F32) -> dict[str, Tensor]:
    return {f"x{at}": (shape, dtype) for at, shape in enumerate(shapes)}


CASES = {
    "heads": ((2, 3, 32, 16), (2, 3, 32, 16), (2, 3, 32, 16)),
    "mask": ((2, 2, 32, 16), (2, 2, 32, 16), (2, 2, 32, 16), (2, 1, 32, 32)),
    "cross, ragged": ((1, 2, 19, 24), (1, 2, 45, 24), (1, 2, 45, 20)),
    "one head": ((40, 32), (40, 32), (40, 32)),
    "several chunks of keys": ((1, 1, 16, 16), (1, 1, 300, 16), (1, 1, 300, 16)),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    shapes = CASES[name]
    func = lowered(tensors(*shapes), attention)
    inputs = random_inputs(func, len(shapes))
    (actual,), session = run(schedule_with(RULE, func), inputs)
    np.testing.assert_allclose(actual, reference(*inputs), rtol=2e-5, atol=1e-5)
    assert session.findings == ()
    assert len(session.launches) == 1


def guarded(qkv: relax.Var, mask: relax.Var, zero: relax.Var) -> relax.Expr:
    """Attention as torch.export decomposes it: packed heads, and rows that are all masked are 0.

    ``qkv`` is (length, 3 * heads * width); the result is (length, heads * width).
    """
    length, packed = (int(extent) for extent in qkv.ty.shape)
    heads, width = 2, packed // 6
    parts = []
    for at in range(3):
        part = op.strided_slice(qkv, [1], [at * heads * width], [(at + 1) * heads * width])
        parts.append(
            emit(op.permute_dims(op.reshape(part, (1, length, heads, width)), (0, 2, 1, 3)))
        )
    turned = op.permute_dims(parts[1], (0, 1, 3, 2))
    score = emit(op.add(op.matmul(parts[0], turned), mask))
    masked = op.equal(score, constant(float("-inf")))
    some = op.max(op.astype(op.logical_not(masked), "int8"), 3, keepdims=True)
    none = op.logical_not(op.astype(some, "bool"))
    weight = op.where(none, zero, op.nn.softmax(score, -1))
    mixed = op.permute_dims(op.matmul(weight, parts[2]), (0, 2, 1, 3))
    return op.reshape(mixed, (length, heads * width))


def test_packed_heads_with_a_guard_for_masked_rows() -> None:
    length, width = 24, 8
    func = lowered(
        {
            "qkv": ((length, 6 * width), F32),
            "mask": ((1, 1, length, length), F32),
            "zero": ((), F32),
        },
        guarded,
    )
    qkv, mask, zero = (*random_inputs(func, 2), np.zeros((), F32))
    mask[..., 17:] = -np.inf
    mask[:, :, 5] = -np.inf
    (actual,), session = run(schedule_with(RULE, func), [qkv, mask, zero])
    q, k, v = (
        part.reshape(length, 2, width).swapaxes(0, 1).astype("float64")
        for part in np.split(qkv, 3, 1)
    )
    with np.errstate(invalid="ignore"):
        weight = np.nan_to_num(softmax(q @ k.swapaxes(1, 2) + mask[0]))
    expected = (weight @ v).swapaxes(0, 1).reshape(length, -1)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    assert np.all(actual[5] == 0)
    assert session.findings == ()


def test_scores_stay_on_chip() -> None:
    func = lowered(tensors(*CASES["heads"]), attention)
    scheduled = schedule_with(RULE, func).func
    scopes = re.findall(
        r'sblock_alloc_buffer\(.*?(?:scope="([\w.]+)")?\)$', scheduled.script(), re.M
    )
    assert scopes
    assert set(scopes) <= {"shared", "shared.dyn", "local"}


@pytest.mark.parametrize("target", [H100, A100], ids=["sm_90a", "sm_80"])
@pytest.mark.parametrize("keys", [64, 512])
def test_nvcc_takes_the_source(keys: int, target: Target, tmp_path: Path) -> None:
    shapes = ((1, 12, 64, 64), (1, 12, keys, 64), (1, 12, keys, 64))
    func = lowered(tensors(*shapes), attention)
    _, source = compiled(schedule_with(RULE, func, target), target)
    cubin(source, tmp_path, str(target.attrs["arch"]))


DECLINED = {
    "too many keys": (
        tensors((1, 1, 16, 64), (1, 1, 8192, 64), (1, 1, 8192, 64)),
        attention,
        r"the score tile of 16 queries by 8192 keys needs \d+ bytes of shared memory; "
        r"the target has 232448",
    ),
    "softmax over queries": (
        tensors((2, 32, 16), (2, 32, 16), (2, 32, 16)),
        lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, (0, 2, 1))), 1), v),
        r"reduction \w+ does not run along the keys",
    ),
    "two layers": (
        tensors((32, 16), (16, 32), (32, 16)),
        lambda x, a, b: op.matmul(op.nn.relu(op.matmul(x, a)), b),
        "there is no reduction between the two contractions",
    ),
    "one product": (
        tensors((32, 16), (16, 32)),
        op.matmul,
        "the group has 1 contractions; attention has two",
    ),
    "one query": (
        tensors((2, 1, 16), (2, 32, 16), (2, 32, 16)),
        attention,
        "attention with one query, one key or one column",
    ),
    "symbolic length": (
        {"q": ((1, tirx.Var("n", "int64"), 16), F32)},
        lambda q: op.matmul(
            op.nn.softmax(op.matmul(q, op.permute_dims(op.exp(q), (0, 2, 1))), -1), q
        ),
        "attention with a symbolic shape",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declines(name: str) -> None:
    shapes, body, reason = DECLINED[name]
    func = lowered(shapes, body)
    before = func.script()
    found = RULE.check(func, H100)
    assert found is not None
    assert re.fullmatch(reason, found), found
    assert func.script() == before
