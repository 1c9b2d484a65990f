"""Every configuration is counted exactly as published, or refused by the name of the part that is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import PlannerError
from planner.frontends.hf_config import read_config
from planner.frontends.model_file import read_model
from planner.graph.architecture import Attention, Experts
from planner.graph.blocks import build_model

FILES = Path(__file__).resolve().parents[3] / "shared" / "facts" / "hf_configs"

EXACT = {
    "bart-large": 406_290_432,  # this copy has a vocabulary of 50264, one row less than published
    "t5-3b": 2_851_598_336,
    "t5-small": 60_506_624,
    "t5-v1.1-xxl": 11_135_332_352,
    "bloom-176b": 176_247_271_424,
    "chatglm2-6b": 6_243_584_000,
    "codellama-34b": 33_743_970_304,
    "deepseek-v2-lite": 15_706_484_224,
    "falcon-40b": 41_303_293_952,
    "gemma-2-9b": 9_241_705_984,
    "gemma-7b": 8_537_680_896,
    "glm4-9b": 9_399_951_360,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "internlm2-7b": 7_737_708_544,
    "llama-2-13b": 13_016_028_160,  # this copy has a vocabulary of 32016
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "opt-125m": 125_239_296,
    "opt-13b": 12_853_473_280,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
}
"""Published as an integer."""

ROUNDED = {
    "baichuan2-13b": 13.3e9,  # a copy with a vocabulary of 64000
    "deepseek-v3": 671e9,
    "gpt-oss-20b": 20.9e9,
    "kimi-k2": 1.0264e12,  # as the published weights add up; the paper rounds to 1.04 T
    "mixtral-8x22b": 140.6e9,
    "qwen3-coder-480b": 480e9,
    "telechat3-test": 671e9,
}
"""Published to a few digits: half a per cent."""

REFUSED = {
    "bert-base-uncased": "encoder",
    "bert-large": "encoder",
    "clip-vit-large": "image encoder",
    "deepseek-v4-flash": "hash layers",
    "gemma-3-27b": "vision_config",
    "gemma-4-26b-a4b": "keys that serve as values",
    "glm-5": "indexer",
    "llama-4-maverick": "vision or audio tower",
    "llama-4-scout": "vision or audio tower",
    "mamba-2.8b": "state-space",
    "nemotron-3-nano-30b-a3b": "state-space",
    "nemotron-super-49b-nas": "block_configs",
    "openmoe-8b": "dense MLP behind every mixture",
    "qwen2.5-vl-7b": "vision_config",
    "qwen3-vl-8b": "vision_config",
    "qwen3.5-35b-a3b": "linear-attention",
    "qwen3.5-397b-a17b": "linear-attention",
    "step-3.7-flash": "not described yet",
    "vit-base-patch16-224": "vision model",
    "whisper-large-v3": "audio encoder",
}
"""A word that the refusal must contain."""

TEXT_PARTS = {
    "gemma-3-27b": 27_009_346_304,
    "llama-4-scout": 107_769_861_120,
    "llama-4-maverick": 400_711_848_960,
    "qwen2.5-vl-7b": 7_615_616_512,
    "qwen3-vl-8b": 8_190_735_360,
}

needs_files = pytest.mark.skipif(not FILES.is_dir(), reason="the collection of files is not here")


def params(source, **overrides):
    return build_model(read_config(source, overrides=overrides), 128).num_params


@needs_files
def test_every_file_of_the_collection_has_a_verdict():
    names = {path.stem for path in FILES.glob("*.json")}
    assert len(names) >= 62
    assert names == {*EXACT, *ROUNDED, *REFUSED}
    assert len(EXACT) + len(ROUNDED) >= 38


@needs_files
@pytest.mark.parametrize("name", sorted(EXACT))
def test_published_integer_is_met_exactly(name):
    assert params(FILES / f"{name}.json") == EXACT[name]


@needs_files
@pytest.mark.parametrize("name", sorted(ROUNDED))
def test_published_round_number_is_met(name):
    assert params(FILES / f"{name}.json") == pytest.approx(ROUNDED[name], rel=5e-3)


@needs_files
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refusal_names_the_part(name):
    with pytest.raises(PlannerError) as caught:
        read_config(FILES / f"{name}.json")
    assert caught.value.faults[0].code == "M03"
    assert REFUSED[name] in str(caught.value)
    assert "not described yet" in str(caught.value)


@needs_files
@pytest.mark.parametrize("name", sorted(TEXT_PARTS))
def test_language_part_on_request_says_so(name):
    arch = read_config(FILES / f"{name}.json", overrides={"part": "text"})
    assert arch.name == f"{name} (text part)"
    assert "left out" in arch.source
    assert build_model(arch, 128).num_params == TEXT_PARTS[name]


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


def test_a_language_part_is_found_inside_a_thinker():
    inside = LLAMA | {"model_type": "qwen2_5_omni_text", "architectures": None}
    thinker = {"text_config": inside, "audio_config": {"d_model": 8}, "model_type": "thinker"}
    data = {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {}}
    with pytest.raises(PlannerError, match="--set part=text") as caught:
        read_config(data)
    assert caught.value.faults[0].code == "M03"
    arch = read_config(data, overrides={"part": "text"})
    assert "left out" in arch.source
    alone = build_model(read_config(LLAMA | {"model_type": "qwen2", "architectures": None}), 128)
    assert build_model(arch, 128).num_params == alone.num_params


NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 200,
}


@pytest.mark.parametrize("kind", ["gpt_neox", "phi"])
def test_a_width_that_no_file_states_is_not_guessed(kind):
    data = NEOX | {"model_type": kind, "intermediate_size": None}
    with pytest.raises(PlannerError, match="no intermediate_size") as caught:
        read_config(data)
    assert caught.value.faults[0].code == "M02"


def test_a_longest_sequence_that_no_file_states_is_no_maximum_of_the_model():
    assert read_config(NEOX).assumed == "usual for the family; no max_position_embeddings"
    assert read_config(NEOX | {"max_position_embeddings": 64}).assumed == "model's maximum"


def test_missing_key_value_heads_mean_one_for_every_head():
    data = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    attention = read_config(data).kinds[0].attention
    assert isinstance(attention, Attention)
    assert attention.kv_heads == 4


def test_name_comes_from_file_or_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_config(folder).name == "my-model"
    assert read_config(folder / "config.json").name == "my-model"
    assert read_config(str(folder), name="other").name == "other"


def test_unknown_architecture_asks_for_what_is_missing():
    data = {**LLAMA, "model_type": "foo", "architectures": ["FooForCausalLM"]}
    data["num_key_value_heads"] = None
    with pytest.raises(PlannerError) as caught:
        read_config(data)
    assert str(caught.value) == (
        "Error: the configuration has no num_key_value_heads, and its architecture"
        " 'FooForCausalLM' is not known.\n"
        "       Give it: --set num_key_value_heads=8\n"
        "       and, if it is built like Llama: --set model_type=llama\n"
        "       Or describe the model yourself: shardwright schema model   [M02]"
    ).replace("heads=8", "heads=4")
    given = {"num_key_value_heads": "2", "model_type": "llama"}
    assert params(data, **given) == params(LLAMA)


def test_complete_but_unknown_architecture_is_still_not_guessed():
    data = {**LLAMA, "model_type": "foo", "architectures": ["FooForCausalLM"]}
    with pytest.raises(PlannerError, match=r"--set model_type=llama"):
        read_config(data)
    assert params(data, model_type="llama") == params(LLAMA)


def test_known_type_with_a_foreign_class_is_not_guessed():
    with pytest.raises(PlannerError, match="LlamaForSequenceClassification"):
        read_config({**LLAMA, "architectures": ["LlamaForSequenceClassification"]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("o_lora_rank", 16),
        ("num_local_experts", 8),
        ("ssm_state_size", 16),
        ("vision_feature_layer", -2),
        ("index_n_heads", 4),
        ("num_nextn_predict_layers", 1),
        ("n_shared_experts", 1),
        ("qk_layernorm", True),
        ("add_ffn_bias", True),
        ("embedding_size", 32),
        ("q_head_dim", 8),
    ],
)
def test_a_strange_structural_key_is_refused_by_name(key, value):
    with pytest.raises(PlannerError, match=key) as caught:
        read_config({**LLAMA, key: value})
    assert [fault.code for fault in caught.value.faults] == ["M03"]
    assert params({**LLAMA, key: value}, **{key: None}) == params(LLAMA)
    off = False if value is True else 0
    assert params({**LLAMA, key: off}) == params(LLAMA)


def test_several_faults_are_reported_together():
    data = {**LLAMA, "hidden_size": "64", "num_hidden_layers": -3, "vocab_size": None, "x_lora": 3}
    with pytest.raises(PlannerError) as caught:
        read_config(data)
    assert [fault.code for fault in caught.value.faults] == ["M04", "M04", "M02", "M03"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": "64"}, "must be a whole number"),
        ({"hidden_size": 64.5}, "must be a whole number"),
        ({"hidden_size": True}, "must be a whole number"),
        ({"hidden_size": float("nan")}, "must be a whole number"),
        ({"hidden_size": float("inf")}, "must be a whole number"),
        ({"hidden_size": -64}, "at least 1"),
        ({"hidden_size": 0}, "at least 1"),
        ({"hidden_size": 10**400}, "at most"),
        ({"num_hidden_layers": 10**9}, "at most"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "do not divide"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"attention_dropout": "0.1"}, "a number from 0 to 1"),
        ({"architectures": "LlamaForCausalLM"}, "no list of strings"),
        ({"model_type": 3}, "model_type"),
        ({"text_config": [1]}, "text_config"),
    ],
)
def test_values_that_cannot_be(change, words):
    with pytest.raises(PlannerError, match=words) as caught:
        read_config({**LLAMA, **change})
    assert {fault.code for fault in caught.value.faults} == {"M04"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1,\n  "b": }', r":2:8: error: this is not JSON"),
        (b"[1, 2]", "holds a list"),
        (b"3", "holds a number"),
        (b"null", "holds null"),
        (b"", ":1:1: error"),
        (b"\x80\x81\xff\x00", "not a text file"),
        (b'{"a": 1, "a": 2}', "given twice"),
        (b"[" * 100_000, "JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_broken_files(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(PlannerError, match=words) as caught:
        read_config(path)
    assert [fault.code for fault in caught.value.faults] == ["M05"]


def test_missing_file_and_empty_folder(tmp_path):
    for path, words in ((tmp_path / "none.json", "no file"), (tmp_path, "holds no config.json")):
        with pytest.raises(PlannerError, match=words):
            read_config(path)
    with pytest.raises(PlannerError):
        read_config("a\0b")


def test_override_of_an_unknown_key_names_the_nearest():
    with pytest.raises(PlannerError, match=r"Nearest: num_key_value_heads"):
        read_config(LLAMA, overrides={"num_kv_heads": 4})
    assert read_config(LLAMA, overrides={"num_hidden_layers": "4"}).layers == (0, 0, 0, 0)


def test_layers_of_several_kinds():
    data = {
        "model_type": "qwen2_moe",
        **{key: LLAMA[key] for key in LLAMA if key not in ("model_type", "architectures")},
        "num_hidden_layers": 6,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    arch = read_config(data)
    moe = next(kind.mlp for kind in arch.kinds if isinstance(kind.mlp, Experts))
    assert [arch.kinds[index].name for index in arch.layers] == [
        "dense",
        "moe",
        "dense",
        "dense",
        "dense",
        "moe",
    ]
    assert (moe.shared_width, moe.shared_gate, moe.count) == (48, True, 4)


def test_layer_types_of_the_wrong_length_or_kind():
    base = {**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
    with pytest.raises(PlannerError, match="3 layer_types for 2 layers"):
        read_config({**base, "layer_types": ["full_attention"] * 3})
    with pytest.raises(PlannerError, match="linear_attention"):
        read_config({**base, "layer_types": ["full_attention", "linear_attention"]})
    windows = [kind.attention.window for kind in read_config(base).kinds]
    assert windows == [4096, None]


@pytest.mark.parametrize(
    ("files", "words"), [(("m.onnx", "a.yaml", "b.txt"), ", but a.yaml, m.onnx"), ((), "")]
)
def test_a_folder_without_a_configuration_says_what_it_holds(files, words, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    for name in files:
        (tmp_path / "mine" / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlannerError) as caught:
        read_model("mine")
    (fault,) = caught.value.faults
    assert (fault.code, fault.what) == ("M05", f"the folder mine holds no config.json{words}.")
