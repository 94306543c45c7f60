"""The emulated CUDA device: run, check and trace TVM's CUDA kernels without a GPU.

with tvmfuse.cudasim.device(check=True) as session:
    vm = relax.VirtualMachine(executable, tvm.cuda(0))
    ...
assert session.findings == ()
"""

from tvmfuse.cudasim.device import Session, device
from tvmfuse.cudasim.errors import CudasimError, NotEmulatedError
from tvmfuse.cudasim.findings import Finding, Site
from tvmfuse.cudasim.trace import Counters, Launch, Traffic

__all__ = [
    "Counters",
    "CudasimError",
    "Finding",
    "Launch",
    "NotEmulatedError",
    "Session",
    "Site",
    "Traffic",
    "device",
]
