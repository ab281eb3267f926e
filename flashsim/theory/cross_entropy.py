"""Cut cross-entropy: its forms. The peaks:

cut_cross_entropy     b_r(d + 1) + b_c·d + b_r·b_c + 4b_r   X_i y_i, E_j, S_ij, ℓ_i m_i c_i m_i^new
cut_cross_entropy_dx  b_r(2d + 3) + b_c·d + b_r·b_c         X_i dX_i y_i L_i g_i, E_j, P_ij
cut_cross_entropy_de  2b_c·d + b_r(d + 3) + b_r·b_c         E_j dE_j, X_i y_i L_i g_i, P_ij
"""

from dataclasses import replace

from flashsim.theory.problem import ceil_div
from flashsim.theory.program import ProgramForm, given, returned

BY_X = {"X": given("N", "d"), "E": given("v", "d", reads="T_r"), "y": given("N", "1", "words")}
LOSS = ProgramForm(
    name="cut_cross_entropy", blocks={"B_r": "N", "B_c": "v"}, line_1=lambda rows, p: (rows, min(rows, p.d)),
    rows=lambda M, p: ceil_div(M, 4 * p.d),
    arrays={**BY_X, "loss": returned("N", "1", "chip"), "L": returned("N", "1", "chip")},
    peak=lambda p, b, options: b.B_r * (p.d + 5) + b.B_c * p.d + b.B_r * b.B_c,
    matmul=lambda p, b, options: 2 * p.N * p.v * p.d,
)
DX = replace(
    LOSS,
    name="cut_cross_entropy_dx",
    arrays={**BY_X, "L": given("N", "1", "chip"), "g": given("N", "1"), "dX": returned("N", "d")},
    peak=lambda p, b, options: b.B_r * (2 * p.d + 3) + b.B_c * p.d + b.B_r * b.B_c,
    matmul=lambda p, b, options: 4 * p.N * p.v * p.d,
)
DE = replace(
    DX,
    name="cut_cross_entropy_de",
    arrays={
        "X": given("N", "d", reads="T_c"), "E": given("v", "d"), "y": given("N", "1", "words", reads="T_c"),
        "L": given("N", "1", "chip", reads="T_c"), "g": given("N", "1", reads="T_c"), "dE": returned("v", "d"),
    },
    line_1=lambda rows, p: (min(rows, p.d), rows),
    peak=lambda p, b, options: 2 * b.B_c * p.d + b.B_r * (p.d + 3) + b.B_r * b.B_c,
)
