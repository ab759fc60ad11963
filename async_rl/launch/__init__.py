"""Starting runs. Sets what Ray and the libraries under it read when they are imported, before any of them is.

Whoever sets these variables keeps their own values.
"""

import os

_ENVIRONMENT = {
    # Ray's two sides disagree about the default.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
