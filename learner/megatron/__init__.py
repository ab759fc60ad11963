"""The training backend on Megatron-core: the only importer of `megatron`."""

import warnings

# Each says that a package for GPUs is not installed, or that what Megatron calls has a new name.
for _category in (UserWarning, DeprecationWarning, FutureWarning):
    warnings.filterwarnings("ignore", category=_category, module=r"(megatron\.core|torch\.distributed)")
