"""A whole checkpoint: configuration, layout and files of one made-up model."""
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import families, writer
from .errors import CheckpointError, require
from .families import deepseek_v4
from .layout import Layout, Storage
from .quantization import SCHEMES
from .tensors import Tensor, normal

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                   "chat_template.json", "added_tokens.json")
TEXT_PREFIX, WRAPPED_PREFIX = "model.", "model.language_model."
# Which schemes are published for a family; the others hold for all families but those named here.
OWN_SCHEMES = {"gpt_oss": ("mxfp4",), "deepseek_v4": ("ds_fp4",)}
# Published builds of this family quantize routed experts only.
EXPERTS_ONLY = ("qwen4_exp_text",)


def schemes_of(family):
    """Names of the quantizations that a model type can have."""
    text = families.WRAPPERS.get(family, family)
    taken = {name for names in OWN_SCHEMES.values() for name in names}
    return OWN_SCHEMES.get(text) or tuple(name for name in SCHEMES if name not in taken)


@dataclass
class Request:
    """What to make. sizes: option -> value, None for the default; settings: configuration key -> value, dots go
    into nested objects; config: a configuration to start from instead of the family's small one."""

    family: str
    seed: int = 0
    quantization: str = None
    sizes: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    config: dict = None
    published: bool = False
    experts: str = "auto"
    with_dense: bool = None
    fp8_table: bool = False


class Model:
    """A request worked out: config is the text model's configuration, checked."""

    def __init__(self, request):
        require(request.family in families.NAMES, "the family", request.family, ", ".join(families.NAMES))
        self.request = request
        self.text_type = families.WRAPPERS.get(request.family, request.family)
        self.wrapped = self.text_type != request.family
        self.family = families.TEXT[self.text_type]
        allowed = schemes_of(request.family)
        require(request.quantization in (None, *allowed), "the quantization", request.quantization, ", ".join(allowed))
        require(not request.published or self.text_type == "deepseek_v4", "published names of", request.family, "deepseek_v4")
        has_table = self.text_type == "qwen4_exp_text"
        require(has_table or not request.fp8_table, "an n-gram table of", request.family, "qwen4_exp, qwen4_exp_text")
        self.scheme = SCHEMES.get(request.quantization)
        self.config = self._configure()
        self.storage = self._storage(dequantized=False)

    def _configure(self):
        start = self.request.config or {**TOKENS, **self.family.DEFAULTS}
        start = json.loads(json.dumps(start.get("text_config", start)))
        start.pop("quantization_config", None)
        start.update(model_type=self.text_type, architectures=[self.family.ARCHITECTURE], dtype="bfloat16")
        for size, value in self.request.sizes.items():
            if value is not None:
                key = self.family.KEYS.get(size, families.SIZES[size])
                require(key is not None, f"--{size.replace('_', '-')}", value, f"no such size in {self.request.family}")
                start[key] = value
        for key, value in self.request.settings.items():
            set_nested(start, key, value)
        try:
            self.family.finish(start)
        except KeyError as error:
            raise CheckpointError(f"the configuration has no {error}; {self.request.family} needs it") from None
        return start

    def _storage(self, dequantized):
        request = self.request
        fused = {"auto": self.wrapped or self.text_type == "gemma4_text", "fused": True, "separate": False}[request.experts]
        if request.published and not dequantized:
            layout = Layout(False, deepseek_v4.published_name, deepseek_v4.published_dtype)
        elif self.wrapped and not dequantized:
            layout = Layout(fused, lambda name: WRAPPED_PREFIX + name[len(TEXT_PREFIX):] if name.startswith(TEXT_PREFIX) else name)
        else:
            # The plain copy has what transformers itself would write: of published models, what they hold in float32 too.
            layout = Layout(self.text_type == "gemma4_text" if dequantized else fused)
            if request.published:
                layout = replace(layout, dtype=deepseek_v4.published_dtype)
        with_dense = request.with_dense
        if with_dense is None:
            with_dense = self.text_type not in EXPERTS_ONLY
        return Storage(layout, self.scheme, with_dense, request.fp8_table, dequantized)

    def groups(self, dequantized=False):
        storage = self._storage(dequantized) if dequantized else self.storage
        yield from storage.groups(self.family.tensors(self.config), self.request.seed)
        if self.wrapped and not dequantized:  # stands for the tower that a text engine passes over
            yield from storage.groups([Tensor("model.visual.merger.norm.bias", (self.config["hidden_size"],), normal(0.1))],
                                      self.request.seed)

    def entries(self):
        return [entry for group in self.groups() for entry in group.entries]

    def file_config(self, dequantized=False):
        """config.json as it is written."""
        config = dict(self.config)
        if dequantized:
            return {**config, "dtype": "float32"}
        if self.request.published:
            config = deepseek_v4.published_config(config)
        quantized = {}
        if self.scheme:
            plain = list(self.storage.plain_linears(self.family.tensors(self.config)))
            quantized["quantization_config"] = self.scheme.config(plain)
        if not self.wrapped:
            return {**config, **quantized}
        config.pop("architectures")
        # transformers renames the kind when it reads one, and writes its own name.
        if "layer_types" in config:
            config["layer_types"] = [kind.replace("qwen_sparse_", "full_") for kind in config["layer_types"]]
        return {"architectures": [self.family.WRAPPER_ARCHITECTURE], "model_type": self.request.family, "dtype": "bfloat16",
                "text_config": config, "tie_word_embeddings": config.get("tie_word_embeddings", False), **quantized}

    def write(self, folder, shard_bytes, tokenizer=None, dequantized=False):
        """Fills a folder, which must be empty or new; gives the bytes of its tensors."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CheckpointError(f"{folder} is not empty; allowed: a folder that is empty or not there yet")
        total = writer.write_tensors(folder, self.groups(dequantized), shard_bytes)
        config = self.file_config(dequantized)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        tokens = {key: self.config[key] for key in TOKENS if self.config.get(key) is not None}
        (folder / "generation_config.json").write_text(json.dumps(tokens, indent=2) + "\n", encoding="utf-8")
        if tokenizer:
            copy_tokenizer(Path(tokenizer), folder, self.config["vocab_size"])
        return total


def set_nested(config, key, value):
    """config["a"]["b"] = value for "a.b"."""
    *path, last = key.split(".")
    for part in path:
        inner = config.setdefault(part, {})
        require(isinstance(inner, dict), f"'{part}' of --set {key}", inner, "an object")
        config = inner
    config[last] = value


def copy_tokenizer(source, folder, vocab):
    if not (source / "tokenizer.json").is_file():
        raise CheckpointError(f"{source} has no tokenizer.json")
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer.get("added_tokens", []))]
    require(max(ids) < vocab, "vocab_size", vocab, f"more than {max(ids)}, the largest id of {source / 'tokenizer.json'}")
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
