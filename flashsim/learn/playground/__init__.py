"""The playground: a page with sliders for lengths, d, M and block sizes, and the closed forms'
numbers redrawn at once.

Its formulas are `flashsim.theory`'s, translated to JavaScript
(`flashsim.learn.playground.javascript`): nothing is written twice.
"""

from flashsim.learn.playground.page import page

__all__ = ["page"]
