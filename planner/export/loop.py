"""Twenty steps on random tokens, for libraries that bring no program of their own: Accelerate and DeepSpeed."""

from __future__ import annotations

from planner.export.files import File
from planner.export.view import View, commented, header


def loop(view: View, release: str, *, deepspeed: bool) -> File:
    """``train.py``: MODEL is a folder with the model's config.json."""
    d, recipe = view.degrees, view.plan.recipe
    return File(
        "train.py",
        _LOOP.format(
            about=commented(header(view, release)),
            start=_start(view, deepspeed=deepspeed),
            step=(_ULYSSES_STEP if d.cp > 1 else _DEEPSPEED_STEP) if deepspeed else _ACCELERATE_STEP,
            micro=d.micro_batch, count=d.num_micro_batches, seq=recipe.seq,
            checkpoint="model.gradient_checkpointing_enable()" if d.recompute == "full" and deepspeed else "pass",
        ),
    )  # fmt: skip


def _start(view: View, *, deepspeed: bool) -> str:
    if deepspeed:
        return _ULYSSES.format(ranks=view.degrees.cp) if view.degrees.cp > 1 else _DEEPSPEED
    sgd = view.plan.recipe.optimizer == "sgd"
    name, more = ("SGD", ", momentum=0.9") if sgd else ("AdamW", "")
    tp = view.degrees.tp
    alone = tp > 1 and not view.level
    return _ACCELERATE.format(
        more=", ParallelismConfig" if alone else "",
        sizes=f", parallelism_config=ParallelismConfig(tp_size={tp})" if alone else "",
        each=view.level > 0, optimizer=name, momentum=more, cut=_TENSOR if tp > 1 else "",
    )  # fmt: skip


def started(view: View, *, deepspeed: bool) -> str:
    """How it is started, for the header of the file beside it, which has no words for all of this."""
    d = view.degrees
    length = f"train.py --max_length {view.plan.recipe.seq}"
    if deepspeed:
        return f"use it as: torchrun … {length}"
    batches = f"--per_device_train_batch_size {d.micro_batch} --gradient_accumulation_steps {d.num_micro_batches}"
    return f"use it as: accelerate launch --config_file accelerate.yaml {length} {batches}"


_LOOP = """{about}
import argparse
import os
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default={micro})
parser.add_argument("--gradient_accumulation_steps", type=int, default={count})
parser.add_argument("--max_length", type=int, default={seq})
args = parser.parse_args()
MICRO, COUNT, SEQ = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.max_length
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
config = AutoConfig.from_pretrained(os.environ["MODEL"], use_cache=False)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.train()
{checkpoint}
{start}
for number in range(20):
    began = time.perf_counter()
    for turn in range(COUNT):
        tokens = torch.randint(config.vocab_size, (MICRO, SEQ), device=DEVICE)
{step}
    if CUDA:
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**30 if CUDA else 0.0
    if os.environ.get("RANK", "0") == "0":
        print(f"step {{number}} took {{time.perf_counter() - began:.4f}} s, peak {{peak:.3f}} GiB", flush=True)
"""
_ACCELERATE = """from accelerate import Accelerator{more}
from accelerate.utils import GradientAccumulationPlugin

accumulation = GradientAccumulationPlugin(num_steps=COUNT, sync_each_batch={each})
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_plugin=accumulation{sizes})
{cut}optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-5{momentum})
model, optimizer = accelerator.prepare(model, optimizer)
"""
"""Sharded gradients are reduced with every micro-batch, as plans count them: without ``sync_each_batch`` Accelerate
keeps whole gradients until the last one. Source: ``Accelerator.accumulate`` and ``no_sync`` of Accelerate 1.15."""
_TENSOR = """import json

if accelerator.is_main_process:
    model.save_pretrained("weights")
accelerator.wait_for_everyone()
with open("tp_plan.json") as file:
    rules = json.load(file)["tp_plan"]
model = AutoModelForCausalLM.from_pretrained(
    "weights", dtype=torch.bfloat16, tp_plan=rules, device_mesh=accelerator.torch_device_mesh["tp"]
)
model.train()
"""
"""A model is cut as it is loaded; Accelerate takes one that is cut only where its own sizes say so."""
_ACCELERATE_STEP = """        with accelerator.accumulate(model):
            buffers = [tokens, labels := tokens.clone()]
            with accelerator.maybe_context_parallel(
                buffers=buffers, buffer_seq_dims=[1, 1], no_restore_buffers=set(buffers)
            ):
                accelerator.backward(model(input_ids=tokens, labels=labels).loss)
            optimizer.step()
            optimizer.zero_grad()"""
_DEEPSPEED = """import deepspeed

engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="deepspeed.json")
"""
_ULYSSES = """import deepspeed
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

deepspeed.init_distributed()
mpu = UlyssesSPAttentionHF.register_with_transformers(
    model, model.config._attn_implementation, sequence_parallel_size={ranks}, micro_batch_size=MICRO, seq_length=SEQ,
    seq_length_is_variable=False,
)
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config="deepspeed.json", mpu=mpu
)
OWN = SEQ // {ranks}
POSITIONS = torch.arange(OWN, device=DEVICE) + OWN * mpu.get_sequence_parallel_rank()
"""
_ULYSSES_STEP = """        tokens = tokens[:, :OWN].contiguous()
        logits = engine(input_ids=tokens, position_ids=POSITIONS.expand(MICRO, -1)).logits
        engine.backward(torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()))
        engine.step()"""
_DEEPSPEED_STEP = """        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()"""
