"""The playground: a page with sliders for lengths, d, M and block sizes, which shows the numbers of
the closed forms at once.

Its formulas are those of `flashsim.theory`, which `flashsim.learn.playground.javascript` translates
to JavaScript: so no formula is written twice.
"""

from flashsim.learn.playground.page import page

__all__ = ["page"]
