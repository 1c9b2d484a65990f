"""Megatron-LM's own parser and groups without a GPU: what has to be replaced, and nothing more."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import typing_extensions

FOR_CPU = (
    "--lr", "1e-4", "--train-iters", "10", "--mock-data", "--tokenizer-type", "NullTokenizer",
    "--transformer-impl", "local", "--no-rope-fusion", "--no-persist-layer-norm",
)  # fmt: skip
"""What the parser wants besides a plan; the last three stand for Transformer Engine, which needs a GPU."""
LATER = frozenset({"--tp-comm-overlap", "--cross-entropy-loss-fusion"})
"""Options that need Transformer Engine, checked to be known and then left out."""


class _Absent(types.ModuleType):
    """A module whose contents only a GPU needs."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def load() -> types.ModuleType:
    """``megatron.training.arguments``."""
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    name = "megatron.core.transformer.moe.ops.paged_stash"
    sys.modules.setdefault(name, _Absent(name))
    from megatron.training import arguments

    return arguments


def parsed(words: Sequence[str], world: int, rank: int = 0, **environment: str) -> tuple[Any, Any]:
    """Arguments and transformer configuration as the trainer derives them.

    Raises:
        ValueError: the trainer refuses, with what it said.
    """
    arguments = load()
    import torch
    from megatron.training.argument_utils import core_transformer_config_from_args

    arguments.get_device_arch_version = lambda: 9
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    told = io.StringIO()
    with _process(words, WORLD_SIZE=str(world), RANK=str(rank), **environment):
        try:
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                args = arguments.validate_args(arguments.parse_args(), {})
                return args, core_transformer_config_from_args(args)
        except SystemExit:
            raise ValueError(told.getvalue().strip().splitlines()[-1]) from None
        except (AssertionError, RuntimeError) as error:
            raise ValueError(str(error)) from None


@contextlib.contextmanager
def _process(words: Sequence[str], **environment: str) -> Iterator[None]:
    before, variables = sys.argv, dict(os.environ)
    sys.argv = ["pretrain_gpt.py", *words]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(environment)
    try:
        yield
    finally:
        sys.argv = before
        os.environ.clear()
        os.environ.update(variables)


def without(words: Sequence[str], names: frozenset[str]) -> list[str]:
    """Words without some options that take no value."""
    return [word for word in words if word not in names]


@contextlib.contextmanager
def groups(args: Any, world: int, rank: int) -> Iterator[Any]:
    """Megatron's process groups of one rank of a world that does not exist."""
    import torch
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=args.tensor_model_parallel_size,
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )
        yield parallel_state
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
