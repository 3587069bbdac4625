"""Trains a small PyTorch model over manapy.fcdp.pytorch, in each of the ways that its arguments name, and prints the
results as JSON.

    mpirun -n N python fcdp_torch_train.py WAY ...
    python fcdp_torch_train.py --reference WAY ...     the same in one process, without manapy

A way is MODEL[,OPTION=VALUE ...]; the class Way has the options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tracebacks  # noqa: E402, F401  in one piece

WORDS, WIDTH, LENGTH, EXAMPLES, STEPS = 31, 20, 6, 48, 3  # sizes that don't divide evenly; EXAMPLES of the global batch


@dataclass
class Way:
    """How to train."""

    model: str
    strategy: str = "fcdp"
    micro_batches: int = 1
    clip: float = 0.0
    groups: int = 0  # parameter groups: no weight decay for vectors
    recompute: int = 0  # activation checkpointing
    bf16: int = 0
    evaluate: int = 0  # a forward pass without gradients before each step
    tau: float = 0.0
    ranks: int = 0  # only on so many ranks of the job, each on a node of its own; 0: on all
    seed: int = 7  # of the model's values on the last rank
    save: str = ""  # where, after the first step
    load: str = ""  # from another model's values
    generate: int = 0  # words, after training
    adapter: str = ""  # where the trainable parameters alone are saved and loaded
    device: str = "cpu"


def way(text: str) -> Way:
    model, *options = text.split(",")
    types = {field.name: type(field.default) for field in fields(Way)}
    given = dict(option.split("=") for option in options)
    return Way(model, **{name: types[name](value) for name, value in given.items()})


class Block(nn.Module):
    """A block of a transformer. It has a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.unused = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH + 1), nn.GELU(), nn.Linear(2 * WIDTH + 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attention(self.norm_1(x)).chunk(3, -1)
        x = x + self.projection(scaled_dot_product_attention(query, key, value, is_causal=True))
        return x + self.mlp(self.norm_2(x))


class Transformer(nn.Module):
    """Like GPT-2: the output layer's weight is that of the embedding, and the blocks share another layer."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.blocks[2].norm_2 = self.blocks[0].norm_2
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.recompute = recompute
        self.register_buffer("scale", 0.5 + torch.rand(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.scale * self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute and self.training else block(x)
        return self.head(self.norm(x))


def transformer(way: Way) -> nn.Module:
    return Transformer(bool(way.recompute))


def perceptron(way: Way) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 33), nn.Tanh(), nn.Linear(33, 24), nn.Tanh(), nn.Linear(24, WORDS)
    )


def partly_frozen(way: Way) -> nn.Module:
    """The first block as one unit, the embeddings, and single matrices elsewhere."""
    model = Transformer(bool(way.recompute))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not (name.startswith(("words", "positions", "blocks.0")) or parameter.dim() > 1)
    return model


def gpt2(way: Way) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    if way.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def lora(way: Way) -> nn.Module:
    """PEFT's adapters on GPT-2, only on the second block: the first one is completely frozen."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        gpt2(way),
        LoraConfig(
            r=3,
            target_modules=["c_attn"],
            layers_to_transform=[1],
            fan_in_fan_out=True,
            lora_dropout=0.0,
            init_lora_weights="gaussian",
        ),
    )


MODELS: dict[str, Callable[[Way], nn.Module]] = {
    "perceptron": perceptron,
    "transformer": transformer,
    "partly_frozen": partly_frozen,
    "gpt2": gpt2,
    "lora": lora,
}


def model_of(way: Way, seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[way.model](way)


def batch(step: int) -> torch.Tensor:
    """(EXAMPLES, LENGTH + 1): each word predicts the next one."""
    return torch.randint(WORDS, (EXAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    output = model(tokens[:, :-1])
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def adam(way: Way, parameters: dict[str, nn.Parameter], matrices: set[str]) -> torch.optim.Optimizer:
    groups = [
        {
            "params": [parameter for name, parameter in parameters.items() if (name in matrices) == kind],
            "weight_decay": 0.1 * kind,
        }
        for kind in (False, True)
    ]
    return torch.optim.AdamW(groups if way.groups else parameters.values(), lr=1e-2)


def matrices_of(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.dim() > 1}


def train(way: Way, topology: Any) -> dict[str, Any]:
    from manapy.fcdp.pytorch import fully_shard

    model = model_of(way, 8 if way.load else way.seed if topology.rank == topology.size - 1 else 7)
    names = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    matrices = matrices_of(model)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if way.bf16 else None
    result: dict[str, Any] = {"losses": [], "inter": []}
    with fully_shard(
        model,
        topology=topology,
        strategy=way.strategy,
        tau=way.tau,
        budget=10**9 if way.tau else None,
        mp_policy=policy,
        device=way.device,
    ) as sharded:
        assert [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()] == names
        optimizer = sharded.shard_optimizer(lambda shards: adam(way, shards, matrices))
        first = sharded.load(way.load)["step"] if way.load else 0
        before = sent(sharded)
        for step in range(first, STEPS):
            tokens = batch(step).to(way.device)
            if way.evaluate:
                model.eval()
                with torch.no_grad():
                    result.setdefault("evaluated", []).append(
                        mean(topology, loss_of(model, tokens[topology.rank :: topology.size]).item())
                    )
                model.train()
            parts = tokens.reshape(way.micro_batches, topology.size, -1, LENGTH + 1)[:, topology.rank]
            loss = 0.0
            for number in sharded.accumulate(way.micro_batches):
                part = loss_of(model, parts[number]) / way.micro_batches
                part.backward()
                loss += part.item()
            if way.clip:
                result["norm"] = sharded.clip_grad_norm_(way.clip).item()
            optimizer.step()
            optimizer.zero_grad()
            if way.save and step == 0:
                sharded.save(way.save, extra={"step": 1})
            now = sent(sharded)
            result["losses"].append(mean(topology, loss))
            result["inter"].append(now - before)
            before = now
        if way.generate:
            result["generated"] = generated(model, way.device)
        if way.adapter:
            sharded.save(way.adapter, trainable=True, optimizer=False)
        with sharded.summon_full_params():
            result["sum"] = sum(values.double().abs().sum().item() for values in model.state_dict().values())
        result["units"] = [(unit.size, unit.trainable) for unit in sharded.units]
    if way.adapter:
        result |= with_adapter(way, topology)
    return result


def with_adapter(way: Way, topology: Any) -> dict[str, Any]:
    """The model before training, without and with the parameters that training has saved."""
    from manapy.fcdp.pytorch import fully_shard

    model = model_of(way)
    with fully_shard(model, topology=topology, device=way.device) as sharded:
        base = generated(model, way.device)
        sharded.load(way.adapter, trainable=True, optimizer=False)
        nbytes = sum(file.stat().st_size for file in Path(way.adapter).glob("*.safetensors"))
        return {"base_generated": base, "adapter_generated": generated(model, way.device), "adapter_bytes": nbytes}


def generated(model: Any, device: str = "cpu") -> list[int]:
    """Words that the model generates, one by one, and the rounded logits of each."""
    model.eval()
    with torch.no_grad():
        output = model.generate(
            torch.arange(2, device=device)[None],
            max_new_tokens=LENGTH - 2,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
    model.train()
    return [*output.sequences[0].tolist(), *(round(100 * logits.sum().item()) for logits in output.logits)]


def mean(topology: Any, value: float) -> float:
    return topology.comm.allreduce(value) / topology.size


def sent(sharded: Any) -> int:
    return sum(scopes["inter"] for phase, scopes in sharded.comm_report().items() if phase != "control")


def reference(way: Way) -> dict[str, Any]:
    model = model_of(way)
    optimizer = adam(
        way,
        {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad},
        matrices_of(model),
    )
    result: dict[str, Any] = {"losses": []}
    for step in range(STEPS):
        tokens = batch(step)
        if way.evaluate:
            model.eval()
            with torch.no_grad():
                result.setdefault("evaluated", []).append(loss_of(model, tokens).item())
            model.train()
        with torch.autocast("cpu", torch.bfloat16) if way.bf16 else nullcontext():
            loss = loss_of(model, tokens)
        loss.backward()
        if way.clip:
            result["norm"] = nn.utils.clip_grad_norm_(model.parameters(), way.clip).item()
        optimizer.step()
        optimizer.zero_grad()
        result["losses"].append(loss.item())
    if way.generate:
        result["generated"] = generated(model)
    result["sum"] = sum(values.double().abs().sum().item() for values in model.state_dict().values())
    return result


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "--reference":
        print("RESULT", json.dumps([reference(way(text)) for text in sys.argv[2:]]))
        return
    from manapy.fcdp import Topology

    topology = Topology()
    results = []
    for text in sys.argv[1:]:
        chosen = way(text)
        results.append(on_some(chosen, topology.comm) if chosen.ranks else train(chosen, topology))
    if topology.rank == 0:
        print("RESULT", json.dumps(results), flush=True)


def on_some(way: Way, comm: Any) -> dict[str, Any]:
    """The first ranks train, and have the result; the others wait for them."""
    from manapy.fcdp import Topology

    takes_part = comm.rank < way.ranks
    some = comm.Split(takes_part)
    result = train(way, Topology(some, ranks_per_node=1)) if takes_part else {}
    comm.barrier()
    return result


if __name__ == "__main__":
    main()
