"""The catalogue: every description parses, equals its published count, and is found by its names."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.frontends import catalog, model_schema
from planner.frontends.model_file import dump_model, read_description, read_model
from planner.frontends.yaml_source import load_packaged, parse_yaml
from planner.graph.architecture import Architecture, Attention, Experts, LatentAttention, Layer, Mlp
from planner.graph.blocks import build_model

ENTRIES = catalog.entries("model")
FILES = Path(__file__).resolve().parents[3] / "shared" / "facts" / "hf_configs"
NAMED = """
    llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3-70b llama-3.1-8b llama-3.1-70b llama-3.1-405b gpt3-175b
    gpt-22b gpt-530b megatron-1t bloom-176b opt-13b mixtral-8x7b mixtral-8x22b qwen2.5-7b qwen2.5-32b qwen2.5-72b
    qwen3-0.6b qwen3-8b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b qwen3-coder-480b deepseek-v2-lite deepseek-v2
    deepseek-v3 kimi-k2 gemma-2-9b gemma-7b mistral-7b mistral-nemo-12b phi-4 gpt-oss-20b gpt-oss-120b glm4-9b
    falcon-40b internlm2-7b baichuan2-13b gpt2 gpt2-xl llama-4-scout llama-4-maverick
"""
ALIASES = {
    "llama3-8b": "llama-3-8b",
    "llama3-70b": "llama-3-70b",
    "llama3.1-405b": "llama-3.1-405b",
    "gpt-3": "gpt3-175b",
    "gpt3": "gpt3-175b",
    "deepseekv3": "deepseek-v3",
    "mixtral": "mixtral-8x7b",
    "Llama-3-70B": "llama-3-70b",
    "mt-nlg": "gpt-530b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
}
EXACT = {
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_419_200,
    "gpt2": 124_439_808,
    "gpt-oss-120b": 116_829_156_672,
}


def test_catalogue_is_there():
    assert len(ENTRIES) >= 40
    assert set(NAMED.split()) <= {entry.name for entry in ENTRIES}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_model_equals_its_published_count(entry):
    data = load_packaged(entry.path)
    assert data["name"] == entry.name
    assert len(data["source"]) > 10
    count = build_model(read_model(entry.name), 64).num_params
    published = data["params"]
    if isinstance(published, int):
        assert count == published
    assert count == pytest.approx(published, rel=5e-3)
    if entry.name in EXACT:
        assert count == EXACT[entry.name]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_dump_reads_back_equal(entry):
    arch = read_model(entry.name)
    assert read_description(parse_yaml(dump_model(arch), "dump.yaml")) == arch


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_common_spellings(alias, name):
    assert read_model(alias).name == name


def test_no_spelling_means_two_models():
    names = [name.lower() for entry in ENTRIES for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


def test_unknown_name_lists_the_nearest():
    with pytest.raises(PlannerError) as caught:
        read_model("llama3-70")
    text = str(caught.value)
    assert text.startswith("Error: no model named 'llama3-70'. Nearest: ")
    assert "llama3-70b" in text.splitlines()[0].replace("llama-3-70b", "llama3-70b")
    assert text.splitlines()[1] == (
        "       A folder or file with a config.json works too. All: shardwright list models   [M01]"
    )


@pytest.mark.skipif(not FILES.is_dir(), reason="the collection of files is not here")
def test_catalogue_agrees_with_configurations():
    """The same model by our description and by its config.json is the same architecture, names aside."""
    pairs = [entry.name for entry in ENTRIES if (FILES / f"{entry.name}.json").is_file()]
    assert len(pairs) >= 30
    for name in pairs:
        try:
            theirs = read_model(FILES / f"{name}.json")
        except PlannerError:
            theirs = read_model(FILES / f"{name}.json", overrides={"part": "text"})
        mine = read_model(name)
        for field in fields(Layer):
            if field.name == "name":
                continue
            here = [getattr(mine.kinds[index], field.name) for index in mine.layers]
            there = [getattr(theirs.kinds[index], field.name) for index in theirs.layers]
            assert here == there, f"{name}: {field.name}"
        for key in ("norm", "tied", "positions", "embedding_norm", "head_bias", "mtp", "hidden"):
            assert getattr(mine, key) == getattr(theirs, key), f"{name}: {key}"


GOOD = """\
name: tiny
hidden: 64
vocab: 100
max_seq: 128
mlp: {width: 128}
kinds:
  window:
    attention: {heads: 4, kv_heads: 2, head_dim: 16, window: 32}
  full:
    attention: {heads: 4, kv_heads: 2, head_dim: 16}
layers:
  - {of: [window, full], times: 2}
"""


def fault_of(text, path="tiny.yaml", **given):
    with pytest.raises(PlannerError) as caught:
        read_description(parse_yaml(text, path), given)
    return [str(fault) for fault in caught.value.faults]


def test_a_description_of_ones_own(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(GOOD, encoding="utf-8")
    arch = read_model(str(path))
    assert [arch.kinds[index].name for index in arch.layers] == ["window", "full"] * 2
    assert read_model(path, overrides={"vocab": "200"}).vocab == 200
    shallow = read_model(path, overrides={"layers": '[{"of": "full", "times": 3}]'})
    assert shallow.layers == (1, 1, 1)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("hidden:", "hiden:", "tiny.yaml:2:1: error: unknown key 'hiden' in model. Did you mean 'hidden'?   [Y01]"),
        ("{heads: 4", "{headz: 4", "unknown key 'headz' in attention. Did you mean 'heads'?   [Y01]"),
        ("vocab: 100", "vocab: 100\nvocab: 3", ":4:1: error: key 'vocab' is given twice (first on line 3).   [Y02]"),
        ("{of: [window, full], times: 2}", "{of: window}\nlayers: 3", "key 'layers' is given twice (first on line 11)"),
        ("hidden: 64", "hidden: many", "tiny.yaml:2:9: error: hidden must be a whole number.   [U02]"),
        ("hidden: 64", "hidden: -1", "tiny.yaml:2:9: error: hidden -1 must be at least 1"),
        ("hidden: 64", "hidden: 1" + "0" * 30, "hidden so large must be"),
        ("hidden: 64", "hidden: .nan", "hidden must be a whole number"),
        ("hidden: 64", "hidden: true", "hidden must be a whole number"),
        ("hidden: 64\n", "", "model has no 'hidden'.   [Y04]"),
        ("times: 2", "times: 20000", "must be at least 1 and at most 10000"),
        ("[window, full]", "[window, fool]", "no kind of layer is named 'fool'. Did you mean 'full'?   [Y01]"),
        ("{of: [window, full], times: 2}", "3", "must be a mapping"),
        ("mlp: {width: 128}\n", "", "layers of kind 'window' have neither 'mlp' nor 'experts'.   [Y04]"),
        ("mlp: {width: 128}", "mlp: {width: 128}\nexperts: {count: 2, top_k: 1, width: 8}", "both given"),
        ("kv_heads: 2", "kv_heads: 3", "kind 'window': 3 kv_heads do not divide 4 heads.   [M04]"),
        ("hidden: 64", "hidden: 64\nnorm: rmz", "norm 'rmz' must be rms, layer, layer-no-bias or none.   [U02]"),
        ("hidden: 64", "hidden: 64\nparams: 123456789", "params says 123 M"),
        ("name: tiny", "name: [", "is not YAML"),
    ],
)  # fmt: skip
def test_faults_have_places_and_fixes(old, new, fault):
    assert old in GOOD
    assert any(fault in text for text in fault_of(GOOD.replace(old, new, 1)))


@pytest.mark.parametrize("layers", ["-3", "0", "true", "1.5", "99999", "{}", "[]", "many"])
def test_numbers_of_layers_that_cannot_be(layers):
    text = GOOD[: GOOD.index("layers:")] + f"layers: {layers}\n"
    assert all("layers" in fault for fault in fault_of(text))


def test_several_faults_together():
    text = GOOD.replace("hidden: 64", "hidden: -1").replace("vocab: 100", "vocabulary: 100")
    assert [text[-5:] for text in fault_of(text)] == ["[U02]", "[Y01]"]


@pytest.mark.parametrize("text", ["", "3", "- a\n- b", "just words", "layers: 3"])
def test_documents_that_are_no_description(text):
    assert fault_of(text)


def test_files_that_are_not_read_yet_or_not_there(tmp_path):
    for name, code in (
        ("net.onnx", "M03"),
        ("net.pt2", "M03"),
        ("model.safetensors", "M03"),
        ("none.yaml", "M05"),
        ("none.json", "M05"),
    ):
        with pytest.raises(PlannerError) as caught:
            read_model(tmp_path / name)
        assert caught.value.faults[0].code == code
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(PlannerError, match=r"folder.yaml is a folder"):
        read_model(tmp_path / "folder.yaml")


def test_folders_come_before_the_packaged_catalogue(tmp_path):
    (tmp_path / "models").mkdir()
    path = tmp_path / "models" / "llama-3-8b.yaml"
    path.write_text(GOOD.replace("tiny", "llama-3-8b"), encoding="utf-8")
    assert read_model("llama-3-8b", folders=(tmp_path,)).hidden == 64
    assert read_model("llama-3-8b").hidden == 4096


@pytest.mark.parametrize(
    ("part", "inner"),
    [
        (model_schema.AttentionPart, Attention),
        (model_schema.LatentPart, LatentAttention),
        (model_schema.MlpPart, Mlp),
        (model_schema.ExpertsPart, Experts),
        (model_schema.ModelDescription, Architecture),
    ],
)
def test_the_schema_has_every_field_of_the_architecture(part, inner):
    told = {"assumed"}  # what is said of a number, no number
    assert {field.name for field in fields(inner)} - told <= set(part.model_fields)
    for field in fields(inner):
        if field.name not in told and field.default is not MISSING:
            assert part.model_fields[field.name].default == field.default
    assert part.model_json_schema()["type"] == "object"


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)
places = [
    "hidden", "layers", "kinds", "kinds.full", "kinds.full.attention", "kinds.full.attention.window", "attention",
    "experts", "mlp", "mlp.width", "norm", "params", "name", "aliases", "mtp", "parallel_norms", "post_norms",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(places), junk)
def test_any_value_anywhere_is_read_or_refused(place, value):
    try:
        arch = read_description(parse_yaml(GOOD, "tiny.yaml"), {place: value})
    except PlannerError as error:
        assert error.faults
        return
    assert build_model(arch, 4).num_params > 0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_name_is_found_or_refused(name):
    try:
        read_model(name)
    except PlannerError as error:
        assert error.faults
