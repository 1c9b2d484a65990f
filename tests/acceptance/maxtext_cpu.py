"""MaxText reads a configuration for chips that are not there: a program for a process of its own.

Its parser wants a library for TPU slices that nothing here needs, and as many devices as the mesh has.
"""

from __future__ import annotations

import json
import os
import sys
from unittest.mock import MagicMock

KEYS = (
    "mesh_axes", "ici_parallelism", "dcn_parallelism", "global_batch_size_to_train_on", "micro_batch_size_to_train_on",
    "gradient_accumulation_steps", "max_target_length", "remat_policy", "emb_dim", "num_query_heads", "num_kv_heads",
    "num_decoder_layers", "num_experts", "num_experts_per_tok", "num_pipeline_microbatches", "num_pipeline_repeats",
    "num_layers_per_pipeline_stage", "optimizer_memory_host_offload", "logical_axis_rules",
)  # fmt: skip
ABSENT = ("pathwaysutils", "pathwaysutils.elastic", "absl", "absl.logging")


def main(file: str, chips: str) -> dict[str, object]:
    """What the parser makes of a file, by key."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={chips}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    sys.modules.update({name: MagicMock() for name in ABSENT if name not in sys.modules})
    from maxtext.configs.pyconfig import initialize_pydantic

    own = ("run_name=x", "skip_jax_distributed_system=true", "enable_checkpointing=false")
    found = initialize_pydantic(["", file, *own])
    return {key: getattr(found, key) for key in KEYS} | {"decoder_block": found.decoder_block.value}


if __name__ == "__main__":
    sys.stdout.write("FOUND " + json.dumps(main(*sys.argv[1:3])))
