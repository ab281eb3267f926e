"""The playground: a page with sliders for lengths, d, M and block sizes, and the closed forms' numbers redrawn at once.

Its formulas are `flashsim.theory`'s, translated to JavaScript (`flashsim.playground.javascript`), so nothing is written twice.
"""

from __future__ import annotations

from flashsim.playground.page import page

__all__ = ["page"]
