"""``tvmfuse demo``: a trained text detector through the whole job, for this CPU and for an H100.

The detector is the ONNX file that the package ``rapidocr-onnxruntime`` ships (PP-OCRv4, Apache
2.0); the picture it reads is drawn here.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import ModelError
from .stages import Progress, silent

if TYPE_CHECKING:
    from .job import Optimized

HEIGHT, WIDTH = 160, 320
MODEL_FILE = Path("models") / "ch_PP-OCRv4_det_infer.onnx"
GPU_TARGET = "nvidia/nvidia-h100"
# The means and deviations of ImageNet, in the order of the channels (the model's own preparation).
MEAN = np.array([0.485, 0.456, 0.406], "float32")
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")


@dataclass(frozen=True)
class Check:
    """The fused detector against ONNX Runtime on the picture."""

    max_abs: float
    max_rel: float
    text_share: float  # share of pixels that both call text
    disagree: int  # pixels that only one of them calls text


def detector_file() -> Path:
    """The detector's ONNX file; ModelError says how to get it if the package is missing."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise ModelError(
            "the demo's model is not installed; run "
            "pip install --no-deps rapidocr-onnxruntime==1.4.4"
        )
    return Path(spec.origin).parent / MODEL_FILE


def sample_picture() -> np.ndarray:
    """A drawn sign with three lines of text, uint8, HEIGHT x WIDTH x 3."""
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    font_file = font_manager.findfont("DejaVu Sans")
    image = Image.new("RGB", (WIDTH, HEIGHT), (238, 232, 220))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 112, WIDTH, HEIGHT), fill=(60, 84, 110))
    draw.ellipse((250, 20, 300, 70), fill=(214, 120, 60))
    draw.text((18, 14), "ONE KERNEL", (30, 30, 30), ImageFont.truetype(font_file, 32))
    draw.text((18, 64), "per fused group", (90, 60, 40), ImageFont.truetype(font_file, 22))
    draw.text(
        (18, 122), "every edge has a reason", (240, 240, 240), ImageFont.truetype(font_file, 20)
    )
    return np.asarray(image)


def model_input(picture: np.ndarray) -> np.ndarray:
    """The detector's input: float32, 1 x 3 x HEIGHT x WIDTH, normalised."""
    scaled = (picture.astype("float32") / 255.0 - MEAN) / DEVIATION
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def compare_with_onnxruntime(executable: object, array: np.ndarray) -> tuple[np.ndarray, Check]:
    """Run both on ``array``; return the fused detector's map and how the two differ."""
    import onnxruntime
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(array))
    mine = (got if hasattr(got, "numpy") else got[0]).numpy()
    session = onnxruntime.InferenceSession(str(detector_file()), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {session.get_inputs()[0].name: array})[0]
    difference = np.abs(mine - theirs)
    relative = float((difference / (np.abs(theirs) + np.sqrt(np.mean(theirs**2)))).max())
    text, other = mine > 0.3, theirs > 0.3
    check = Check(
        float(difference.max()), relative, float((text & other).mean()), int((text ^ other).sum())
    )
    return mine, check


def draw_map(picture: np.ndarray, text_map: np.ndarray, path: Path) -> None:
    """The picture, the detector's map, and the map over the picture, side by side as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 2.6), constrained_layout=True)
    heat = text_map[0, 0]
    axes[0].imshow(picture)
    axes[0].set_title("picture")
    shown = axes[1].imshow(heat, vmin=0, vmax=1, cmap="magma")
    axes[1].set_title("where the fused detector sees text")
    axes[2].imshow(picture)
    axes[2].imshow(np.ma.masked_less(heat, 0.3), vmin=0, vmax=1, cmap="autumn", alpha=0.6)
    axes[2].set_title("over the picture")
    for axis in axes:
        axis.set_axis_off()
    figure.colorbar(shown, ax=axes[2], label="probability of text")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def run_cpu(folder: Path, progress: Progress = silent) -> tuple[Optimized, Check]:
    """Optimise the detector for this CPU; returns the job's result and the check."""
    from .job import optimize

    shape = {"x": (1, 3, HEIGHT, WIDTH)}
    result = optimize(detector_file(), "llvm", folder / "cpu", inputs=shape, progress=progress)
    picture = sample_picture()
    text_map, check = compare_with_onnxruntime(result.executable, model_input(picture))
    draw_map(picture, text_map, folder / "text-map.png")
    return result, check


def run_gpu(folder: Path, progress: Progress = silent) -> Optimized:
    """Compile the detector for an H100 and check its kernels on the emulated CUDA device.

    Half the picture's width, because the emulated device checks every memory access.
    """
    from .job import optimize
    from .options import Options

    return optimize(
        detector_file(),
        GPU_TARGET,
        folder / "h100",
        inputs={"x": (1, 3, HEIGHT, HEIGHT)},
        options=Options(device="emulated"),
        progress=progress,
    )


def registers_of(folder: Path) -> str:
    """What nvcc makes of the kernels in ``folder``, in one sentence."""
    from .cudasim import gate

    files = sorted(folder.glob("*.cu"))
    if gate.find_nvcc() is None:
        return f"{len(files)} CUDA kernels; no nvcc here to compile them"
    kernels = [k for file in files for k in gate.check(file.read_text(), ("sm_90a",)) or ()]
    registers = max(kernel.registers for kernel in kernels)
    spilled = [k.kernel for k in kernels if k.spill_stores + k.spill_loads]
    spills = f"{len(spilled)} spill ({', '.join(spilled)})" if spilled else "none spills"
    return f"{len(kernels)} CUDA kernels, compiled by nvcc: at most {registers} registers, {spills}"
