"""DeepSeek-V4 in NumPy, double precision, in the names and keys of published files; `grids` puts rows, entries and index
vectors where the authors' inference puts them. Written from descriptions of the model, not from the engine; one pass
over a text, every token against every row."""
import math

import numpy as np

GRIDS = {"fp8": (3, -6, 448.0, 1e-4, 64), "fp4": (1, 0, 6.0, 6 * 2.0**-126, 32)}


def bf16(x):
    """Rounded to 8 significant bits, ties to even."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256), exponent - 8)


def codes_of(mantissa, least, largest):
    """All magnitudes of a format, in order: their index is even where their last bit is."""
    steps = 1 << mantissa
    values = [i / steps * 2.0**least for i in range(steps)]
    exponent = least
    while values[-1] < largest:
        values += [(1 + i / steps) * 2.0**exponent for i in range(steps)]
        exponent += 1
    return np.array([value for value in values if value <= largest])


def on_grid(x, kind):
    """[.., n] in groups along the last axis: the nearest code times the group's power of two; halfway the even code."""
    mantissa, least, largest, floor, group = GRIDS[kind]
    codes = codes_of(mantissa, least, largest)
    out = np.empty_like(x)
    for first in range(0, x.shape[-1], group):
        part = x[..., first:first + group]
        amax = np.maximum(np.abs(part).max(axis=-1, keepdims=True), floor)
        scale = 2.0 ** np.ceil(np.log2(amax / largest))
        size = np.minimum(np.abs(part) / scale, largest)
        above = np.clip(np.searchsorted(codes, size), 1, len(codes) - 1)
        low, high = codes[above - 1], codes[above]
        up = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
        out[..., first:first + group] = np.sign(part) * np.where(up, high, low) * scale
    return out


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def cached_row(x, rotated, grids):
    if not grids:
        return x
    head = on_grid(bf16(x[..., :-rotated]), "fp8")
    return np.concatenate([head, x[..., -rotated:]], axis=-1)


def index_vector(x, grids):
    if not grids:
        return x
    size = x.shape[-1]
    return on_grid(bf16(bf16(x) @ hadamard(size) * size**-0.5), "fp4")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def normed(x, eps, weight=1.0):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


class Form:
    def __init__(self, config, weights, grids):
        self.config, self.weights, self.grids = config, weights, grids
        self.eps, self.rotated = config["rms_norm_eps"], config["qk_rope_head_dim"]

    def __getitem__(self, name):
        return self.weights[name]

    def linear(self, x, name):
        return x @ self[name + ".weight"].T

    # ---- rotation

    def frequencies(self, compressed):
        c, dim = self.config, self.rotated
        base = c["compress_rope_theta" if compressed else "rope_theta"]
        plain = base ** (-np.arange(0, dim, 2) / dim)
        if not compressed:
            return plain
        yarn = c["rope_scaling"]

        def dimension(turns):
            return dim * math.log(yarn["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(dimension(yarn["beta_fast"])), 0)
        high = min(math.ceil(dimension(yarn["beta_slow"])), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return plain / yarn["factor"] * ramp + plain * (1 - ramp)

    def rotate(self, x, positions, compressed, inverse=False):
        """The last dimensions of [n, .., d] as complex numbers of neighbours."""
        angle = np.outer(positions, self.frequencies(compressed))
        turn = np.exp((-1j if inverse else 1j) * angle).reshape(len(x), *[1] * (x.ndim - 2), -1)
        tail = x[..., -self.rotated:]
        tail = (tail[..., 0::2] + 1j * tail[..., 1::2]) * turn
        tail = np.stack([tail.real, tail.imag], axis=-1).reshape(*x.shape[:-1], self.rotated)
        return np.concatenate([x[..., :-self.rotated], tail], axis=-1)

    # ---- attention

    def entries(self, x, name, ratio):
        """One for each whole window of `ratio` tokens, before it is kept; of ratio 4 they see the window before too."""
        value, logit = self.linear(x, name + "wkv"), self.linear(x, name + "wgate")
        bias, norm = self[name + "ape"], self[name + "norm.weight"]
        dim, rows = len(norm), []
        for entry in range(len(x) // ratio):
            own = slice(entry * ratio, (entry + 1) * ratio)
            if ratio != 4:
                v, s = value[own], logit[own] + bias
            else:
                v, s = value[own, dim:], logit[own, dim:] + bias[:, dim:]
                if entry:
                    before = slice(own.start - ratio, own.start)
                    v = np.concatenate([value[before, :dim], v])
                    s = np.concatenate([logit[before, :dim] + bias[:, :dim], s])
            rows.append((softmax(s, axis=0) * v).sum(axis=0))
        rows = np.array(rows).reshape(-1, dim)
        return self.rotate(normed(rows, self.eps, norm), np.arange(len(rows)) * ratio, True)

    def chosen(self, x, low_query, name, ratio, visible):
        c, heads = self.config, self.config["index_n_heads"]
        keys = index_vector(self.entries(x, name + "compressor.", ratio), self.grids)
        q = self.linear(low_query, name + "wq_b").reshape(len(x), heads, -1)
        q = index_vector(self.rotate(q, np.arange(len(x)), True), self.grids)
        weight = self.linear(x, name + "weights_proj") * (heads * c["index_head_dim"]) ** -0.5
        scores = (np.maximum(q @ keys.T, 0) * weight[:, :, None]).sum(axis=1)
        mask = np.zeros_like(visible)
        for row, (score, seen) in enumerate(zip(scores, visible, strict=True)):
            order = np.argsort(-score[seen], kind="stable")[:c["index_topk"]]  # ties to the lower index
            mask[row, np.nonzero(seen)[0][order]] = True
        return mask

    def attention(self, x, layer):
        c, n, name = self.config, len(x), f"layers.{layer}.attn."
        ratio, positions = c["compress_ratios"][layer], np.arange(len(x))
        low = normed(self.linear(x, name + "wq_a"), self.eps, self[name + "q_norm.weight"])
        q = normed(self.linear(low, name + "wq_b").reshape(n, c["num_attention_heads"], -1), self.eps)
        q = self.rotate(q, positions, ratio > 0)
        rows = self.rotate(normed(self.linear(x, name + "wkv"), self.eps, self[name + "kv_norm.weight"]), positions, ratio > 0)
        rows = cached_row(rows, self.rotated, self.grids)
        age = positions[:, None] - positions
        mask = (age >= 0) & (age < c["sliding_window"])
        if ratio:
            entries = cached_row(self.entries(x, name + "compressor.", ratio), self.rotated, self.grids)
            seen = np.arange(len(entries)) < (positions[:, None] + 1) // ratio
            if ratio == 4:
                seen = self.chosen(x, low, name + "indexer.", ratio, seen)
            rows, mask = np.concatenate([rows, entries]), np.concatenate([mask, seen], axis=1)
        scores = np.where(mask[:, None, :], q @ rows.T * c["head_dim"] ** -0.5, -np.inf)
        sink = np.broadcast_to(self[name + "attn_sink"][:, None], (*scores.shape[:2], 1))
        out = softmax(np.concatenate([scores, sink], axis=-1))[..., :-1] @ rows
        out = self.rotate(out, positions, ratio > 0, inverse=True).reshape(n, c["o_groups"], -1)
        weight = self[name + "wo_a.weight"].reshape(c["o_groups"], -1, out.shape[-1])
        return self.linear(np.einsum("ngi,goi->ngo", out, weight).reshape(n, -1), name + "wo_b")

    # ---- experts

    def mlp(self, x, name):
        limit = self.config["swiglu_limit"]
        gate = np.minimum(self.linear(x, name + "w1"), limit)
        return self.linear(gate * sigmoid(gate) * np.clip(self.linear(x, name + "w3"), -limit, limit), name + "w2")

    def experts(self, x, layer, ids):
        c, name = self.config, f"layers.{layer}.ffn."
        scores = np.sqrt(np.logaddexp(0, self.linear(x, name + "gate")))
        if layer < c["num_hash_layers"]:
            picked = self[name + "gate.tid2eid"][ids].astype(int)
        else:
            picked = np.argsort(-(scores + self[name + "gate.bias"]), axis=1, kind="stable")[:, :c["num_experts_per_tok"]]
        weights = np.take_along_axis(scores, picked, axis=1)
        weights = weights / weights.sum(axis=1, keepdims=True) * c["routed_scaling_factor"]
        out = self.mlp(x, name + "shared_experts.")
        for token, (row, weight) in enumerate(zip(picked, weights, strict=True)):
            for expert, share in zip(row, weight, strict=True):
                out[token] += share * self.mlp(x[token], f"{name}experts.{expert}.")
        return out

    # ---- streams

    def mixed(self, streams, name):
        return normed(streams.reshape(len(streams), -1), self.eps) @ self[name + "fn"].T

    def site(self, streams, layer, kind, block):
        c, name, s = self.config, f"layers.{layer}.hc_{kind}_", streams.shape[1]
        eps, scale, base = c["hc_eps"], self[name + "scale"], self[name + "base"]
        mix = self.mixed(streams, name)
        read = sigmoid(mix[:, :s] * scale[0] + base[:s]) + eps
        write = 2 * sigmoid(mix[:, s:2 * s] * scale[1] + base[s:2 * s])
        square = softmax((mix[:, 2 * s:] * scale[2] + base[2 * s:]).reshape(-1, s, s)) + eps
        square = square / (square.sum(axis=1, keepdims=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            square = square / (square.sum(axis=2, keepdims=True) + eps)
            square = square / (square.sum(axis=1, keepdims=True) + eps)
        x = np.einsum("ns,nsh->nh", read, streams)
        out = block(normed(x, self.eps, self[f"layers.{layer}.{kind}_norm.weight"]))
        return write[:, :, None] * out[:, None, :] + np.einsum("npq,nph->nqh", square, streams)

    def logits(self, ids):
        c = self.config
        streams = np.repeat(self["embed.weight"][ids][:, None, :], c["hc_mult"], axis=1)
        for layer in range(c["num_hidden_layers"]):
            streams = self.site(streams, layer, "attn", lambda x, at=layer: self.attention(x, at))
            streams = self.site(streams, layer, "ffn", lambda x, at=layer: self.experts(x, at, ids))
        read = sigmoid(self.mixed(streams, "hc_head_") * self["hc_head_scale"] + self["hc_head_base"]) + c["hc_eps"]
        x = normed(np.einsum("ns,nsh->nh", read, streams), self.eps, self["norm.weight"])
        return self.linear(x, "head")
