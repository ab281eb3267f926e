"""Algorithms of one's own whose turns are not alike, or look as if they were not. All but the
first few are not attention.
"""

# mypy: ignore-errors

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from flashsim.algorithms.notation import exp, maximum, rowmax, rowsum

# --------------------------------------------------------------------------------------------------
# attention


def divided(Q, K, V, blocks):
    return Q.divide(blocks.B_r), K.divide(blocks.B_c), V.divide(blocks.B_c)


def made(hbm, sram, Q, V, blocks, how):
    shapes = {"O": (Q.shape[0], V.shape[1]), "l": (Q.shape[0], 1), "m": (Q.shape[0], 1)}
    first = {"O": 0.0, "l": 0.0, "m": float("-inf")}
    matrices = []
    for name, shape in shapes.items():
        role = "output" if name == "O" else "extra"
        if how == "full":
            matrix = hbm.full(name, shape, first[name], sram.dtype, role)
        else:
            matrix = hbm.empty(name, shape, sram.dtype, role)
        matrices.append(matrix.divide(blocks.B_r))
    return matrices


def first_tile(sram, Q_i, K_j, V_j):
    on_chip = sram.on_chip
    S_ij = on_chip(Q_i @ K_j.T)
    m_i = on_chip(rowmax(S_ij))
    P_ij = on_chip(exp(S_ij - m_i), over=S_ij)
    l_i = on_chip(rowsum(P_ij))
    return on_chip(P_ij @ V_j / l_i), l_i, m_i


def next_tile(sram, Q_i, K_j, V_j, O_i, l_i, m_i):
    on_chip = sram.on_chip
    S_ij = on_chip(Q_i @ K_j.T)
    m_ij = on_chip(rowmax(S_ij))
    P_ij = on_chip(exp(S_ij - m_ij), over=S_ij)
    l_ij = on_chip(rowsum(P_ij))
    m_new = on_chip(maximum(m_i, m_ij))
    l_new = on_chip(exp(m_i - m_new) * l_i + exp(m_ij - m_new) * l_ij)
    scaled = l_i * exp(m_i - m_new) * O_i + exp(m_ij - m_new) * (P_ij @ V_j)
    return on_chip(scaled / l_new, over=O_i), l_new, m_new


def store(sram, blocks, tiles):
    for block, tile in zip(blocks, tiles, strict=True):
        sram.store(block, tile)


def algorithm_1(hbm, sram, Q, K, V, blocks):
    O, l, m = made(hbm, sram, Q, V, blocks, "full")
    Q, K, V = divided(Q, K, V, blocks)
    for j in sram.loop(blocks.T_c):
        K_j, V_j = sram.load(K[j], V[j])
        for i in sram.loop(blocks.T_r):
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])
            tiles = next_tile(sram, Q_i, K_j, V_j, O_i, l_i, m_i)
            store(sram, (O[i], l[i], m[i]), tiles)
    return O, l, m


def algorithm_1_backwards(hbm, sram, Q, K, V, blocks):
    O, l, m = made(hbm, sram, Q, V, blocks, "full")
    Q, K, V = divided(Q, K, V, blocks)
    for t in sram.loop(blocks.T_c):
        j = blocks.T_c - 1 - t
        K_j, V_j = sram.load(K[j], V[j])
        for i in sram.loop(blocks.T_r):
            Q_i, O_i, l_i, m_i = sram.load(Q[i], O[i], l[i], m[i])
            tiles = next_tile(sram, Q_i, K_j, V_j, O_i, l_i, m_i)
            store(sram, (O[i], l[i], m[i]), tiles)
    return O, l, m


def q_outer_backwards(hbm, sram, Q, K, V, blocks):
    O = hbm.full("O", (Q.shape[0], V.shape[1]), 0.0, V.dtype, "output").divide(blocks.B_r)
    Q, K, V = divided(Q, K, V, blocks)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        O_i = sram.full(O[i].shape, 0.0)
        l_i = sram.full((Q_i.shape[0], 1), 0.0)
        m_i = sram.full((Q_i.shape[0], 1), -np.inf)
        for t in sram.loop(blocks.T_c):
            K_j, V_j = sram.load(K[blocks.T_c - 1 - t], V[blocks.T_c - 1 - t])
            S_ij = sram.on_chip(Q_i @ K_j.T)
            m_new = sram.on_chip(maximum(m_i, rowmax(S_ij)))
            P_ij = sram.on_chip(exp(S_ij - m_new), over=S_ij)
            O_i = sram.on_chip(exp(m_i - m_new) * O_i + P_ij @ V_j, over=O_i)
            l_i = sram.on_chip(exp(m_i - m_new) * l_i + rowsum(P_ij), over=l_i)
            m_i = sram.on_chip(m_new, over=m_i)
        sram.store(O[i], sram.on_chip(O_i / l_i, over=O_i))
    return O


def first_turn_makes(hbm, sram, Q, K, V, blocks):
    O, l, m = made(hbm, sram, Q, V, blocks, "empty")
    Q, K, V = divided(Q, K, V, blocks)
    for j in sram.loop(blocks.T_c):
        K_j, V_j = sram.load(K[j], V[j])
        for i in sram.loop(blocks.T_r):
            Q_i = sram.load(Q[i])
            if j == 0:
                tiles = first_tile(sram, Q_i, K_j, V_j)
            else:
                O_i, l_i, m_i = sram.load(O[i], l[i], m[i])
                tiles = next_tile(sram, Q_i, K_j, V_j, O_i, l_i, m_i)
            store(sram, (O[i], l[i], m[i]), tiles)
    return O, l, m


def causal_by_continue(hbm, sram, Q, K, V, blocks):
    O = hbm.empty("O", (Q.shape[0], V.shape[1]), V.dtype, "output").divide(blocks.B_r)
    Q, K, V = divided(Q, K, V, blocks)
    for i in sram.loop(blocks.T_r):
        Q_i = sram.load(Q[i])
        O_i = sram.full(O[i].shape, 0.0)
        for j in sram.loop(blocks.T_c):
            if j * blocks.B_c > i * blocks.B_r + blocks.B_r - 1:
                continue
            K_j, V_j = sram.load(K[j], V[j])
            O_i = sram.on_chip(O_i + exp(Q_i @ K_j.T) @ V_j, over=O_i)
        sram.store(O[i], O_i)
    return O


# --------------------------------------------------------------------------------------------------
# loops of all kinds


def plain(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        Q_i = sram.load(Q[i])
        for j in sram.loop(len(K)):
            sram.on_chip(Q_i @ sram.load(K[j]).T)


def there_and_back(hbm, sram, Q, K, V, blocks):
    for i in reversed(sram.loop(len(Q))):
        Q_i = sram.load(Q[i])
        for j in reversed(sram.loop(len(K))):
            sram.on_chip(Q_i @ sram.load(K[j]).T)


def rotated(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        for j in sram.loop(len(K)):
            sram.load(K[(i + j) % len(K)])


def every_other(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        if j % 2 == 0:
            sram.load(K[j])


def zigzag(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        order = range(len(K)) if i % 2 == 0 else range(len(K) - 1, -1, -1)
        for j in sram.loop(order):
            sram.load(K[j])


def zigzag_by_halves(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j // 2 if j % 2 else len(K) - 1 - j // 2])


def first_by_index(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if not j:
            sram.load(Q[0])


def last_by_index(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if j == len(K) - 1:
            sram.load(Q[0])


def third_by_index(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if j == 3:
            sram.load(Q[0])


def first_by_flag(hbm, sram, Q, K, V, blocks):
    first = True
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if first:
            sram.load(Q[0])
        first = False


def third_by_flags(hbm, sram, Q, K, V, blocks):
    one = two = three = False
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if three:
            sram.load(Q[0])
        one, two, three = True, one, two


def first_by_none(hbm, sram, Q, K, V, blocks):
    O_i = None
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if O_i is None:
            O_i = sram.full((2, 2), 0.0)


def by_counter(hbm, sram, Q, K, V, blocks):
    n = 0
    for j in sram.loop(len(K)):
        n += 1  # noqa: SIM113
        sram.load(K[j])
        if n == 4:
            sram.load(Q[0])


def by_float(hbm, sram, Q, K, V, blocks):
    x = 1.0
    for j in sram.loop(len(K)):
        x *= 0.5
        sram.load(K[j])
        if x < 0.1:
            sram.load(Q[0])


def by_iterator(hbm, sram, Q, K, V, blocks):
    order = iter([0, 1, 0, 1, 1, *[0] * 50])
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if next(order):
            sram.load(Q[0])


def by_cycle(hbm, sram, Q, K, V, blocks):
    turns = itertools.cycle([0, 0, 0, 1])
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if next(turns):
            sram.load(Q[0])


def by_generator(hbm, sram, Q, K, V, blocks):
    turns = (n == 3 for n in itertools.count())
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if next(turns):
            sram.load(Q[0])


def by_list(hbm, sram, Q, K, V, blocks):
    events = []
    for j in sram.loop(len(K)):
        events.append(j)
        sram.load(K[j])
        if len(events) > 3:
            sram.load(Q[0])


def by_set_and_dict(hbm, sram, Q, K, V, blocks):
    events = set()
    place = {}
    for i in sram.loop(len(Q)):
        for j in sram.loop(len(K)):
            if j not in events:
                sram.load(K[j])
            events.add(j)
            place[i, j] = 1


def by_nonlocal(hbm, sram, Q, K, V, blocks):
    n = 0

    def step():
        nonlocal n
        n += 1
        return n > 3

    for j in sram.loop(len(K)):
        sram.load(K[j])
        if step():
            sram.load(Q[0])


def by_nested_closure(hbm, sram, Q, K, V, blocks):
    def counter():
        n = [0]

        def step():
            n[0] += 1
            return n[0]

        return lambda: step() > 3

    late = counter()
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if late():
            sram.load(Q[0])


NUMBER = 0


def by_global(hbm, sram, Q, K, V, blocks):
    global NUMBER
    NUMBER = 0
    for j in sram.loop(len(K)):
        NUMBER += 1
        sram.load(K[j])
        if NUMBER > 3:
            sram.load(Q[0])


def late():
    global NUMBER
    NUMBER += 1
    return NUMBER > 3


def by_global_of_helper(hbm, sram, Q, K, V, blocks):
    begin()
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if late():
            sram.load(Q[0])


def begin():
    global NUMBER
    NUMBER = 0


class Counter:
    total = 0

    def __init__(self):
        self.number = 0

    def late(self):
        self.number += 1
        return self.number > 3


class Slotted:
    __slots__ = ("number",)


@dataclass
class Record:
    number: int = 0


def by_attribute(hbm, sram, Q, K, V, blocks):
    counter = Counter()
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if counter.late():
            sram.load(Q[0])


def by_slot(hbm, sram, Q, K, V, blocks):
    counter = Slotted()
    counter.number = 0
    for j in sram.loop(len(K)):
        counter.number += 1
        sram.load(K[j])
        if counter.number > 4:
            sram.load(Q[0])


def by_record(hbm, sram, Q, K, V, blocks):
    record = Record()
    for j in sram.loop(len(K)):
        record.number += 1
        sram.load(K[j])
        if record.number > 4:
            sram.load(Q[0])


def by_bound_method(hbm, sram, Q, K, V, blocks):
    is_late = Counter().late
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if is_late():
            sram.load(Q[0])


def append_and_count(numbers):
    numbers.append(0)
    return len(numbers)


def by_partial(hbm, sram, Q, K, V, blocks):
    count = functools.partial(append_and_count, [])
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if count() > 4:
            sram.load(Q[0])


def by_bytes(hbm, sram, Q, K, V, blocks):
    counter = bytearray(1)
    for j in sram.loop(len(K)):
        counter[0] += 1
        sram.load(K[j])
        if counter[0] > 4:
            sram.load(Q[0])


class Number(int):
    pass


def by_class_of_numbers(hbm, sram, Q, K, V, blocks):
    number = Number(0)
    for j in sram.loop(len(K)):
        number = Number(number + 1)
        sram.load(K[j])
        if number > 4:
            sram.load(Q[0])


def by_class_attribute(hbm, sram, Q, K, V, blocks):
    Counter.total = 0
    for j in sram.loop(len(K)):
        Counter.total += 1
        sram.load(K[j])
        if Counter.total > 3:
            sram.load(Q[0])


def by_attribute_of_the_memory(hbm, sram, Q, K, V, blocks):
    sram.number = 0
    for j in sram.loop(len(K)):
        sram.number += 1
        sram.load(K[j])
        if sram.number > 3:
            sram.load(Q[0])


def by_function_attribute(hbm, sram, Q, K, V, blocks):
    by_function_attribute.number = 0
    for j in sram.loop(len(K)):
        by_function_attribute.number += 1
        sram.load(K[j])
        if by_function_attribute.number > 3:
            sram.load(Q[0])


def by_random(hbm, sram, Q, K, V, blocks):
    rng = np.random.default_rng(0)
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if rng.random() < 0.5:
            sram.load(Q[0])


def by_global_random(hbm, sram, Q, K, V, blocks):
    np.random.seed(0)  # noqa: NPY002
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if np.random.rand() < 0.5:  # noqa: NPY002
            sram.load(Q[0])


def by_continue(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        for j in sram.loop(len(K)):
            if j > i:
                continue
            sram.load(K[j])


def by_break(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        for j in sram.loop(len(K)):
            sram.load(K[j])
            if j == 2:
                break


def break_after_blocks_are_compared_as_things(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        if Q[i] is Q[i]:
            sram.load(K[0])
        break


def break_in_each_second_turn(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        tile = None
        for j in sram.loop(len(K)):
            if tile is not None:
                break
            sram.load(K[j])
            tile = 1


def break_in_each_third_turn(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        n = 0
        for j in sram.loop(len(K)):
            sram.load(K[j])
            n += 1  # noqa: SIM113
            if n == 3:
                break


def by_return(hbm, sram, Q, K, V, blocks):
    def some(k):
        stop = False
        for j in sram.loop(len(K)):
            sram.load(K[j])
            if stop:
                return
            stop = True

    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        some(i)


def by_table(hbm, sram, Q, K, V, blocks):
    n = len(K)
    order = [*range(n - 1, -1, -1)]
    table = (*order,)
    places = dict(enumerate(order))
    array = np.array(order)
    for j in sram.loop(n):
        sram.load(K[order[j]])
    for j in sram.loop(n):
        sram.load(K[table[j]])
    for j in sram.loop(n):
        sram.load(K[places[j]])
    for j in sram.loop(n):
        sram.load(K[int(array[j])])
    for j in sram.loop(n):
        sram.load(K[array[j]])


def by_str(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if f"{j}" in "135" or str(j) == "2" or repr(j) == "4" or "%d" % j == "0":  # noqa: UP031
            sram.load(Q[0])


def by_type(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        if type(j) is int:
            sram.load(K[j])
        if isinstance(j, int):
            sram.load(Q[0])


def by_identity(hbm, sram, Q, K, V, blocks):
    third = K[3]
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if K[j] is third:
            sram.load(Q[0])


def by_equality_of_blocks(hbm, sram, Q, K, V, blocks):
    some = [K[3], K[1]]
    known = {K[2]}
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if K[j] in some or K[j] in known:
            sram.load(Q[0])


def two_indices_added(hbm, sram, Q, K, V, blocks):
    for a in sram.loop(2):
        for b in sram.loop(4):
            if a * 4 + b < len(K):
                sram.load(K[a * 4 + b])


def range_with_a_step(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(range(0, len(K), 2)):
        sram.load(K[j])
    for j in sram.loop(range(len(K) - 1, -1, -3)):
        sram.load(K[j])
    for j in reversed(sram.loop(range(1, len(K)))):
        sram.load(K[j])


def pairs_of_blocks(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(range(0, len(K), 2)):
        sram.load(K[j])
        if j + 1 < len(K):
            sram.load(K[j + 1])


def list_of_blocks(hbm, sram, Q, K, V, blocks):
    every = [K[j] for j in range(len(K))]
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        for block in every:
            sram.load(block)
    for j in sram.loop(len(every)):
        sram.load(every[j])


def zipped(hbm, sram, Q, K, V, blocks):
    every = [K[len(K) - 1 - j] for j in range(len(K))]
    for j, block in zip(sram.loop(len(K)), every, strict=True):
        sram.load(block, V[j])
    for n, j in enumerate(sram.loop(len(K))):
        sram.load(K[len(K) - 1 - n], V[j])


def zipped_first(hbm, sram, Q, K, V, blocks):
    every = [K[len(K) - 1 - j] for j in range(len(K))]
    for block, _ in zip(every, sram.loop(len(K)), strict=False):
        sram.load(block)


def iterator_of_the_loop(hbm, sram, Q, K, V, blocks):
    turns = iter(sram.loop(len(K)))
    for j in turns:
        sram.load(K[j])
        if next(turns, None) is not None:
            sram.load(Q[0])


def helper_functions(hbm, sram, Q, K, V, blocks):
    def bring(matrix, index):
        return sram.load(matrix[index])

    def inner(matrix):
        for index in sram.loop(len(matrix)):
            bring(matrix, index)

    for i in sram.loop(len(Q)):
        bring(Q, i)
        inner(K)
        inner(V)


def generator_helper(hbm, sram, Q, K, V, blocks):
    def counted(number):
        n = 0
        for j in sram.loop(number):
            n += 1  # noqa: SIM113
            yield n, j

    for n, j in counted(len(K)):
        sram.load(K[j])
        if n > 3:
            sram.load(Q[0])


def zipped_generator(hbm, sram, Q, K, V, blocks):
    def indices(number):
        for j in sram.loop(number):  # noqa: UP028
            yield j

    every = [Q[0], Q[0], *[K[j] for j in range(2, len(K))]]
    for block, j in zip(every, indices(len(K)), strict=True):
        sram.load(block)
        sram.load(V[j])


def zipped_generator_of_numbers(hbm, sram, Q, K, V, blocks):
    def indices(number):
        for j in sram.loop(number):  # noqa: UP028
            yield j

    order = [*[0] * 4, 1, 1, *[0] * 50]
    for special, j in zip(order, indices(len(K)), strict=False):
        sram.load(V[j])
        if special:
            sram.load(Q[0])


def previous_index(hbm, sram, Q, K, V, blocks):
    before = None
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if before is not None:
            sram.load(V[before])
        before = j


def previous_index_at_the_end(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
    sram.load(K[j])
    for i in sram.loop(len(Q)):
        sram.load(V[j])
        sram.load(Q[i])


def previous_index_of_fewer(hbm, sram, Q, K, V, blocks):
    before = 0
    window = K.rows(0, 3 * blocks.B_c)
    for j in sram.loop(len(K)):
        try:
            sram.load(window[before])
        except IndexError:
            sram.load(Q[0])
        before = j


def previous_block(hbm, sram, Q, K, V, blocks):
    block = K[0]
    for j in sram.loop(len(K)):
        sram.load(K[j])
        sram.load(block)
        block = K[j]


def next_block(hbm, sram, Q, K, V, blocks):
    block = K[0]
    for j in sram.loop(len(K)):
        sram.load(V[j])
        sram.load(block)
        start = block.where[0].stop
        block = K[start // blocks.B_c] if start < K.shape[0] else K[0]


def index_error(hbm, sram, Q, K, V, blocks):
    window = K.rows(0, 3 * blocks.B_c)
    for j in sram.loop(len(K)):
        sram.load(K[j])
        try:
            sram.load(window[j])
        except IndexError:
            sram.load(Q[0])


def ragged_before_the_last_turn(hbm, sram, Q, K, V, blocks):
    window = K.rows(0, (len(K) - 1) * blocks.B_c - 1)
    for j in sram.loop(len(K)):
        try:
            sram.load(window[j])
        except IndexError:
            sram.load(Q[0])


def everything_is_caught(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        try:
            if j == 2:
                sram.load(Q[0])
        except:  # noqa: E722
            sram.load(Q[1])


def reads_where(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        block = K[j]
        sram.load(block)
        if block.where[0].start > 5:
            sram.load(Q[0])


def reads_names(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if K[j].name == "K[3]" or "4" in repr(K[j]):
            sram.load(Q[0])
        if K.name == "K":
            sram.load(V[j])


def reads_occupancy(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        sram.load(Q[i])
        for j in sram.loop(len(K)):
            sram.load(K[j])
            if sram.occupancy > 20:
                sram.load(V[j])


def reads_counters(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K[j])
        if hbm.traffic.reads > 40:
            sram.load(Q[0])


def reads_the_peak(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(V[j])
        if sram.peak > 12 or "K[3]" in sram.resident:
            sram.load(Q[0])
        sram.load(K[j])


def ragged_in_both(hbm, sram, Q, K, V, blocks):
    S = hbm.empty("S", (Q.shape[0], K.shape[0]), Q.dtype).divide(blocks.B_r, blocks.B_c)
    for i in sram.loop(len(Q)):
        Q_i = sram.load(Q[i])
        for j in sram.loop(len(K)):
            sram.store(S[i, j], sram.on_chip(Q_i @ sram.load(K[j]).T))
    for j in reversed(sram.loop(len(K))):
        for i in sram.loop(len(Q)):
            sram.load(S[i, j])


def shifted_so_that_the_ragged_is_not_last(hbm, sram, Q, K, V, blocks):
    for t in sram.loop(range(len(K) - 1, -1, -1)):
        sram.load(K[t])
    for t in sram.loop(range(2, len(K))):
        sram.load(K[t])


def only_some(hbm, sram, Q, K, V, blocks):
    which = np.arange(len(K)) % 3 > 0
    for j in sram.loop(len(K), where=which):
        sram.load(K[j])
    for j in sram.loop(len(K), alike=[0] * len(K)):
        sram.load(K[j])
        if j == 2:
            sram.load(Q[0])


def longer_each_turn(hbm, sram, Q, K, V, blocks):
    for i in sram.loop(len(Q)):
        for j in sram.loop(i + 1):
            sram.load(K[j])


def rows_of_a_window(hbm, sram, Q, K, V, blocks):
    for j in sram.loop(len(K)):
        sram.load(K.rows(j, j + 2)[0])
        sram.load(K.at([j, 0]))


def grows_on_chip(hbm, sram, Q, K, V, blocks):
    held = sram.full((2, 2), 0.0)
    for j in sram.loop(len(K)):
        held = sram.on_chip(held + 1.0, over=held)
        sram.load(K[j])
        if j.real if hasattr(j, "real") else 0:
            sram.load(Q[0])


def swapped(hbm, sram, Q, K, V, blocks):
    one = K
    two = K.divide(5)
    for _ in sram.loop(len(Q)):
        sram.load(one[0])
        one, two = two, one


def tiles_swapped(hbm, sram, Q, K, V, blocks):
    one = sram.full((2, 2), 0.0)
    two = sram.full((1, 1), 0.0)
    for _ in sram.loop(len(K)):
        sram.load(Q[0] if one.shape == (1, 1) else V[0])
        one, two = two, one


def of_two_shapes(hbm, sram, Q, K, V, blocks):
    queue = [sram.full((2, 2), 0.0), sram.full((2, 2), 0.0), sram.full((2, 2), 0.0)]
    shapes = [(1, 1), (1, 2), (1, 3), (1, 4), *[(2, 2)] * 50]
    for j in sram.loop(len(K)):
        queue.append(queue.pop(0))
        sram.full(shapes.pop(0), 0.0)
        sram.load(K[j])


PARAMETERS = ("hbm", "sram", "Q", "K", "V", "blocks")
EVERY = [
    value
    for value in list(globals().values())
    if hasattr(value, "__code__") and value.__code__.co_varnames[:6] == PARAMETERS
]
