"""Hugging Face architectures at toy dimensions, built offline from a config with random weights.

`benchmarks.huggingface_coverage` exports all of `ARCHITECTURES`, the coverage test all but the slow ones: the classes
as transformers gives them, without a wrapper, with the keyword inputs that a caller would pass.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]
SEED = 0
VOCABULARY = 128
WORDS = 16
PIXELS = 32


@dataclass(frozen=True)
class Architecture:
    """A model class of transformers, its config's arguments and its example inputs.

    Only the benchmark exports `slow` architectures.
    """

    name: str
    kind: str
    model: str
    settings: Settings
    inputs: Inputs
    slow: bool = False

    def build(self) -> torch.nn.Module:
        """Build the model in eval mode, with the same weights every time, without downloads."""
        transformers = _transformers()
        torch.manual_seed(SEED)
        model: torch.nn.Module = getattr(transformers, self.model)(self.settings.config(transformers))
        return model.eval()


@dataclass(frozen=True)
class Settings:
    """A config class of transformers and its arguments; arguments that are `Settings` become configs too."""

    of: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def config(self, transformers: Any) -> Any:
        """Build the config and its nested configs."""
        values = {
            name: value.config(transformers) if isinstance(value, Settings) else value
            for name, value in self.values.items()
        }
        return getattr(transformers, self.of)(**values)


def _transformers() -> Any:
    """Import transformers in offline mode."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return importlib.import_module("transformers")


def _words(batch: int, count: int = WORDS) -> torch.Tensor:
    return torch.arange(batch * count).reshape(batch, count) % (VOCABULARY - 8) + 4


def text(batch: int) -> dict[str, Any]:
    """Token ids and their mask."""
    return {"input_ids": _words(batch), "attention_mask": torch.ones(batch, WORDS, dtype=torch.int64)}


def ids(batch: int) -> dict[str, Any]:
    """Token ids alone."""
    return {"input_ids": _words(batch)}


def both_texts(batch: int) -> dict[str, Any]:
    """Token ids for an encoder and for a decoder."""
    return text(batch) | {"decoder_input_ids": _words(batch, 8)}


def image(batch: int, size: int = PIXELS) -> dict[str, Any]:
    """One picture for each row of the batch."""
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def image_and_text(batch: int) -> dict[str, Any]:
    """A picture and its caption."""
    return text(batch) | image(batch)


def video(batch: int) -> dict[str, Any]:
    """Four pictures for each row."""
    return {"pixel_values": torch.randn(batch, 4, 3, PIXELS, PIXELS)}


def waveform(batch: int) -> dict[str, Any]:
    """A tenth of a second at 16 kHz."""
    return {"input_values": torch.randn(batch, 1600)}


def spectrogram(batch: int) -> dict[str, Any]:
    """Whisper's mel bands, and the first words of the transcript."""
    return {"input_features": torch.randn(batch, 16, 32), "decoder_input_ids": _words(batch, 4)}


def bands(batch: int) -> dict[str, Any]:
    """Mel bands as an encoder alone takes them."""
    return {"input_values": torch.randn(batch, 64, 16)}


def series(batch: int) -> dict[str, Any]:
    """Two channels of 32 steps."""
    return {"past_values": torch.randn(batch, 32, 2)}


# A table: unformatted, its rows are easier to compare.
# fmt: off
BERT_SIZE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64,
}
LLAMA_SIZE = BERT_SIZE | {"num_key_value_heads": 1}
MAMBA_SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
T5_SIZE = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
VISION_SIZE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": PIXELS, "patch_size": 8,
}
SPEECH_SIZE = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 2), "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 3,
}
HEADS = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32,
}
SEQUENCE_SIZE = HEADS | {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WORD_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BACKBONE = Settings("ResNetConfig", {
    "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic",
    "out_features": ["stage2"],
})
PYRAMID = Settings("RTDetrResNetConfig", {
    "embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
})


def _made(
    name: str, kind: str, model: str, config: str, inputs: Inputs, *values: Mapping[str, Any], slow: bool = False
) -> Architecture:
    """An entry; later values override earlier ones."""
    merged: dict[str, Any] = {}
    for given in values:
        merged |= given
    return Architecture(name, kind, model, Settings(config, merged), inputs, slow)


TEXT = "text"
LANGUAGE = "language"
TRANSLATION = "text to text"
MOE = "mixture of experts"
STATE = "state space"
VISION = "vision"
MASKS = "segmentation"
BOXES = "detection"
BOTH = "text and vision"
SPEECH = "speech"

ARCHITECTURES = (
    _made("BERT", TEXT, "BertModel", "BertConfig", text, BERT_SIZE),
    _made("RoBERTa", TEXT, "RobertaModel", "RobertaConfig", text, BERT_SIZE),
    _made("DistilBERT", TEXT, "DistilBertModel", "DistilBertConfig", text,
          {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}),
    _made("ALBERT", TEXT, "AlbertModel", "AlbertConfig", text, BERT_SIZE, {"embedding_size": 16}),
    _made("ELECTRA", TEXT, "ElectraModel", "ElectraConfig", text, BERT_SIZE, {"embedding_size": 16}),
    _made("DeBERTa-v2", TEXT, "DebertaV2Model", "DebertaV2Config", text, BERT_SIZE,
          {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}),
    _made("MPNet", TEXT, "MPNetModel", "MPNetConfig", text, BERT_SIZE),
    _made("ModernBERT", TEXT, "ModernBertModel", "ModernBertConfig", text, BERT_SIZE, {"pad_token_id": 0}),
    _made("XLNet", TEXT, "XLNetModel", "XLNetConfig", text,
          {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}, slow=True),
    _made("Longformer", TEXT, "LongformerModel", "LongformerConfig", text, BERT_SIZE, {"attention_window": 8},
          slow=True),

    _made("GPT-2", LANGUAGE, "GPT2LMHeadModel", "GPT2Config", text,
          {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    _made("GPT-NeoX", LANGUAGE, "GPTNeoXForCausalLM", "GPTNeoXConfig", text, BERT_SIZE),
    _made("OPT", LANGUAGE, "OPTForCausalLM", "OPTConfig", text, BERT_SIZE,
          {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    _made("BLOOM", LANGUAGE, "BloomForCausalLM", "BloomConfig", text,
          {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 2}),
    _made("Falcon", LANGUAGE, "FalconForCausalLM", "FalconConfig", text, BERT_SIZE, slow=True),
    _made("LLaMA", LANGUAGE, "LlamaForCausalLM", "LlamaConfig", text, LLAMA_SIZE),
    _made("Mistral", LANGUAGE, "MistralForCausalLM", "MistralConfig", text, LLAMA_SIZE),
    _made("Qwen2", LANGUAGE, "Qwen2ForCausalLM", "Qwen2Config", text, LLAMA_SIZE),
    _made("Qwen3", LANGUAGE, "Qwen3ForCausalLM", "Qwen3Config", text, LLAMA_SIZE, {"head_dim": 16}),
    _made("Gemma", LANGUAGE, "GemmaForCausalLM", "GemmaConfig", text, LLAMA_SIZE, {"head_dim": 16}),
    _made("Gemma 2", LANGUAGE, "Gemma2ForCausalLM", "Gemma2Config", text, LLAMA_SIZE, {"head_dim": 16}, slow=True),
    _made("Phi", LANGUAGE, "PhiForCausalLM", "PhiConfig", text, LLAMA_SIZE),
    _made("Phi-3", LANGUAGE, "Phi3ForCausalLM", "Phi3Config", text, LLAMA_SIZE, {"pad_token_id": 0}, slow=True),
    _made("OLMo 2", LANGUAGE, "Olmo2ForCausalLM", "Olmo2Config", text, LLAMA_SIZE),

    _made("T5", TRANSLATION, "T5ForConditionalGeneration", "T5Config", both_texts, T5_SIZE),
    _made("BART", TRANSLATION, "BartForConditionalGeneration", "BartConfig", both_texts, SEQUENCE_SIZE),
    _made("Marian", TRANSLATION, "MarianMTModel", "MarianConfig", both_texts, SEQUENCE_SIZE, WORD_ENDS, slow=True),
    _made("PEGASUS", TRANSLATION, "PegasusForConditionalGeneration", "PegasusConfig", both_texts, SEQUENCE_SIZE,
          slow=True),

    _made("Mixtral", MOE, "MixtralForCausalLM", "MixtralConfig", text, LLAMA_SIZE, {"num_local_experts": 4}),
    _made("Qwen2-MoE", MOE, "Qwen2MoeForCausalLM", "Qwen2MoeConfig", text, LLAMA_SIZE, EXPERTS,
          {"shared_expert_intermediate_size": 32}, slow=True),
    _made("Qwen3-MoE", MOE, "Qwen3MoeForCausalLM", "Qwen3MoeConfig", text, LLAMA_SIZE, EXPERTS, {"head_dim": 16},
          slow=True),
    _made("OLMoE", MOE, "OlmoeForCausalLM", "OlmoeConfig", text, LLAMA_SIZE, EXPERTS),
    _made("GPT-OSS", MOE, "GptOssForCausalLM", "GptOssConfig", text, LLAMA_SIZE,
          {"head_dim": 16, "num_local_experts": 4}, slow=True),
    _made("DeepSeek-V3", MOE, "DeepseekV3ForCausalLM", "DeepseekV3Config", text, BERT_SIZE,
          {"num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
           "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1}, slow=True),
    _made("Switch Transformers", MOE, "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
          both_texts, T5_SIZE, {"num_decoder_layers": 2, "num_experts": 4}, slow=True),

    _made("Mamba", STATE, "MambaForCausalLM", "MambaConfig", ids, MAMBA_SIZE, slow=True),
    _made("Mamba-2", STATE, "Mamba2ForCausalLM", "Mamba2Config", ids, MAMBA_SIZE,
          {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
    _made("Falcon-Mamba", STATE, "FalconMambaForCausalLM", "FalconMambaConfig", ids, MAMBA_SIZE, slow=True),
    _made("RWKV", STATE, "RwkvForCausalLM", "RwkvConfig", ids,
          {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
           "intermediate_size": 64}, slow=True),
    _made("RecurrentGemma", STATE, "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", text, BERT_SIZE,
          {"num_hidden_layers": 3, "lru_width": 32, "head_dim": 16, "attention_window_size": 16}, slow=True),

    _made("ViT", VISION, "ViTForImageClassification", "ViTConfig", image, VISION_SIZE),
    _made("DeiT", VISION, "DeiTForImageClassification", "DeiTConfig", image, VISION_SIZE),
    _made("BEiT", VISION, "BeitModel", "BeitConfig", image, VISION_SIZE),
    _made("DINOv2", VISION, "Dinov2Model", "Dinov2Config", image, VISION_SIZE),
    _made("Swin", VISION, "SwinForImageClassification", "SwinConfig", image,
          {"image_size": PIXELS, "patch_size": 4, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4],
           "window_size": 4}),
    _made("ConvNeXt", VISION, "ConvNextForImageClassification", "ConvNextConfig", image,
          {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": PIXELS}),
    _made("ResNet", VISION, "ResNetForImageClassification", "ResNetConfig", image,
          {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 2, 1]}),
    _made("MobileNet-V2", VISION, "MobileNetV2ForImageClassification", "MobileNetV2Config", image,
          {"depth_multiplier": 0.35, "image_size": PIXELS}, slow=True),
    _made("EfficientNet", VISION, "EfficientNetForImageClassification", "EfficientNetConfig", image,
          {"width_coefficient": 0.25, "depth_coefficient": 0.25, "image_size": PIXELS, "hidden_dim": 320}),
    _made("VideoMAE", VISION, "VideoMAEForVideoClassification", "VideoMAEConfig", video, VISION_SIZE,
          {"num_frames": 4}),
    _made("SegFormer", MASKS, "SegformerForSemanticSegmentation", "SegformerConfig", image,
          {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
           "decoder_hidden_size": 32}, slow=True),

    _made("YOLOS", BOXES, "YolosForObjectDetection", "YolosConfig", image, VISION_SIZE,
          {"image_size": [PIXELS, PIXELS], "num_detection_tokens": 10}),
    _made("DETR", BOXES, "DetrForObjectDetection", "DetrConfig", image, HEADS,
          {"backbone_config": BACKBONE, "use_timm_backbone": False, "use_pretrained_backbone": False,
           "backbone": None, "num_queries": 10}, slow=True),
    _made("RT-DETR", BOXES, "RTDetrForObjectDetection", "RTDetrConfig", image, HEADS,
          {"backbone_config": PYRAMID, "encoder_in_channels": [24, 32, 48], "decoder_in_channels": [32, 32, 32],
           "encoder_hidden_dim": 32, "encoder_layers": 1, "num_queries": 10, "num_denoising": 0,
           "anchor_image_size": None}, slow=True),

    _made("CLIP", BOTH, "CLIPModel", "CLIPConfig", image_and_text,
          {"text_config": BERT_SIZE | {"eos_token_id": 2, "projection_dim": 16},
           "vision_config": VISION_SIZE | {"projection_dim": 16}, "projection_dim": 16}),
    _made("SigLIP", BOTH, "SiglipModel", "SiglipConfig", image_and_text,
          {"text_config": BERT_SIZE, "vision_config": VISION_SIZE}),
    _made("BLIP", BOTH, "BlipForConditionalGeneration", "BlipConfig", image_and_text,
          {"text_config": BERT_SIZE | {"encoder_hidden_size": 32, "sep_token_id": 2, "pad_token_id": 0,
                                       "bos_token_id": 1, "eos_token_id": 2},
           "vision_config": VISION_SIZE, "projection_dim": 16}, slow=True),
    _made("ViLT", BOTH, "ViltModel", "ViltConfig", image_and_text, BERT_SIZE, VISION_SIZE,
          {"max_image_length": -1}, slow=True),

    _made("Whisper", SPEECH, "WhisperForConditionalGeneration", "WhisperConfig", spectrogram, SEQUENCE_SIZE,
          WORD_ENDS, {"num_mel_bins": 16, "max_source_positions": 16, "max_target_positions": 16}),
    _made("Wav2Vec2", SPEECH, "Wav2Vec2ForCTC", "Wav2Vec2Config", waveform, SPEECH_SIZE),
    _made("HuBERT", SPEECH, "HubertModel", "HubertConfig", waveform, SPEECH_SIZE),
    _made("WavLM", SPEECH, "WavLMModel", "WavLMConfig", waveform, SPEECH_SIZE, slow=True),
    _made("AST", SPEECH, "ASTModel", "ASTConfig", bands, BERT_SIZE, {"max_length": 64, "num_mel_bins": 16}),

    _made("PatchTST", "time series", "PatchTSTForPrediction", "PatchTSTConfig", series,
          {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "ffn_dim": 64,
           "prediction_length": 8, "d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 2}),
)
