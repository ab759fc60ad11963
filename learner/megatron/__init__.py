"""The training backend on Megatron-core: the only importer of `megatron`."""

import warnings

# Each says that a package for GPUs is not installed, or that what Megatron calls has a new name.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)")
