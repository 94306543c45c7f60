"""``torch.compile(backend="tvmfuse")`` and ``from_torch`` against PyTorch itself."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")

import tvmfuse  # noqa: E402
from tvmfuse.errors import ModelError  # noqa: E402
from tvmfuse.torch_backend import CompiledGraph, FallbackWarning, backend  # noqa: E402

UNVERIFIED = {"verify": False}  # the outputs are compared here


class FusedMatMulAddReLU(torch.nn.Module):
    """The lecture's example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 32))
        self.bias = torch.nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.matmul(x, self.weight) + self.bias)


class Broken(torch.nn.Module):
    """Two graphs with a decision of Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return self.second(hidden)


class Unsupported(torch.nn.Module):
    """An operator that TVM's importer lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x) + 1


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test, the same weights every time, no gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Spy:
    """The backend, remembering what it returned."""

    def __init__(self) -> None:
        self.graphs: list[CompiledGraph] = []

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.graphs.append(backend(graph, inputs, options=UNVERIFIED))
        return self.graphs[-1]


def check(module: torch.nn.Module, *calls: tuple[torch.Tensor, ...]) -> list[CompiledGraph]:
    """Every call equals PyTorch's, no graph fell back; returns the graphs."""
    module.eval()
    spy = Spy()
    compiled = torch.compile(module, backend=spy)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for call in calls:
            torch.testing.assert_close(compiled(*call), module(*call), rtol=1e-4, atol=1e-5)
    assert all(graph.programs for graph in spy.graphs)
    return spy.graphs


def fallbacks(run: Callable[[], Any]) -> list[str]:
    """The texts of the fallback warnings of ``run``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


def test_works_by_name_without_importing_tvmfuse() -> None:
    program = (
        "import sys, torch\n"
        "m = torch.nn.Linear(8, 4).eval()\n"
        "x = torch.randn(2, 8)\n"
        "with torch.no_grad():\n"
        "    y = torch.compile(m, backend='tvmfuse')(x)\n"
        "    torch.testing.assert_close(y, m(x))\n"
        "assert 'tvmfuse.torch_backend' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_batch_sizes_share_one_program_with_a_symbolic_size() -> None:
    graphs = check(FusedMatMulAddReLU(), *[(torch.randn(n, 64),) for n in (4, 9, 17)])
    assert [(graph.dynamic, len(graph.programs)) for graph in graphs] == [(False, 1), (True, 1)]


def test_cnn_folds_its_batch_norms() -> None:
    nn = torch.nn
    cnn = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    cnn[1].running_mean.normal_()
    (graph,) = check(cnn, (torch.randn(2, 3, 8, 8),))
    assert len(graph.weights) >= 6
    operators = [name for group in graph.reports[0].groups for name in group.operators]
    assert operators
    assert not any("batch_norm" in name or "sqrt" in name for name in operators)


@pytest.mark.parametrize(("norm_first", "masked"), [(False, False), (True, False), (False, True)])
def test_transformer(norm_first: bool, masked: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=True, norm_first=norm_first, activation="gelu"
    )
    if not masked:
        check(layer, (torch.randn(2, 5, 16),))
        return
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[1, 3:] = True

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            return self.layer(x, src_key_padding_mask=hidden)

    check(Masked(), (torch.randn(2, 5, 16), hidden))


def test_sentence_encoder_with_two_batch_sizes() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from tvmfuse.bench.models import sentence_encoder

    try:
        module = sentence_encoder()
    except ModelError as error:
        pytest.skip(str(error))
    calls = []
    for batch in (2, 3):
        mask = torch.ones(batch, 8, dtype=torch.int64)
        mask[-1, 6:] = 0
        calls.append((torch.randint(1000, 20000, (batch, 8)), mask))
    module.bert.encoder.layer = module.bert.encoder.layer[:2]  # of six alike: time
    check(module, *calls)


def test_graph_break_makes_two_programs() -> None:
    assert len(check(Broken(), (torch.randn(3, 16),))) == 2


def test_sizes_among_the_results() -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return torch.relu(x) * x.shape[0], x.shape[0] * 2

    check(Sized(), *[(torch.randn(n, 8),) for n in (3, 5, 6)])


def test_changed_weights_are_bound_anew() -> None:
    module = FusedMatMulAddReLU().eval()
    compiled = torch.compile(module, backend="tvmfuse", options=UNVERIFIED)
    x = torch.randn(4, 64)
    before = compiled(x)
    module.load_state_dict({name: value * 2 for name, value in module.state_dict().items()})
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert not torch.equal(before, compiled(x))


def test_strided_and_unaligned_inputs() -> None:
    store = torch.randn(64 * 5 + 1)
    unaligned = store[1:].view(5, 64)
    transposed = torch.randn(64, 5).t()
    check(FusedMatMulAddReLU(), (unaligned,), (transposed,))


def test_unsupported_operator_falls_back_with_one_warning_that_names_it() -> None:
    module = Unsupported()
    compiled = torch.compile(module, backend="tvmfuse")
    x = torch.randn(4, 4)

    def twice() -> None:
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x))

    (text,) = fallbacks(twice)
    assert "linalg_svdvals" in text


def test_training_falls_back_and_trains() -> None:
    module = torch.nn.Linear(4, 4)
    compiled = torch.compile(module, backend="tvmfuse")

    def step() -> None:
        with torch.enable_grad():
            compiled(torch.randn(2, 4)).sum().backward()

    (text,) = fallbacks(step)
    assert "gradients" in text
    assert module.weight.grad is not None


def test_graphs_that_are_no_functions_fall_back() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    def draws(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True) + 1

    x = torch.ones(4)
    (text,) = fallbacks(lambda: torch.compile(writes, backend="tvmfuse")(x))
    assert "writes into" in text
    assert torch.equal(x, torch.full((4,), 2.0))
    (text,) = fallbacks(lambda: torch.compile(draws, backend="tvmfuse")(x))
    assert "random numbers" in text


def test_from_torch_has_a_report_and_keeps_the_structure() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": x + 1, "product": torch.relu(x) * 2}

    x = torch.randn(3, 8)
    fused = tvmfuse.from_torch(Two(), (x,))
    assert fused.report.ok
    torch.testing.assert_close(fused(x), Two()(x))
    with pytest.raises(ModelError, match="exported for"):
        fused(x, x)


def test_from_torch_names_what_is_missing() -> None:
    with pytest.raises(ModelError, match="linalg_svdvals"):
        tvmfuse.from_torch(Unsupported(), (torch.randn(4, 4),))
