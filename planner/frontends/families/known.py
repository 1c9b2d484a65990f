"""Keys of config.json files that change no shape, and how one that might is recognised."""

from __future__ import annotations

_FRAGMENTS = """
    adapt adapter affine alibi altup attn attention audio bias block branch channel chunk compress conv cross d_ depth
    dim embd embed expert ffn gate group hash head hidden hybrid hyper index inner intermediate kernel kv latent laurel
    layer linear lora mamba memory mhc mlp moe mtp mult n_ nextn norm num_ parallel pattern per_layer position proj
    rank recurrent residual rnn shared share sink size sparse ssm state step stride time_ vision visual vocab width
    window
"""
FRAGMENTS = tuple(_FRAGMENTS.split())
"""Parts of names that shapes hang on, as far as any published family shows."""

_PREFIXES = ("d_", "n_", "num_", "time_")

IGNORED_PREFIXES = (
    "_",
    "aux_loss",
    "bos_",
    "decoder_start",
    "eos_",
    "id2",
    "init_",
    "initializer",
    "label2",
    "max_length",
    "min_length",
    "pad_",
    "rope_",
    "rotary_emb",
    "summary_",
    "tokenizer",
    "torch_",
    "unk_",
)
"""Names that begin so speak of tokens, initial values, rotary angles or other things without weights."""

_IRRELEVANT = """
    architectures auto_map model_type name_or_path transformers_version dtype quantization_config use_cache
    attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop dropout activation_dropout ffn_dropout
    attention_probs_dropout_prob hidden_dropout_prob hidden_dropout_rate classifier_dropout embedding_dropout
    dropout_rate attention_dropout_prob residual_dropout hidden_act hidden_activation activation_function activation
    activation_type rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon
    layernorm_eps chunk_size_feed_forward output_attentions output_hidden_states output_router_logits return_dict
    num_return_sequences num_beams num_beam_groups no_repeat_ngram_size encoder_no_repeat_ngram_size num_labels
    _num_labels pruned_heads torchscript cross_attention_hidden_size max_new_tokens pretraining_tp ep_size tp_size
    sequence_parallel_enabled selective_checkpoint_enabled attention_softmax_in_fp32 masked_softmax_fusion
    bias_dropout_fusion skip_bias_add skip_bias_add_qkv apply_query_key_layer_scaling fp32_residual_connection
    residual_in_fp32 bias_activation_fusion attn_implementation _attn_implementation use_flash_attn
    use_flash_attention use_flash_attention_2 flash_attn attn_logit_softcapping final_logit_softcapping
    query_pre_attn_scalar logit_scale swiglu_limit router_aux_loss_coef router_z_loss_coef router_jitter_noise
    router_dtype norm_topk_prob expert_capacity partial_rotary_factor rotary_pct rotary_dim rotary_ndims
    rotary_percentage rotary_base original_max_position_embeddings max_position_embeddings initial_context_length
    model_max_length seq_length n_ctx max_sequence_length image_token_index image_token_id video_token_id
    vision_start_token_id vision_end_token_id vision_token_id audio_token_id boi_token_index eoi_token_index
    mm_tokens_per_image use_parallel_embedding logits_to_keep num_logits_to_keep cache_implementation
    gradient_checkpointing reorder_and_upcast_attn scale_attn_by_inverse_layer_idx scale_attn_weights slow_but_exact
    offset_alibi tie_encoder_decoder is_decoder finetuning_task task_specific_params problem_type
"""
IRRELEVANT = frozenset(_IRRELEVANT.split())
"""Keys without influence on any shape in every family that has them."""


def looks_structural(key: str) -> bool:
    """Whether a key's name looks as if weights depended on it.

    >>> looks_structural("o_lora_rank"), looks_structural("bos_token_id"), looks_structural("temperature")
    (True, False, False)
    """
    name = key.lower()
    if name.startswith(IGNORED_PREFIXES):
        return False
    for fragment in FRAGMENTS:
        if fragment in _PREFIXES:
            if name.startswith(fragment) or f"_{fragment}" in name:
                return True
        elif fragment in name:
            return True
    return False
