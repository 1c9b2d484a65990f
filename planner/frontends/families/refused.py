"""Models that are recognised and refused, each with the part that is not described yet."""

from __future__ import annotations

ENCODER_DECODER = "an encoder–decoder: the encoder and its cross-attention are"
ENCODER = "an encoder without a causal language head: bidirectional encoders are"
VISION = "a vision model: image patches and their encoder are"
STATE_SPACE = "a state-space model: its scan and convolution are"
HYBRID = "a hybrid with state-space layers: those are"
LINEAR = "a hybrid with linear-attention layers: those are"
INDEXER = "a model with a sparse-attention indexer: the indexer is"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("umt5", "mbart", "pegasus", "m2m_100", "marian", "led", "longt5",
         "blenderbot", "prophetnet", "switch_transformers", "seamless_m4t"), ENCODER_DECODER),
    "whisper": "an encoder–decoder for speech: the audio encoder and cross-attention are",
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "deberta",
         "deberta-v2", "modernbert", "nomic_bert", "mpnet", "camembert", "esm"), ENCODER),
    **dict.fromkeys(
        ("vit", "deit", "swin", "swinv2", "dinov2", "dinov3_vit", "beit", "convnext", "resnet",
         "siglip_vision_model", "clip_vision_model", "vit_mae"), VISION),
    **dict.fromkeys(
        ("clip", "siglip", "chinese_clip", "align", "blip"),
        "two towers, one for text and one for images: the image encoder is"),
    **dict.fromkeys(("wav2vec2", "hubert", "wavlm"), "a speech encoder: its convolutions are"),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "xlstm"), STATE_SPACE),
    **dict.fromkeys(
        ("nemotron_h", "jamba", "zamba", "zamba2", "bamba", "granitemoehybrid", "falcon_h1",
         "plamo2", "hymba", "recurrent_gemma", "lfm2", "lfm2_moe"), HYBRID),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text", "minimax",
         "minimax_text_01", "MiniMaxText01", "kimi_linear", "bailing_moe_linear"), LINEAR),
    **dict.fromkeys(("glm_moe_dsa", "deepseek_v32"), INDEXER),
    "deepseek_v4": "a model with hash layers and a sparse-attention indexer: both are",
    "nemotron-nas": "a searched network whose layers all differ (block_configs): such layers are",
    "openmoe": "a model with a second, dense MLP behind every mixture of experts: that MLP is",
    **dict.fromkeys(
        ("gemma4", "gemma4_text"),
        "a model with a dense MLP beside the experts and keys that serve as values: both are"),
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text"), "a model with per-layer embeddings and AltUp: both are"),
    **dict.fromkeys(("step3p7", "step3_text", "step3p5"), "a model whose attention and routing are"),
    "dbrx": "a model with nested attention and expert settings: those are",
    "mpt": "a model with nested attention settings: those are",
    "longcat_flash": "a model with two attentions and zero experts a layer: those are",
}  # fmt: skip
"""Refusal by model_type; the sentence ends in "not described yet"."""

ARCHITECTURES: dict[str, str] = {
    "WhisperForConditionalGeneration": "whisper",
    "BertForMaskedLM": "bert",
    "BertModel": "bert",
    "ViTForImageClassification": "vit",
    "CLIPModel": "clip",
    "MambaForCausalLM": "mamba",
    "NemotronHForCausalLM": "nemotron_h",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeciLMForCausalLM": "nemotron-nas",
    "OpenMoeForCausalLM": "openmoe",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Step3p7FlashForCausalLM": "step3p7",
    "JambaForCausalLM": "jamba",
    "MPTForCausalLM": "mpt",
    "DbrxForCausalLM": "dbrx",
}

MULTIMODAL: dict[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "mistral3": "mistral",
    "llava": "llama",
    "kimi_vl": "deepseek_v3",
}
"""Models with a further tower, and the family of their language part."""
