#!/usr/bin/env python3
"""Python's transformers computes the logits of the fixtures in worker/model/parity: tests/transformers/logits.py

Our own PyTorch code made those numbers, and parity tests hold every backend to them; this compares
them with an independent implementation. Needs torch, safetensors and transformers (in no package of Debian, so that
no test runs it). Loads config.json and model.safetensors in float64; an unknown or a missing
parameter is a difference. Images have no published tiny model and are left out.
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

FIXTURES = pathlib.Path(__file__).resolve().parent.parent.parent / "worker/model/parity"
TOLERANCE = 1e-4  # of a logit, over the largest one


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = (transformers.AutoModelForMaskedLM if config.model_type == "bert"
            else transformers.AutoModelForCausalLM)
    model, loading_info = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                       output_loading_info=True)
    strange = [f"{what}: {sorted(names)}" for what, names in loading_info.items() if names]
    return model.eval(), strange


def inputs(expected):
    """Of the first batch; an encoder's rows may end in padding."""
    if "inputs" not in expected:
        return {"input_ids": expected["tokens"][0][:, :-1].long()}, None
    ids = expected["inputs"][0].long()
    lengths = expected.get("lengths", torch.full((len(ids),), ids.shape[1])).long()
    mask = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
    return {"input_ids": ids, "token_type_ids": expected["types"][0].long(),
            "attention_mask": mask.long()}, mask


def difference(folder):
    expected = load_file(folder / "expected.safetensors")
    model, strange = load(folder)
    given, mask = inputs(expected)
    with torch.no_grad():
        got = model(**given).logits
    wanted = expected["logits"].double()
    if mask is not None:  # what stands at a padded position is used by nothing
        got, wanted = got[mask], wanted[mask]
    return ((got - wanted).abs().max() / wanted.abs().max()).item(), strange


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folders = sorted(f for f in FIXTURES.iterdir() if (f / "expected.safetensors").exists()
                     and "labels" not in load_file(f / "expected.safetensors"))
    wrong = 0
    for folder in folders:
        try:
            off, strange = difference(folder)
        except Exception as error:  # pylint: disable=broad-except  # one model hides no other
            off, strange = float("inf"), [f"{type(error).__name__}: {error}"]
        good = off <= TOLERANCE and not strange
        wrong += not good
        print(f"{folder.name:14s} {off:.1e} {'ok' if good else 'differs'} {'; '.join(strange)}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: "
          f"{len(folders) - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
