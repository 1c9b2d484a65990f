"""MindFormers' YAML configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planner.errors import alike, listed, nearest
from planner.frontends.launch.decoder import Decoder, architecture, needed
from planner.frontends.launch.found import Reader, TrainerFile, in_part, table_of, without_defaults
from planner.frontends.yaml_source import YamlSource
from planner.units import Json

STRICT: dict[str, frozenset[str]] = {
    "parallel_config": frozenset({
        "data_parallel", "model_parallel", "context_parallel", "expert_parallel", "pipeline_stage", "micro_batch_num",
        "seq_split_num", "use_seq_parallel", "optimizer_shard", "gradient_aggregation_group", "vocab_emb_dp",
        "context_parallel_algo", "ulysses_degree_in_cp", "mem_coeff",
    }),
    "recompute_config": frozenset({
        "recompute", "select_recompute", "parallel_optimizer_comm_recompute", "select_comm_recompute",
        "mp_comm_recompute", "recompute_slice_activation", "select_recompute_exclude", "select_comm_recompute_exclude",
    }),
}  # fmt: skip
"""Sections of MindFormers 1.9.0 in which it refuses other keys."""
LENIENT = frozenset({
    "parallel", "context", "model", "trainer", "moe_config", "runner_config", "swap_config", "optimizer",
    "lr_schedule", "train_dataset", "train_dataset_task", "eval_dataset", "callbacks", "processor", "output_dir",
    "run_mode", "use_parallel", "seed", "load_checkpoint", "micro_batch_interleave_num", "wrapper", "runner_wrapper",
})  # fmt: skip
SCHEDULERS = {"1f1b": "interleaved", "zero_bubble_v": "zbv"}
"""Schedules of several chunks a stage that plans know, by MindSpore's words."""
MODES = (
    "0",
    "1",
    "2",
    "3",
    "data_parallel",
    "semi_auto_parallel",
    "auto_parallel",
    "hybrid_parallel",
    "stand_alone",
)
"""``parallel_mode`` as a number or a name."""


def read_mindformers(source: YamlSource) -> TrainerFile:
    """MindFormers: model, recipe and layout in one file."""
    data: dict[str, Json] = source.data
    values: dict[str, Json] = {}
    for name in ("parallel_config", "recompute_config", "runner_config", "parallel", "moe_config"):
        values |= {f"{name}.{key}": value for key, value in table_of(data, name).items()}
    config = table_of(table_of(data, "model"), "model_config")
    values |= {f"model.{key}": value for key, value in config.items()}
    for name in ("pipeline_config", "parallel_optimizer_config"):
        own = table_of(table_of(data, "parallel"), name)
        values |= {f"{name}.{key}": value for key, value in own.items()}
    r = Reader(source.path, values)
    p = {axis: r.degree(f"parallel_config.{key}") for axis, key in {
        "dp": "data_parallel", "tp": "model_parallel", "cp": "context_parallel", "pp": "pipeline_stage",
    }.items()}  # fmt: skip
    model = _mindformers_model(r, data)
    layout: dict[str, int | str] = {
        **p,
        "mbs": r.degree("runner_config.batch_size", "model.batch_size"),
    }
    layout["sp"] = "on" if r.flag("parallel_config.use_seq_parallel") and p["tp"] > 1 else "off"
    if model.experts:
        ep = r.degree("parallel_config.expert_parallel")
        layout |= {"ep": ep, "etp": p["tp"]}
        what = f"expert_parallel {ep} does not divide {model.experts} experts."
        r.silently(model.experts % ep > 0, what, "MindFormers takes it.")
    ep = r.degree("parallel_config.expert_parallel")
    r.silently(ep > 1 and not model.experts, f"expert_parallel {ep} does nothing: there are no experts.",
               "Write expert_parallel: 1")  # fmt: skip
    _mindformers_keys(r, data)
    layout["zero"] = int(r.flag("parallel.enable_parallel_optimizer"))
    ranks = r.number("parallel_optimizer_config.optimizer_weight_shard_size", default=-1)
    if layout["zero"] and 0 < ranks < p["dp"] * p["cp"]:
        layout["shard-group"] = ranks
    turns = _turns(r, p["pp"])
    stages = _mindformers_stages(r, model.layers, p["pp"], layout)
    chunks = stages or (model.layers // p["pp"],) * p["pp"]
    layout |= _recomputed(r, chunks, staged=layout.get("vpp", 1) == 1)
    _lists(r, chunks)
    r.silently(p["pp"] > 1 and r.flag("parallel_config.vocab_emb_dp"),
               "vocab_emb_dp is turned off where there are stages.", "Write vocab_emb_dp: False")  # fmt: skip
    if p["pp"] > 1 and turns < p["pp"]:
        r.silently(
            True, f"micro_batch_num {turns} does not fill {p['pp']} stages.", f"Nearest: {p['pp']}."
        )
    r.done()
    return TrainerFile(
        path=source.path, program="mindformers", trainer="mindspore", layout=without_defaults(layout),
        architecture=architecture(model) if model.layers else None, chips=math.prod(p.values()),
        global_batch=int(layout["mbs"]) * p["dp"] * turns, seq_len=model.seq or None, precision=_narrow(r),
        stages=stages, notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def _mindformers_keys(r: Reader, data: Mapping[str, Json]) -> None:
    """Keys that MindFormers refuses, sections that it only warns about, and a mode that MindSpore refuses."""
    for section, known in STRICT.items():
        for key in sorted(table_of(data, section).keys() - known):
            r.fault("W03", f"{section} has no key '{key}', and MindFormers refuses it.",
                    f"Nearest: {listed(nearest(key, known, 2))}.")  # fmt: skip
    for key in sorted(data.keys() - STRICT.keys() - LENIENT):
        close = alike(key, (*STRICT, *LENIENT), 1, least=0.8)
        r.silently(bool(close), f"the section '{key}' is not read.", f"Nearest: {listed(close)}.")
    mode = r.text("parallel.parallel_mode", default="1").lower()
    if mode not in MODES:
        r.fault(
            "W03",
            f"parallel.parallel_mode is '{mode}', and MindSpore refuses it.",
            f"It can be {listed(MODES)}.",
        )


def _lists(r: Reader, stages: tuple[int, ...]) -> None:
    """Lists of how many layers of every stage recompute: MindFormers takes numbers that no stage has."""
    for key in ("recompute", "select_recompute"):
        value = r.get(f"recompute_config.{key}")
        counts = value if isinstance(value, list) else []
        for stage, (count, most) in enumerate(zip(counts, stages, strict=False)):
            r.silently(isinstance(count, int) and count > most,
                       f"{key} names {count} layers of stage {stage}, which has {most}.",
                       f"Nearest: {most}, which is all of them.")  # fmt: skip


def _turns(r: Reader, pp: int) -> int:
    """Micro-batches of a data rank."""
    inner = r.degree("parallel_config.micro_batch_num") if pp > 1 else 1
    return inner * r.degree("runner_config.gradient_accumulation_steps")


def _narrow(r: Reader) -> str:
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return words.get(r.text("model.compute_dtype", default="float16"), "bf16")


def _recomputed(r: Reader, chunks: Sequence[int], *, staged: bool) -> dict[str, int | str]:
    """What is computed again: a mode, or numbers of layers of every stage, where a stage is one chunk.

    A layer that is in the list of whole ones and in that of operators is computed again as a whole (``LayerSetting``).
    """
    whole, some = r.get("recompute_config.recompute"), r.get("recompute_config.select_recompute")
    reach = next(iter(some.values()), whole) if isinstance(some, dict) else whole
    if staged and _counts(whole, chunks) and _counts(reach, chunks):
        full = [min(count, most) for count, most in zip(whole, chunks, strict=True)]
        more = [min(n, most) - done for n, most, done in zip(reach, chunks, full, strict=True)]
        return in_part(chunks, full, [max(n, 0) for n in more])
    if isinstance(whole, list | dict):
        r.notes.append("recompute of some layers of a stage is priced as of all")
    mode = (
        "full"
        if whole not in (None, False)
        else "selective"
        if some not in (None, False, [], {})
        else "none"
    )
    return {"recompute": mode}


def _counts(value: Json, chunks: Sequence[int]) -> bool:
    """Whether a value has a number for every stage."""
    numbers = isinstance(value, list) and all(type(count) is int for count in value)
    return numbers and len(value) == len(chunks)


def _mindformers_stages(
    r: Reader, layers: int, pp: int, layout: dict[str, int | str]
) -> tuple[int, ...] | None:
    """Equal shares plus offsets, one for every stage, or for every stage of every chunk."""
    chunks = r.degree("model.pp_interleave_num")
    scheduler = r.text("pipeline_config.pipeline_scheduler", default="1f1b")
    if pp == 1:
        return None
    if scheduler not in SCHEDULERS:
        r.notes.append(f"not priced: pipeline_scheduler {scheduler}; priced as 1f1b")
    if chunks > 1:
        layout["vpp"] = chunks
        layout["schedule"] = SCHEDULERS.get(scheduler, "interleaved")
    offset = r.get("model.offset")
    if not isinstance(offset, list):
        return None
    flat = [value for row in offset for value in (row if isinstance(row, list) else [row])]
    share = layers // (pp * chunks)
    sizes = tuple(share + int(value) for value in flat)
    if len(sizes) != pp * chunks or sum(sizes) != layers:
        r.fault(
            "P01",
            f"offset makes stages of {list(sizes)} layers, and the model has {layers} in {pp * chunks}.",
        )
    return sizes if len(set(sizes)) > 1 else None


def _mindformers_model(r: Reader, data: Mapping[str, Json]) -> Decoder:
    heads, hidden = (
        r.number("model.num_heads", "model.num_attention_heads"),
        r.number("model.hidden_size"),
    )
    experts = r.number("moe_config.expert_num")
    experts = experts if experts > 1 else 0
    layers = r.number("model.num_layers", "model.num_hidden_layers")
    first = r.number("moe_config.first_k_dense_replace", "model.first_k_dense_replace")
    width = r.number("moe_config.moe_intermediate_size", "model.moe_intermediate_size")
    found = Decoder(
        name=str(table_of(data, "trainer").get("model_name") or "model of the YAML file"),
        layers=layers, hidden=hidden, heads=heads, kv_heads=r.number("model.n_kv_heads", default=heads),
        head_dim=r.number("model.head_dim", default=hidden // max(heads, 1)), ffn=_feed_forward(r, hidden),
        vocab=r.number("model.vocab_size"), seq=r.number("model.seq_length"), gated=True, norm="rms",
        qk_norm=r.flag("model.qk_layernorm") or r.flag("model.use_qk_norm"),
        tied=r.flag("model.tie_word_embeddings"), mtp=max(r.number("model.mtp_depth"), 0),
        dense=tuple(layer < first for layer in range(layers)) if experts else (), experts=experts,
        top_k=r.number("moe_config.num_experts_chosen", default=2), expert_ffn=width or _feed_forward(r, hidden),
        shared_ffn=r.number("moe_config.shared_expert_num") * (width or _feed_forward(r, hidden)) if experts else 0,
        router_bias=r.flag("moe_config.balance_via_topk_bias"),
        q_latent=r.number("model.q_lora_rank"), kv_latent=r.number("model.kv_lora_rank"),
        nope_dim=r.number("model.qk_nope_head_dim", default=128),
        rope_dim=r.number("model.qk_rope_head_dim", default=64),
        value_dim=r.number("model.v_head_dim", default=128), source=r.path,
    )  # fmt: skip
    if layers:
        needed(r, {"num_layers": layers, "hidden_size": hidden, "num_heads": heads, "vocab_size": found.vocab,
                   "seq_length": found.seq})  # fmt: skip
    return found


def _feed_forward(r: Reader, hidden: int) -> int:
    """Stated, or Llama's rule: two thirds of four times the width, times a factor, rounded up."""
    stated = r.number("model.intermediate_size")
    if stated:
        return stated
    multiple = r.number("model.multiple_of", default=256)
    factor = float(r.get("model.ffn_dim_multiplier") or 1)
    wide = int(factor * int(8 * hidden / 3))
    return -(-wide // max(multiple, 1)) * multiple
