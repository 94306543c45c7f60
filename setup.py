"""Packaging metadata of tvmfuse; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent

ONNX = ["onnx>=1.17", "onnxruntime>=1.20", "onnxslim>=0.1.60"]
TORCH = ["torch>=2.6", "safetensors>=0.4"]
# What the demo, the tests and the benchmarks need to read and draw the trained models.
DEMO = [*ONNX, "pillow>=10", "matplotlib>=3.8"]
TEST = [
    *DEMO,
    "pytest>=8",
    "pytest-xdist>=3",
    "hypothesis>=6.100",
    "jsonschema>=4.20",
    "ml_dtypes>=0.4",
    "ruff>=0.9",
    "mypy>=1.13",
]

setup(
    name="tvmfuse",
    version="0.1.0",
    description="Operator fusion for TVM Relax: every group one kernel, every refusal explained",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=[
        "tvmfuse",
        "tvmfuse.bench",
        "tvmfuse.cudasim",
        "tvmfuse.frontends",
        "tvmfuse.passes",
        "tvmfuse.passes.recompose",
        "tvmfuse.patterns",
        "tvmfuse.report",
        "tvmfuse.schedules",
        "tvmfuse.schedules.cuda",
        "tvmfuse.schedules.llvm",
    ],
    package_dir={"tvmfuse": "tvmfuse", "tvmfuse.schedules": "schedules"},
    package_data={
        "tvmfuse": ["py.typed"],
        "tvmfuse.cudasim": ["device/*"],
        "tvmfuse.report": ["*.json", "*.jinja"],
    },
    install_requires=[
        "apache-tvm==0.27.0.post1",
        # 0.1.15.x, which pip would pick, makes MetaSchedule segfault with this TVM.
        "apache-tvm-ffi==0.1.14.post1",
        "numpy>=1.26",
        "xgboost>=2.0",
        "psutil>=5.9",
        "cloudpickle>=3.0",
        "scipy>=1.11",
        "rich>=13.7",
        "typer>=0.15",
        "jinja2>=3.1",
    ],
    extras_require={
        "onnx": ONNX,
        "torch": TORCH,
        "tflite": ["tflite>=2.10"],
        "rpc": ["tornado>=6"],
        "docs": ["sphinx>=7", "furo"],
        "demo": DEMO,
        "test": TEST,
    },
    entry_points={
        "console_scripts": ["tvmfuse = tvmfuse.cli:main"],
        "torch_dynamo_backends": ["tvmfuse = tvmfuse.torch_backend:backend"],
    },
)
