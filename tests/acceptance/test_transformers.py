"""transformers 5.12 takes the exported tp_plan: rules meet modules of its Llama, two ranks compute what one does."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from plans import stated

from planner.export.targets import export

pytestmark = pytest.mark.filterwarnings("ignore")
SPLIT = ("llama-3-8b", "h100-sxm:2", "megatron", "tp=2,zero=0,sp=off")


def exported() -> dict[str, str]:
    return json.loads(export(stated(*SPLIT), "transformers")[0].text)["tp_plan"]


def small() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip


def test_every_rule_meets_a_module() -> None:
    import re

    import torch
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(small())
    names = [name for name, _ in model.named_modules()]
    for rule in exported():
        pattern = re.escape(rule).replace(r"\*", r"\d+")
        assert any(re.fullmatch(pattern, name) for name in names), rule
    model.tp_plan = exported()  # its setter refuses styles that it does not know


def worker(rank: int, port: int, folder: str, plan: dict[str, str] | None, queue: Any) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from transformers import LlamaForCausalLM

    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_RANK=str(rank),
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = LlamaForCausalLM.from_pretrained(folder, tp_plan=plan, dtype=torch.float32)
    torch.manual_seed(1)
    tokens = torch.randint(64, (2, 16))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    grads = {
        name: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad).detach()
        for name, p in model.named_parameters()
    }
    if rank == 0:
        queue.put((loss.item(), {name: grad.numpy() for name, grad in grads.items()}))
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(small())
    model.save_pretrained(tmp_path)
    torch.manual_seed(1)
    tokens = torch.randint(64, (2, 16))
    expected = model(input_ids=tokens, labels=tokens).loss
    expected.backward()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [
        context.Process(target=worker, args=(r, port, str(tmp_path), exported(), queue))
        for r in range(2)
    ]
    for rank in ranks:
        rank.start()
    loss, grads = queue.get(timeout=180)
    for rank in ranks:
        rank.join(timeout=60)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, p in model.named_parameters():
        assert p.grad is not None
        mine = torch.from_numpy(grads[name])
        part = p.grad
        for dim, size in enumerate(mine.shape):
            part = part.narrow(dim, 0, size)  # rank 0 holds the first part of what is split
        assert (mine - part).abs().max() / p.grad.abs().max() < 1e-4, name
    assert any(grads[n].shape != tuple(p.shape) for n, p in model.named_parameters()), (
        "nothing was split"
    )
