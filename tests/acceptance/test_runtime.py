"""Plans run on processes of one computer: the loss and every gradient are those of one process, the collectives those
that the plan predicts, in kind, number and bytes.

One of every kind runs first, all of them together; what else has found faults follows in a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from free_axes import Invented, invented
from plans import plan, stated

from cli.main import main
from planner.api import Question, price
from planner.errors import PlannerError
from planner.export.dtensor import settings
from planner.export.view import View
from planner.graph.architecture import Attention, Mlp
from planner.plan.schema import Plan
from planner.plan.write import write_plan
from planner.runtime.predicted import predicted
from planner.runtime.program import Program, program
from planner.runtime.run import Ran, run
from planner.runtime.shrink import shrink
from tests.cost.blocks import model_of
from tests.operators.schemes import moved, peak, task

pytestmark = pytest.mark.filterwarnings("ignore")
MODEL = """name: tiny
source: "of this test"
hidden: 32
vocab: 256
max_seq: 16
layers: {layers}
attention: {{heads: 8, kv_heads: 4, head_dim: 4}}
mlp: {{width: 64}}
"""
TIED = MODEL + "tied: true\n"
AHEAD = MODEL + "mtp: 2\n"
EXPERTS = MODEL.replace("mlp: {{width: 64}}", "experts: {{count: 4, top_k: 2, width: 16}}")
ROWS: dict[str, tuple[str, int, str, int, int, str]] = {
    "data": ("megatron", 2, "zero=0", 4, 2, MODEL),
    "optimizer": ("megatron", 2, "zero=1", 4, 2, MODEL),
    "fsdp": ("torchtitan", 2, "zero=3", 4, 2, MODEL),
    "fsdp-kept": ("torchtitan", 2, "zero=2,recompute=full", 4, 2, MODEL),
    "hybrid": ("torchtitan", 4, "zero=3,shard-group=2", 4, 1, MODEL),
    "tensor": ("megatron", 2, "tp=2,sp=off,zero=0", 2, 2, MODEL),
    "sequence": ("megatron", 2, "tp=2,sp=on,zero=0", 2, 2, MODEL),
    "checkpointed": ("megatron", 2, "tp=2,sp=on,zero=0,recompute=full", 2, 2, MODEL),
    "ring": ("megatron", 2, "cp=2,zero=0", 2, 2, MODEL),
    "ring-tensor": ("megatron", 4, "cp=2,tp=2,zero=1", 2, 2, MODEL),
    "experts": ("megatron", 2, "ep=2,zero=0", 4, 2, EXPERTS),
    "experts-fsdp": ("torchtitan", 4, "ep=2,zero=3", 4, 2, EXPERTS),
    "experts-tensor": ("megatron", 4, "ep=2,tp=2,etp=2,zero=0", 4, 1, EXPERTS),
    "experts-ring": ("megatron", 4, "ep=4,cp=2,dp=2,zero=1", 4, 1, EXPERTS),
    "pipeline": ("megatron", 4, "pp=4,zero=0", 4, 4, MODEL),
    "gpipe": ("torchtitan", 2, "pp=2,schedule=gpipe,zero=2", 2, 2, MODEL),
    "interleaved": ("megatron", 2, "pp=2,vpp=2,zero=0", 4, 4, MODEL),
    "zero-bubble-v": ("torchtitan", 2, "pp=2,vpp=2,schedule=zbv,zero=2", 4, 4, MODEL),
    "fsdp-stages": ("torchtitan", 4, "pp=2,zero=3", 8, 4, MODEL),
    "fsdp-chunks": ("torchtitan", 4, "pp=2,vpp=2,zero=3,recompute=full", 8, 4, MODEL),
    "fsdp-gpipe": ("torchtitan", 4, "pp=2,schedule=gpipe,zero=3", 4, 2, MODEL),
    "uneven": ("megatron", 2, "pp=2,zero=0", 2, 3, MODEL),
    "tensor-pipeline": ("megatron", 4, "tp=2,pp=2,sp=off,zero=0", 4, 2, MODEL),
    "tensor-fsdp": ("torchtitan", 4, "tp=2,zero=3", 2, 2, MODEL),
    "tied": ("torchtitan", 2, "zero=3", 4, 2, TIED),
    "tied-stages": ("megatron", 4, "pp=2,tp=2,zero=0", 4, 2, TIED),
    "tied-chunks": ("megatron", 8, "pp=2,dp=2,tp=2,vpp=2,zero=1", 8, 4, TIED),
    "tied-v": ("mindspore", 4, "pp=2,tp=2,vpp=2,schedule=zbv,zero=0", 4, 4, TIED),
    "tied-v-data": ("mindspore", 4, "pp=2,dp=2,vpp=2,schedule=zbv,zero=0,recompute=full", 8, 4, TIED),
    "ahead": ("megatron", 2, "zero=1", 4, 2, EXPERTS + "mtp: 1\n"),
    "ahead-stages": ("megatron", 4, "pp=2,tp=2,zero=0", 4, 2, AHEAD),
    "ahead-experts": ("megatron", 4, "pp=2,ep=2,dp=2,zero=1", 4, 2, EXPERTS + "mtp: 1\n"),
    "autotp": ("deepspeed", 4, "tp=2,zero=2", 4, 2, MODEL),
    "autotp-tied": ("deepspeed", 4, "tp=2,zero=1,recompute=full", 4, 2, TIED),
    "ulysses-zero": ("deepspeed", 4, "cp=2,zero=3,recompute=full", 4, 2, MODEL),
    "selective": ("torchtitan", 4, "tp=2,pp=2,recompute=selective,zero=2", 4, 2, MODEL),
    "selective-experts": ("megatron", 2, "tp=2,recompute=selective,zero=0", 4, 2, EXPERTS),
    "selective-ring": ("megatron", 4, "cp=2,tp=2,recompute=selective,zero=1", 4, 2, MODEL),
    "three": ("torchtitan", 8, "tp=2,pp=2,dp=2,zero=2", 8, 2, MODEL),
}  # fmt: skip
"""Name to trainer, chips, layout, global batch, layers and model."""
ULYSSES = {op: {"sp": "seq"} for op in ("attn.q", "attn.kv", "attn.out", "mlp.up", "mlp.down")}
FREE: dict[str, tuple[dict[str, int], int, int, int, dict[str, dict[str, str]]]] = {
    "ulysses": ({"sp": 4}, 1, 8, 64, ULYSSES | {"attn.core": {"sp": "heads"}}),
    "invented-1": ({"a": 2, "b": 2}, 2, 4, 64, {}),
    "invented-2": ({"a": 2, "b": 2}, 2, 8, 256, {}),
}
"""Name to mesh, sequences, key/value heads, tokens and pins: the free-axis solver chooses the rest."""
KINDS = "cp=2,tp=2,ep=64,dp=64,recompute=full"
ETP = "ep=8,etp=2,zero=1,recompute=full,sp=off"
LATENT = "pp=4,ep=64,dp=32,tp=2,recompute=selective"
SHRUNK = {
    "catalog-latent": lambda: plan("latent"),
    "catalog-tied": lambda: stated(
        "llama-3.2-1b", "h100-sxm:8", "megatron", "pp=2,tp=2,dp=2,zero=1"
    ),
    "catalog-experts": lambda: plan("experts"),
    "catalog-selective": lambda: stated("deepseek-v3", "h800-sxm:256", "megatron", LATENT, 256),
    "catalog-sinks": lambda: stated(
        "gpt-oss-20b", "h100-sxm:32", "megatron", "tp=2,cp=2,zero=1", 128
    ),
    "catalog-biases-ring": lambda: stated(
        "gpt3-1.3b", "h100-sxm:32", "fsdp", "cp=2,zero=3,recompute=full", 128
    ),
    "catalog-expert-tensor": lambda: stated(
        "deepseek-v2-lite", "h100-sxm:32", "megatron", ETP, 128
    ),
    "catalog-v": lambda: plan("titan-v"),
    "catalog-kinds": lambda: stated("deepseek-v3", "h800-sxm:256", "megatron", KINDS, 256),
    "catalog-hybrid": lambda: plan("titan-hybrid"),
    "catalog-ring": lambda: plan("titan-ring"),
    "catalog-biases": lambda: stated("gpt3-1.3b", "h100-sxm:4", "megatron", "tp=2,dp=2"),
    "catalog-norms": lambda: stated("qwen3-8b", "h100-sxm:4", "megatron", "tp=2,dp=2"),
}
"""Plans of large models, scaled down."""
NAMED = (
    "data", "fsdp", "hybrid", "tensor", "sequence", "ulysses", "pipeline", "interleaved", "uneven", "experts", "three",
    "invented-1", "invented-2",
)  # fmt: skip
"""One of every kind; those of tensor parallelism split the vocabulary too."""
REST = [name for name in [*ROWS, *FREE, *SHRUNK] if name not in NAMED]


@cache
def exact(name: str, folder: Path) -> Plan:
    """A plan whose own numbers are small enough to run."""
    trainer, chips, layout, batch, layers, text = ROWS[name]
    file = folder / f"{name}.yaml"
    file.write_text(text.format(layers=layers))
    question = Question(
        model=str(file),
        cluster=f"h100-sxm:{chips}",
        trainer=trainer,
        global_batch=batch,
        seq_len=16,
        precision="fp32",
    )
    return price(question, dict(pair.split("=") for pair in layout.split(",")), usual=True)


@cache
def free(name: str) -> Invented:
    axes, sequences, kv_heads, seq, pins = FREE[name]
    width = 64 if seq > 64 else 512
    attention = Attention(heads=8, kv_heads=kv_heads, head_dim=8)
    model = model_of(attention, Mlp(width=width), seq, hidden=64, vocab=256)
    given = task(model, 4, **peak(1e12 if seq == 64 else 1e11))
    recipe = replace(given.recipe, precision="fp32")
    return invented(model, replace(given, recipe=recipe), axes, sequences, pins)


Programs = Callable[[str], Program]
Runs = Callable[[str], Ran]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    folder = tmp_path_factory.mktemp("plans")

    @cache
    def of(name: str) -> Program:
        if name in FREE:
            return free(name).program
        if name in ROWS:
            return program(settings(View(exact(name, folder))))
        return shrink(program(settings(View(SHRUNK[name]()))))

    return of


@pytest.fixture(scope="module")
def ran(programs: Programs) -> Runs:
    @cache
    def together(names: tuple[str, ...]) -> dict[str, Ran]:
        return dict(zip(names, run([programs(name) for name in names]), strict=True))

    return lambda name: together(NAMED if name in NAMED else tuple(REST))[name]


@pytest.mark.parametrize("name", [*NAMED, *REST])
def test_loss_and_gradients(name: str, ran: Runs) -> None:
    found = ran(name)
    assert not found.fault, found.fault
    assert found.loss == pytest.approx(found.expected, rel=1e-5)
    assert found.worst < 1e-4, found.worst_name
    assert found.equal


@pytest.mark.parametrize("name", [*ROWS, *SHRUNK])
def test_collectives_are_those_that_the_plan_predicts(
    name: str, programs: Programs, ran: Runs
) -> None:
    wanted = predicted(programs(name))
    assert wanted
    assert ran(name).issued == wanted


@pytest.mark.parametrize("name", FREE)
def test_collectives_of_what_the_solver_chooses(name: str, ran: Runs) -> None:
    assert ran(name).issued == free(name).issued


def test_what_the_solver_invents_is_no_known_scheme() -> None:
    """The axes are data and tensor parallelism in one part of a layer and something else in the next."""
    first, second = free("invented-1").layer.splits, free("invented-2").layer.splits
    assert sorted(first["attn.core"].values()) == ["batch", "heads"]
    assert sorted(first["mlp.up"].values()) == ["ffn", "ffn"]
    assert sorted(second["attn.core"].values()) == ["batch", "heads"]
    assert sorted(second["mlp.up"].values()) == ["batch", "seq"]


def test_ulysses_sends_queries_keys_values_and_results() -> None:
    """4 s h / P elements a rank each way (arXiv 2309.14509, section 3)."""
    sent = moved(free("ulysses").layer)
    assert {kind for _, kind, _ in sent} == {"all-to-all"}
    for phase in ("forward", "backward"):
        total = sum(size for key, size in sent.items() if key[0] == phase)
        assert total == 4.0 * 4 * 64 * 64 / 4


def test_experts_exchange_rows_of_their_own_tokens(programs: Programs) -> None:
    """Dispatch and combine in each of two layers, for each of two micro-batches of 16 tokens, each sent to 2 of 4."""
    count, size = predicted(programs("experts"))["forward", "all-to-all", "ep"]
    assert (count, size) == (8, 8 * 4.0 * 16 * 2 * 32)


@pytest.mark.parametrize("name", ["fsdp-stages", "fsdp-chunks", "fsdp-gpipe"])
def test_stages_gather_sharded_weights_once_a_micro_batch_and_once_more(
    name: str, programs: Programs, ran: Runs
) -> None:
    plan, issued = programs(name), ran(name).issued
    parts = sum(len(plan.parts_of(chunk)) for chunk in plan.chunks_of(0))
    gathers = sum(issued[phase, "all-gather", "data"][0] for phase in ("forward", "backward"))
    assert gathers == parts * (plan.micro_batches + 1)
    assert issued["backward", "reduce-scatter", "data"][0] == parts


def test_the_vocabulary_is_split(programs: Programs) -> None:
    for name in ("tensor", "sequence"):
        part = programs(name)
        assert part.splits_loss
        assert part.embedding.ops[0].weights["embedding.table"]["tp"] == "shard(vocab)"


def test_the_small_plans_keep_the_structure(programs: Programs) -> None:
    latent, hybrid = programs("catalog-latent"), programs("catalog-hybrid")
    assert latent.axes["ep"] == 2
    assert (hybrid.data, hybrid.shard) == (4, 2)
    kinds = programs("catalog-kinds").layers
    assert ["experts" in layer.sizes for layer in kinds] == [False, True]
    assert programs("three").ranks == 8
    assert len(set(programs("uneven").visits)) == 2
    assert len(programs("interleaved").visits) == 4
    assert all(layer.recomputed for layer in programs("checkpointed").layers)
    assert not programs("tensor").sequence_parallel


def test_a_wrong_layout_is_noticed(programs: Programs) -> None:
    """The comparison can fail: a sum that is taken for finished."""
    plan = programs("tensor")
    layer = plan.layers[0]
    ops = tuple(
        replace(op, writes={"mlp_out": dict(op.writes["mlp_out"]) | {"tp": "replicate"}})
        if op.name == "mlp.down"
        else op
        for op in layer.ops
    )
    wrong = replace(layer, ops=ops)
    assert not run([replace(plan, layers=(wrong, *plan.layers[1:]))])[0].equal


def test_a_table_of_both_ends_of_a_v_under_sharded_states_is_refused(
    programs: Programs,
) -> None:
    plan = programs("tied-v-data")
    with pytest.raises(PlannerError, match=r"FSDP2 shards each chunk by itself.\n.*zero=0"):
        shrink(replace(plan, level=1))


def test_a_fault_is_that_of_its_own_plan(programs: Programs) -> None:
    """Other ranks may come to what fails before the first has told what went before."""
    plan = programs("data")
    ops = tuple(replace(op, kind="unknown", name="what") for op in plan.head.ops)
    found = run([plan] * 3 + [replace(plan, head=replace(plan.head, ops=ops)), plan])
    assert [bool(each.fault) for each in found] == [False, False, False, True, False]


def test_a_plan_that_fails_does_not_hold_up_the_next(programs: Programs) -> None:
    plan = programs("tensor")
    head = replace(
        plan.head, ops=tuple(replace(op, kind="unknown", name="what") for op in plan.head.ops)
    )
    failed, fine = run([replace(plan, head=head), plan])
    assert "what is not run yet" in failed.fault
    assert fine.equal


def test_the_command_runs_a_plan_from_its_file(tmp_path: Path, capsys) -> None:
    """A file has its keys in the order of the alphabet: nothing may rest on another."""
    plan = stated("deepseek-v3", "h800-sxm:256", "megatron", KINDS, 256)
    (tmp_path / "plan.json").write_text(write_plan(plan))
    assert main(["check", str(tmp_path / "plan.json"), "--run"]) == 0
    told = capsys.readouterr().out
    assert "Equal." in told
    assert "collectives as predicted" in told
    assert "multi-token prediction" in told
