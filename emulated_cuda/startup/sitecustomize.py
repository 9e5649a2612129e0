"""What Python imports first where :func:`emulated_cuda.environment` says so: before anything imports PyTorch."""

import os
import sys

if os.environ.get("EMULATED_CUDA"):
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import emulated_cuda

    emulated_cuda.install(int(os.environ["EMULATED_CUDA"]))
