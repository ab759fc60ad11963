"""How evenly 4,096 sequences are shared out, and in what time.

    python benchmarks/balance.py [--json FILE]

Lengths are log-normal around 665 tokens, up to 8,192; costs those of a model of 8 billion parameters. `least` is what
no shares can go below: the largest sequence has to be in one of them.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from report import Report, Row

from async_rl.balance import GroupLengths, group_cost, imbalance, share_out
from async_rl.config.model_sizes import ModelSizes
from async_rl.sizing.flops import ModelFlops
from learner.micro_batch_plan import MicroBatchPlanner, Sequences

SIZES = ModelSizes(
    num_layers=36,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12288,
    vocab_size=151_936,
)
NUM_SEQUENCES = 4096
PROMPT = 128
MAX_TOKENS = 8192


def row(num_shares: int, lengths: list[int], flops: ModelFlops) -> Row:
    """Shares of all sequences, and each share's micro-batches."""
    costs = [group_cost(GroupLengths(PROMPT, [length]), flops) for length in lengths]
    started_s = time.process_time()
    shares = share_out(costs, num_shares)
    shared_s = time.process_time() - started_s
    shards = [[Sequences(PROMPT, {i: lengths[i]}) for i in share] for share in shares]
    planner = MicroBatchPlanner(max_tokens=MAX_TOKENS, shares_prefixes=True, multiple_of=1, flops=flops)
    started_s = time.process_time()
    plan = planner.plan(shards)
    planned_s = time.process_time() - started_s
    return {
        "shares": num_shares,
        "ms": 1e3 * shared_s,
        "largest/mean": imbalance(plan.loads),
        "least": max(1.0, max(costs) / sum(costs) * num_shares),
        "plan ms": 1e3 * planned_s,
        "micro-batches": len(plan.shards[0]),
        "at least": -(-max(sum(lengths[i] + PROMPT for i in share) for share in shares) // MAX_TOKENS),
    }


def main() -> int:
    """One line for each number of shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    options = parser.parse_args()
    flops = ModelFlops.of(SIZES)
    lengths = np.random.default_rng(0).lognormal(6.5, 0.8, NUM_SEQUENCES).clip(16, MAX_TOKENS - PROMPT)
    rows = [row(num_shares, lengths.astype(int).tolist(), flops) for num_shares in (1, 8, 64, 256)]
    ratios = {f"shares_{r['shares']}": float(r["largest/mean"]) for r in rows}
    Report(title=f"{NUM_SEQUENCES} sequences shared out", ratios=ratios, rows=rows).publish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
