"""Whether vLLM itself loads the multimodal checkpoints that MinRL saves, and computes them as plain transformers does.

    python -m tests.vllm_saved [FAMILY ...]

makes each family of tests/multimodal.py that is in `PROCESSORS` small with random weights, loads it and saves it as a
run does, and has vLLM's CPU build read the saved folder: the log-probabilities of a prompt are compared with those of
the loaded model. vLLM needs torchvision for these.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from minrl.models.loading import load_model, save_model
from tests import multimodal

PROMPT = [72, 101, 108, 108, 111, 44, 32, 119]
SIZES: dict[str, Any] = {"head_dim": 32, "hidden_size": 64}
QWEN = {"out_hidden_size": 64}
HYBRID = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_value_heads": 4}
"""What vLLM's kernels on a CPU take."""
DTYPES = {"qwen3_5": "bfloat16"}

QWEN_FILES = {
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 16,
    },
    "video_preprocessor_config.json": {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "processor_class": "Qwen3VLProcessor",
    },
}
QWEN_MARKS = {name: f"<|{name}|>" for name in ("image_pad", "video_pad", "vision_start", "vision_end")}
PROCESSORS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, str]]] = {
    "gemma3": (
        {
            "preprocessor_config.json": {"image_processor_type": "Gemma3ImageProcessor"},
            "processor_config.json": {"processor_class": "Gemma3Processor", "image_seq_length": 1},
        },
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    ),
    "mistral3": (
        {
            "preprocessor_config.json": {"image_processor_type": "PixtralImageProcessor", "patch_size": 14},
            "processor_config.json": {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
        },
        {"image": "[IMG]", "break": "[IMG_BREAK]", "end": "[IMG_END]"},
    ),
    "qwen3_vl": (QWEN_FILES, QWEN_MARKS),
    "qwen3_5": (QWEN_FILES, QWEN_MARKS),
}
"""The files of a family's processor, and the tokens that it looks for."""


def save_family(family: str, folder: Path) -> None:
    """The family's checkpoint as a hub has it."""
    multimodal.TEXT.update(SIZES)
    multimodal.ROPE["rope_parameters"]["mrope_section"] = [4, 6, 6]
    multimodal.HYBRID.update(HYBRID)
    if family.startswith("qwen"):
        multimodal.FAMILIES[family][2].update(QWEN)
    multimodal.save_multimodal(family, folder)
    files, marks = PROCESSORS[family]
    tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks.values())})
    named = {name: mark for name, mark in marks.items() if name.endswith("_token")}
    tokenizer.init_kwargs.update(named)
    tokenizer.save_pretrained(folder)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def gap(family: str, folder: Path) -> float:
    """The largest difference in nats between vLLM, which reads the saved checkpoint, and the loaded model."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
    save_family(family, folder / "given")
    model, tokenizer = load_model(str(folder / "given"))
    save_model(model, tokenizer, folder / "saved")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(folder / "saved"),
        dtype=DTYPES.get(family, "float32"),
        max_model_len=64,
        enforce_eager=True,
        kv_cache_memory_bytes=2**27,
        limit_mm_per_prompt={"image": 0} | ({"video": 0} if family.startswith("qwen") else {}),
        generation_config="vllm",
    )
    wanted = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
    answer = llm.generate([{"prompt_token_ids": PROMPT}], [wanted], use_tqdm=False)[0]
    theirs = torch.tensor([at[token].logprob for at, token in zip(answer.prompt_logprobs[1:], PROMPT[1:], strict=True)])
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, :-1].log_softmax(-1)
    return float((theirs - logprobs.gather(1, torch.tensor(PROMPT)[1:, None])[:, 0]).abs().max())


def main(families: list[str]) -> None:
    """One process for each family, as vLLM starts once in a process."""
    if len(families) == 1:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{families[0]}: largest difference {gap(families[0], Path(folder)):.1e} nats", flush=True)
        return
    for family in families or PROCESSORS:
        subprocess.run([sys.executable, "-m", "tests.vllm_saved", family], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
