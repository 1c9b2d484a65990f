"""torchtitan: TOML job files (0.2), configuration modules (0.3), and flags on a command line."""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace

from planner.errors import PlannerError, listed, nearest
from planner.frontends.launch.found import Reader, TrainerFile, without_defaults
from planner.units import Json

SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "interleavedzerobubble": "zb-h1",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipev",
}
KEYS = frozenset({
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
    "enable_fsdp_symm_mem", "tensor_parallel_degree", "enable_sequence_parallel", "spmd_backend",
    "pipeline_parallel_degree", "pipeline_parallel_split_points", "module_fqns_per_model_part",
    "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
    "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv",
    "pipeline_parallel_microbatch_size", "pipeline_parallel_expert_parallel_overlap", "context_parallel_degree",
    "context_parallel_load_balancer", "context_parallel_ptrr_mask_key", "context_parallel_rotate_method",
    "expert_parallel_degree", "expert_tensor_parallel_degree", "expert_parallel_comm_backend",
    "disable_loss_parallel", "enable_async_tensor_parallel", "enable_compiled_autograd",
})  # fmt: skip
"""Keys of ``parallelism`` in 0.3.0, 0.2.2 and before."""
JOB_FILE = ("job.config_file", "job.config-file")
"""Flags of 0.2 that name a job file."""
RECOMPUTE = "activation_checkpoint"
"""Where a configuration module says what is computed again."""
SECTIONS = {
    "TrainingConfig": "training",
    "ParallelismConfig": "parallelism",
    "CompileConfig": "compile",
}
"""Classes of a configuration module to the sections that they fill."""
CATALOGUE = {
    "llama3": "llama-3-{}",
    "qwen3": "qwen3-{}",
    "deepseek_v3": "deepseek-v3",
    "gpt_oss": "gpt-oss-{}",
}
"""torchtitan's packages of models to names of our catalogue; the braces stand for the size."""
WHOLE = frozenset({
    "flux_debugmodel", "flux_dev", "flux_dev_mxfp8", "flux_schnell", "flux_schnell_mxfp8", "gpt_oss_20b",
    "gpt_oss_120b", "kimi_k2_5", "kimi_vl_a3b", "moonlight_16b_a3b", "llama3_70b", "llama3_405b", "muse_glimmer_30b",
    "muse_glimmer_30b_mm", "qwen3_14b", "qwen3_30b_a3b", "qwen3_32b", "qwen35_4b", "qwen35_9b", "qwen35_27b",
    "qwen35_35b_a3b", "qwen35_122b_a10b", "qwen35_397b_a17b",
})  # fmt: skip
"""Functions of 0.3's configurations whose layers are computed again as a whole."""
NOTHING = frozenset({"gpt_oss_debugmodel", "gpt_oss_debugmodel_flex"})
"""Those in which nothing is. All others leave it at the default, which is selective, in 0.2 too."""
_POLICY = re.compile(r"activation[-_]checkpoint:([\w-]+)")
"""How 0.3's flags choose a way to recompute: a command within the command."""


def from_toml(path: str, text: str) -> TrainerFile:
    """A job file.

    Raises:
        PlannerError: no TOML, or values that cannot be (W03).
    """
    return _job(path, job_values(path, text))


def job_values(path: str, text: str) -> dict[str, Json]:
    """What a job file sets, by section and key.

    Raises:
        PlannerError: no TOML (W03).
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlannerError.of("W03", f"is not TOML: {error}.", where=path) from None
    return {
        f"{section}.{key}": value
        for section, table in data.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def _job(path: str, values: Mapping[str, Json]) -> TrainerFile:
    """A job of 0.2, whose default is to compute every second layer again."""
    usual = {
        "activation_checkpoint.mode": "selective",
        "activation_checkpoint.selective_ac_option": "2",
    }
    given = usual | dict(values)
    mode = str(given["activation_checkpoint.mode"])
    return _read(path, given, mode, _named(given.get("model.name"), given.get("model.flavor")))


def from_module(path: str, text: str) -> TrainerFile:
    """A configuration module, not run: assignments to ``config.section.key`` and arguments of its classes.

    Raises:
        PlannerError: no Python (W03).
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise PlannerError.of("W03", f"is not Python: {error}.", where=path) from None
    values: dict[str, Json] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = ast.unparse(node.targets[0]).split(".")
            if len(target) == 3:
                values[".".join(target[1:])] = _literal(node.value)
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in SECTIONS:
            values |= {
                f"{SECTIONS[name]}.{word.arg}": _literal(word.value) for word in node.keywords
            }
    source = re.search(r"torchtitan\.models\.(\w+)\.config_registry import (\w+)", text)
    size = source[2].removeprefix(f"{source[1]}_") if source else None
    return _read(path, values, module_mode(tree, text), _named(source[1] if source else None, size))


def module_mode(tree: ast.Module, text: str) -> str:
    """What a configuration module computes again: what it sets last, or what the configuration that it changes does."""
    said = [ast.unparse(value) for value in policies(tree)]
    if said:
        words = {"FullAC": "full", "None": "none"}
        return words.get(
            said[-1].removesuffix("()").removesuffix(".Config").rpartition(".")[2], "selective"
        )
    source = re.search(r"\.config_registry import (\w+)", text)
    return _usual(source[1] if source else "")


def policies(tree: ast.Module) -> list[ast.expr]:
    """Values that a module gives ``activation_checkpoint``: arguments of classes, then assignments."""
    nodes = list(ast.walk(tree))
    arguments = (word for node in nodes if isinstance(node, ast.Call) for word in node.keywords)
    held = [word.value for word in arguments if word.arg == RECOMPUTE]
    return held + [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(f".{RECOMPUTE}")
    ]


def _usual(function: str) -> str:
    """What a configuration of 0.3 computes again by itself."""
    return "full" if function in WHOLE else "none" if function in NOTHING else "selective"


def from_flags(path: str, values: Mapping[str, Json], job: Mapping[str, Json]) -> TrainerFile:
    """Flags such as ``--parallelism.tensor_parallel_degree 4``, of 0.3 with a module and a configuration of it.

    Args:
        path: where they stand.
        values: flags without their dashes.
        job: what the job file that they name sets, in 0.2; nothing where it is not there.
    """
    if "config" not in values:
        found = _job(path, {**job, **values})
        named = next((values[key] for key in JOB_FILE if key in values), None)
        missing = (f"{named} is not there: what it sets is priced as torchtitan's defaults",)
        return found if job or named is None else replace(found, notes=(*found.notes, *missing))
    chosen = [match[1] for word in _words(values) if (match := _POLICY.fullmatch(word))]
    name, module = str(values["config"]), str(values.get("module", ""))
    mode = chosen[-1].replace("-", "_") if chosen else _usual(name)
    return _read(
        path, _without_policy(values), mode, _named(module, name.removeprefix(f"{module}_"))
    )


def _words(values: Mapping[str, Json]) -> list[str]:
    """All words behind flags."""
    lists = (value if isinstance(value, list) else [value] for value in values.values())
    return [word for words in lists for word in words if isinstance(word, str)]


def _without_policy(values: Mapping[str, Json]) -> dict[str, Json]:
    """Flags without the word that chooses how to recompute, which stands behind the value of any of them."""
    kept: dict[str, Json] = {}
    for key, value in values.items():
        words = value if isinstance(value, list) else [value]
        rest = [word for word in words if not (isinstance(word, str) and _POLICY.fullmatch(word))]
        kept[key] = rest if len(rest) > 1 else rest[0] if rest else True
    return kept


def _literal(node: ast.expr) -> Json:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None


def _named(package: Json, size: Json) -> str | None:
    if package not in CATALOGUE or not size:
        return None
    return CATALOGUE[str(package)].format(
        str(size).lower().replace("_", "-").replace("0-6b", "0.6b").replace("1-7b", "1.7b")
    )


def _read(path: str, values: Mapping[str, Json], mode: str, model: str | None) -> TrainerFile:
    r = Reader(path, values)

    def degree(key: str) -> int:
        return r.degree(f"parallelism.{key}_degree")

    tp, pp, cp = degree("tensor_parallel"), degree("pipeline_parallel"), degree("context_parallel")
    replicate = degree("data_parallel_replicate")
    shard = r.number("parallelism.data_parallel_shard_degree", default=-1)
    layout: dict[str, int | str] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": degree("expert_parallel"),
    }
    chips = None
    if shard > 0:
        layout["dp"] = replicate * shard
        chips = replicate * shard * math.prod((tp, pp, cp))
        if replicate > 1 and shard * cp > 1:
            layout["shard-group"] = shard * cp
    elif replicate > 1:
        r.notes.append(f"states are sharded over 1/{replicate} of the data ranks; priced over all")
    reshard = r.text("parallelism.fsdp_reshard_after_forward", default="default")
    layout["zero"] = 0 if shard * cp == 1 and replicate > 1 else 2 if reshard == "never" or (
        reshard == "default" and pp > 1
    ) else 3  # fmt: skip
    if r.flag("training.enable_cpu_offload"):
        layout["offload"] = "states"
    layout["sp"] = "on" if tp > 1 else "off"
    layout["recompute"] = {"none": "none", "full": "full", "selective": "selective"}.get(
        mode, "selective"
    )
    stages = _pipeline(r, layout, pp)
    _batches(r, layout, pp)
    _keys(r, pp)
    every = r.text("activation_checkpoint.selective_ac_option", default="op")
    if mode == "selective" and every != "op":
        which = {"1": "layer", "2": "second layer"}.get(every, f"{every}th layer")
        r.notes.append(
            f"recompute of every {which} is priced as torchtitan's selective mode by operators"
        )
    r.silently(
        mode not in ("none", "full", "selective", "memory_budget"),
        f"activation_checkpoint.mode is '{mode}', which torchtitan only trips over when it trains.",
        "It can be none, selective, full or memory_budget.",
    )
    r.done()
    return TrainerFile(
        path=path, program="torchtitan", trainer="torchtitan", layout=without_defaults(layout), model=model,
        chips=chips, global_batch=max(r.number("training.global_batch_size"), 0) or None,
        seq_len=r.number("training.seq_len") or None,
        precision="fp32" if r.text("training.mixed_precision_param") == "float32" else "bf16",
        stages=stages, notes=tuple(r.notes), faults=tuple(r.faults),
    )  # fmt: skip


def _keys(r: Reader, pp: int) -> None:
    """Keys that it has not, and what its configuration refuses beside numbers."""
    section, known = "parallelism.", [f"parallelism.{key}" for key in KEYS]
    for key in sorted(name for name in r.values if name.startswith(section) and name not in known):
        what = f"parallelism has no key '{key.removeprefix(section)}', and torchtitan refuses it."
        close = nearest(key.removeprefix(section), KEYS, 2)
        r.fault("W03", what, f"Nearest: {listed(close)}.")
    graphs = r.get("training.disable_cuda_graphs")
    if pp > 1 and graphs is not None and not r.flag("training.disable_cuda_graphs"):
        r.fault(
            "W03",
            f"training.disable_cuda_graphs is {graphs} with pp {pp}; torchtitan has no CUDA graphs in a pipeline.",
            "Write disable_cuda_graphs = True",
        )


def _pipeline(r: Reader, layout: dict[str, int | str], pp: int) -> tuple[int, ...] | None:
    if pp == 1:
        return None
    word = r.text("parallelism.pipeline_parallel_schedule", default="1F1B")
    schedule = SCHEDULES.get(word.lower())
    r.silently(
        schedule is None,
        f"pipeline_parallel_schedule '{word}' is taken by the parser, and torch has no such schedule.",
        "It can be GPipe, 1F1B, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble or DualPipeV.",
    )
    layout["schedule"] = schedule or "1f1b"
    parts = r.get("parallelism.module_fqns_per_model_part")
    if not isinstance(parts, list):
        r.notes.append(
            "stages are left to torchtitan, which counts embedding and head as a layer each"
        )
        return None
    sizes = tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    if len(sizes) % pp:
        r.fault(
            "P01", f"module_fqns_per_model_part names {len(sizes)} stages, no multiple of pp {pp}."
        )
    layout["vpp"] = max(1, len(sizes) // pp)
    return sizes if len(set(sizes)) > 1 else None


def _batches(r: Reader, layout: dict[str, int | str], pp: int) -> None:
    """The micro-batch: the local batch, or with a pipeline a piece of it."""
    local = r.degree("training.local_batch_size", default=8)
    micro = r.degree("parallelism.pipeline_parallel_microbatch_size") if pp > 1 else local
    if local % micro:
        r.fault(
            "B02", f"local_batch_size {local} is no multiple of the pipeline's micro-batch {micro}."
        )
    layout["mbs"] = micro
    batch = r.number("training.global_batch_size", default=-1)
    dp = int(layout.get("dp", 0))
    turns = batch // (local * dp) if dp else 0
    if pp > 1 and turns > 1:
        r.notes.append(
            f"the pipeline runs empty {turns} times a step, once every local_batch_size {local}; priced as filled once"
        )
    r.silently(
        batch > 0 and dp > 0 and batch % (local * dp) > 0,
        f"global_batch_size {batch} is no multiple of local_batch_size × dp = {local} × {dp}.",
        "The parser takes it, and the trainer refuses it when it is built.",
    )
