"""MaxText reads a configuration for chips that are not there, and builds what it says: a program for its own process.

It wants as many devices as the mesh has, and libraries for TPUs, data and kernels that nothing here runs.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from math import prod
from typing import Any
from unittest.mock import MagicMock

KEYS = (
    "mesh_axes", "ici_parallelism", "dcn_parallelism", "global_batch_size_to_train_on", "micro_batch_size_to_train_on",
    "gradient_accumulation_steps", "max_target_length", "remat_policy", "emb_dim", "num_query_heads", "num_kv_heads",
    "num_decoder_layers", "num_experts", "num_experts_per_tok", "num_pipeline_microbatches", "num_pipeline_repeats",
    "num_layers_per_pipeline_stage", "optimizer_memory_host_offload", "logical_axis_rules",
)  # fmt: skip
ABSENT = (
    "absl.logging", "aqt", "drjax", "grain", "jaxtyping", "maxtext.input_pipeline", "maxtext.kernels", "pathwaysutils",
    "qwix", "tiktoken", "tokamax", "tunix",
)  # fmt: skip


class Absent(MetaPathFinder, Loader):
    """Finds what is not there, as modules that have every name."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        wanted = any(name == root or name.startswith(f"{root}.") for root in ABSENT)
        return ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: ModuleSpec) -> MagicMock:
        made = MagicMock(__path__=[], __spec__=spec, __name__=spec.name)
        made.get_current_rule.return_value = None  # nothing is quantised
        return made

    def exec_module(self, module: object) -> None:
        """Nothing to run."""


def main(file: str, chips: str, *, build: bool) -> dict[str, object]:
    """What the parser makes of a file, by key; and the mesh and the model, if they are wanted."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={chips}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    sys.meta_path.insert(0, Absent())
    from maxtext.configs.pyconfig import initialize_pydantic

    own = ("run_name=x", "skip_jax_distributed_system=true", "enable_checkpointing=false")
    found = initialize_pydantic(["", file, *own])
    values = {key: getattr(found, key) for key in KEYS} | {
        "decoder_block": found.decoder_block.value
    }
    return values | (built(found) if build else {})


def built(config: Any) -> dict[str, object]:
    """Its own mesh as numbers of devices, and its own model: every weight's numbers, and those of one device."""
    import jax
    from flax import nnx
    from maxtext.utils import maxtext_utils, model_creation_utils

    devices = maxtext_utils.create_device_mesh(config)
    mesh = jax.sharding.Mesh(devices, config.mesh_axes)
    _, model = model_creation_utils.create_nnx_abstract_model(config, mesh)
    leaves = jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Param))
    weights = {
        jax.tree_util.keystr(path): [prod(leaf.shape), prod(leaf.sharding.shard_shape(leaf.shape))]
        for path, leaf in leaves
    }
    ids = [int(device.id) for device in devices.flat]
    return {"devices": ids, "shape": list(devices.shape), "weights": weights}


if __name__ == "__main__":
    found = main(*sys.argv[1:3], build=sys.argv[3:] == ["built"])
    sys.stdout.write("FOUND " + json.dumps(found))
