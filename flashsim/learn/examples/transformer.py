"""A small character transformer. Its gradients are written out by hand, and its attention is an
argument.

    loss, gradients = loss_and_gradients(weights, tokens, attend)

Two layers, each attention and a perceptron behind a root-mean-square norm, without biases or gains.
For each step of the forward pass there is one of the backward pass, in the reverse order.
`attend(Q, K, V)` takes (batch, heads, N, d) arrays and returns O, of that shape, and a function
from dO to dQ, dK, dV. It must be causal attention.

In flashsim: `same_curve`, which trains it with one attention after the other.
"""

from collections.abc import Callable

import numpy as np

from flashsim.attention.inputs import Array

LAYERS = 2
WIDTH = 32
HEADS = 2
CONTEXT = 64

Back = Callable[[Array], tuple[Array, Array, Array]]
Attend = Callable[[Array, Array, Array], tuple[Array, Back]]
Weights = dict[str, Array]


def initial(characters: int, seed: int, dtype: str) -> Weights:
    """Return weights drawn in float64 and rounded to `dtype`: those of one seed are the same
    numbers in every type.
    """
    rng = np.random.default_rng(seed)
    D = WIDTH
    shapes = {"embed": (characters, D), "place": (CONTEXT, D)}
    for n in range(LAYERS):
        shapes |= {
            f"qkv {n}": (D, 3 * D),
            f"out {n}": (D, D),
            f"up {n}": (D, 4 * D),
            f"down {n}": (4 * D, D),
        }
    shapes["logits"] = (D, characters)
    weights = {}
    for name, shape in shapes.items():
        numbers = rng.normal(size=shape) * shape[0] ** -0.5
        weights[name] = numbers.astype(dtype)
    return weights


def norm(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return y, x divided by the root mean square of its rows, and a function from dy to dx."""
    rms = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    y = x / rms

    def back(dy: Array) -> Array:
        return np.asarray((dy - y * (dy * y).mean(-1, keepdims=True)) / rms)

    return y, back


def split_heads(x: Array) -> Array:
    """Return (batch, N, heads·d) as (batch, heads, N, d)."""
    return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """Return (batch, heads, N, d) as (batch, N, heads·d)."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def as_matrix(x: Array) -> Array:
    """Return x as a matrix of its rows."""
    return x.reshape(-1, x.shape[-1])


def loss_and_gradients(weights: Weights, tokens: Array, attend: Attend) -> tuple[float, Weights]:
    """Return the mean cross-entropy (nats a character) of tokens[:, 1:] given what is before each,
    and its gradients.

    tokens  (batch, N + 1) whole numbers below the number of characters, N at most `CONTEXT`
    """
    before = tokens[:, :-1]
    after = tokens[:, 1:]
    N = before.shape[1]
    W = weights
    gradients = {}
    steps = []
    x = W["embed"][before] + W["place"][:N]
    for n in range(LAYERS):
        a, norm_1 = norm(x)
        Q, K, V = map(split_heads, np.split(a @ W[f"qkv {n}"], 3, axis=-1))
        O, back = attend(Q, K, V)
        o = merge_heads(O)
        x = x + o @ W[f"out {n}"]
        b, norm_2 = norm(x)
        h = np.maximum(b @ W[f"up {n}"], 0)
        x = x + h @ W[f"down {n}"]
        steps.append((a, norm_1, back, o, b, norm_2, h))
    y, norm_0 = norm(x)
    s = y @ W["logits"]
    s = s - s.max(-1, keepdims=True)
    log_p = s - np.log(np.exp(s).sum(-1, keepdims=True))
    label = np.eye(s.shape[-1], dtype=s.dtype)[after]
    loss = -(log_p * label).sum() / after.size

    ds = (np.exp(log_p) - label) / after.size
    gradients["logits"] = as_matrix(y).T @ as_matrix(ds)
    dx = norm_0(ds @ W["logits"].T)
    for n in reversed(range(LAYERS)):
        a, norm_1, back, o, b, norm_2, h = steps[n]
        gradients[f"down {n}"] = as_matrix(h).T @ as_matrix(dx)
        dh = (dx @ W[f"down {n}"].T) * (h > 0)
        gradients[f"up {n}"] = as_matrix(b).T @ as_matrix(dh)
        dx = dx + norm_2(dh @ W[f"up {n}"].T)
        gradients[f"out {n}"] = as_matrix(o).T @ as_matrix(dx)
        dO = split_heads(dx @ W[f"out {n}"].T)
        dQKV = np.concatenate([merge_heads(gradient) for gradient in back(dO)], axis=-1)
        gradients[f"qkv {n}"] = as_matrix(a).T @ as_matrix(dQKV)
        dx = dx + norm_1(dQKV @ W[f"qkv {n}"].T)
    gradients["place"] = np.zeros_like(W["place"])
    gradients["place"][:N] = dx.sum(0)
    gradients["embed"] = np.zeros_like(W["embed"])
    np.add.at(gradients["embed"], before, dx)
    return float(loss), gradients


class Adam:
    """Adam without weight decay (Kingma and Ba, "Adam: A Method for Stochastic Optimization"),
    in the weights' own type.
    """

    def __init__(
        self, weights: Weights, rate: float = 3e-3, b1: float = 0.9, b2: float = 0.99
    ) -> None:
        self.weights = weights
        self.rate = rate
        self.b1 = b1
        self.b2 = b2
        self.t = 0
        self.m = {name: np.zeros_like(w) for name, w in weights.items()}
        self.v = {name: np.zeros_like(w) for name, w in weights.items()}

    def step(self, gradients: Weights) -> None:
        """Change the weights in place."""
        self.t += 1
        for name, g in gradients.items():
            self.m[name] += (1 - self.b1) * (g - self.m[name])
            self.v[name] += (1 - self.b2) * (g * g - self.v[name])
            m = self.m[name] / (1 - self.b1**self.t)
            v = self.v[name] / (1 - self.b2**self.t)
            self.weights[name] -= (self.rate * m / (np.sqrt(v) + 1e-8)).astype(g.dtype)
