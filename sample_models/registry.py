"""The list of sample models, readable without loading torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample model: its name and description, its sizes, and the module and class of its client.

    `sizes` are the names that `load` takes; `large` describes the real dimensions; `data` describes the training data
    of a run, and `steps` are those that the form of a new run begins with.
    """

    name: str
    title: str
    sentence: str
    large: str
    module: str
    client: str
    sizes: tuple[str, ...] = ("small", "large")
    data: str = "64 synthetic samples, the same in every run"
    steps: int = 40


SAMPLES: tuple[Sample, ...] = (
    Sample(
        "clip",
        "CLIP (two towers)",
        "Scores how well an image and a text match: an image tower and a text tower that meet at the end.",
        "ViT-B/32: image 224 × 224, 12 layers of width 768; text 77 tokens, 12 layers of width 512",
        "clip",
        "ClipClient",
    ),
    Sample(
        "bert",
        "BERT encoder",
        "Turns tokens into contextual vectors: a straight chain of equal transformer blocks.",
        "BERT-large: 24 layers of width 1024, 16 heads, 128 tokens",
        "bert",
        "BertClient",
    ),
    Sample(
        "fastpitch",
        "FastPitch speech synthesis",
        "Turns text into a mel spectrogram: an encoder, duration and pitch predictors, a decoder.",
        "6 + 6 blocks of width 384 with 1536 filters, 128 symbols, 512 frames, 80 mels",
        "fastpitch",
        "FastPitchClient",
    ),
    Sample(
        "ocr",
        "OCR line reader",
        "Reads a line of text from an image: convolutions, then attention over the columns.",
        "image 32 × 256, 7 convolutions up to 512 channels, 6 attention layers of width 384",
        "ocr",
        "OcrClient",
    ),
    Sample(
        "resnet50",
        "ResNet-50",
        "Classifies images: bottleneck blocks, each with a shortcut around it.",
        "ResNet-50: image 224 × 224, blocks 3-4-6-3, 1000 classes",
        "resnet50",
        "ResNetClient",
    ),
    Sample(
        "llama",
        "LLaMA-like decoder",
        "Predicts the next token: rotary positions, grouped-query attention, gated feed-forward.",
        "TinyLlama-1.1B: 22 layers of width 2048, 32 heads over 4 key-value heads, 128 tokens; "
        "1.1 billion weights, 4.1 GiB in float32",
        "llama",
        "LlamaClient",
    ),
    Sample(
        "moe",
        "Mixture of experts",
        "Predicts the next token: a router in every layer sends each token to two of its experts.",
        "12 layers of width 768, 12 heads over 4 key-value heads, 8 experts of 2048 filters, 128 tokens; "
        "0.5 billion weights, 1.9 GiB in float32",
        "moe",
        "MoeClient",
    ),
    Sample(
        "diamond",
        "Diamond",
        "A toy with one fork and one join: the smallest model with parallel branches.",
        "width 2048",
        "diamond",
        "DiamondClient",
    ),
    Sample(
        "cond",
        "Conditional branch",
        "A toy whose middle is chosen at run time by torch.cond: each body is a graph of its own.",
        "width 2048",
        "conditional",
        "ConditionalClient",
    ),
    Sample(
        "digits",
        "Digit reader",
        "Reads hand-written digits: a small vision transformer with real training data and held-out samples.",
        "ViT-S: 12 layers of width 384, 6 heads, 16 patches of 2 × 2 pixels",
        "digits",
        "DigitsClient",
        data="1,437 images of real digits; the end of the run is measured on 360 more",
        steps=200,  # in batches of 8, five of six of the 360 are read correctly then; after 40, one of ten
    ),
)
