"""The lines of a mesh, its rows and columns, and the words that go along them and come back."""

from typing import NamedTuple

from flashsim.devices.share import Share


class Lines(NamedTuple):
    """The devices of one device's row in a mesh, and of its column."""

    row: range
    column: range


def lines(share: Share, p: int, columns: int) -> Lines:
    """Return the devices of p's row in a mesh, and of its column."""
    first = p - p % columns
    row = range(first, first + columns)
    column = range(p % columns, len(share.where), columns)
    return Lines(row, column)


class Words(NamedTuple):
    """The words of one position, of all heads, that go along a line, and that come back."""

    out: int
    back: int


def _words_of_query(share: Share, direction: str) -> Words:
    """Q goes, and a part of O, ℓ, m comes back; backward Q, dO, L, D go, and dQ comes back."""
    d = share.problem.shape.d
    d_v = share.problem.shape.d_v
    if direction == "forward":
        return Words(d * share.H_q, (d_v + 2) * share.H_q)
    return Words((d + d_v + 2) * share.H_q, d * share.H_q)


def _words_of_key(share: Share, direction: str) -> Words:
    """K and V go; backward dK and dV come back."""
    w = share.problem.shape.d + share.problem.shape.d_v
    back = 0 if direction == "forward" else w
    return Words(w * share.H_kv, back * share.H_kv)


def mesh_words(share: Share, p: int, columns: int, direction: str = "forward") -> int:
    """Return what device p sends: own rows to each other device of its row and column, and parts
    of their rows back.
    """
    row, column = lines(share, p, columns)
    of_queries = _sent_along(share, p, row, _words_of_query(share, direction))
    of_keys = _sent_along(share, p, column, _words_of_key(share, direction))
    return of_queries + of_keys


def _sent_along(share: Share, p: int, line: range, words: Words) -> int:
    out = (len(line) - 1) * share.rows(p)
    back = sum(share.rows(x) for x in line) - share.rows(p)
    return out * words.out + back * words.back


def mesh_total(share: Share, columns: int, direction: str = "forward") -> int:
    """Return what all devices of a mesh send together: each row goes, and comes back, C − 1
    times, each key R − 1 times.
    """
    rows = len(share.where) // columns
    of_query = (columns - 1) * sum(_words_of_query(share, direction))
    of_key = (rows - 1) * sum(_words_of_key(share, direction))
    return len(share) * (of_query + of_key)


def fewest_columns(share: Share, direction: str = "forward") -> int:
    """Return the columns of the mesh with the fewest words sent by all devices, a divisor of how
    many devices there are.
    """
    P = len(share.where)
    divisors = [C for C in range(1, P + 1) if P % C == 0]
    return min(divisors, key=lambda C: mesh_total(share, C, direction))
